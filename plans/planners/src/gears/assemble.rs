//! Assembles a plan from decisions: replicas, wiring, shares.

use std::collections::BTreeMap;

use super::balance::{Balance, Group};
use super::model_costs::Models;
use super::model_set::ModelSet;
use super::search::Cascade;
use crate::device::DeviceSpec;
use kaskade_policy::plan::{
    Band, Batching, Dropping, Edge, Exit, Gear, PLAN_VERSION, Plan, PlannedVariant, Replica, Sharing, Slo,
    Stage, Wiring,
};
use kaskade_policy::profile::Profile;

/// Inputs for assembling a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) profile: &'a Profile,
    pub(super) models: &'a Models,
    pub(super) devices: &'a [DeviceSpec],
}

/// The groups restricted to some models: devices that host none of them left out, those that host the same together.
pub(super) fn project(groups: &[Group], models: ModelSet) -> Vec<Group> {
    let mut merged: BTreeMap<(ModelSet, u64), Vec<usize>> = BTreeMap::new();
    for group in groups {
        let hosted: ModelSet = models
            .iter()
            .filter(|model| group.hosted.contains(*model))
            .collect();
        if hosted != ModelSet::default() {
            merged
                .entry((hosted, group.speed.to_bits()))
                .or_default()
                .extend(&group.devices);
        }
    }
    let group = |((hosted, speed), mut devices): ((ModelSet, u64), Vec<usize>)| {
        devices.sort_unstable();
        Group {
            speed: f64::from_bits(speed),
            memory_bytes: 0,
            hosted,
            devices,
        }
    };
    merged.into_iter().map(group).collect()
}

impl Parts<'_> {
    /// A plan without gears, with the replicas of a placement.
    pub(super) fn plan(&self, groups: &[Group], made_by: String, slo: Option<Slo>) -> Plan {
        let used = groups
            .iter()
            .fold(ModelSet::default(), |set, group| set.union(group.hosted));
        let planned = |model: usize| {
            Some(PlannedVariant {
                name: self.models.name(model).to_owned(),
                calibration: Some(self.profile.variants.get(model)?.calibration),
            })
        };
        let mut hosts: Vec<(usize, ModelSet)> = groups
            .iter()
            .flat_map(|group| group.devices.iter().map(|device| (*device, group.hosted)))
            .collect();
        hosts.sort_unstable_by_key(|(device, _)| *device);
        let replicas = |(device, hosted): &(usize, ModelSet)| {
            let device = *device;
            hosted
                .iter()
                .filter_map(move |model| self.replica(model, device))
                .collect::<Vec<Replica>>()
        };
        Plan {
            version: PLAN_VERSION,
            app: self.profile.app.clone(),
            made_by,
            variants: used.iter().filter_map(planned).collect(),
            placement: hosts.iter().flat_map(replicas).collect(),
            sharing: Sharing::Exclusive,
            dropping: Dropping::None,
            slo,
            certificate: None,
            certified: None,
            gears: Vec::<Gear>::new(),
        }
    }

    fn replica(&self, model: usize, device: usize) -> Option<Replica> {
        let spec = self.devices.get(device)?;
        let variant = self.models.name(model);
        let replica = Replica::whole(
            self.replica_id(model, device),
            variant,
            &spec.worker,
            &spec.device,
        );
        Some(replica.with_checkpoint(self.profile.checkpoint(variant)))
    }

    /// A model is at most once on a device, so the two name the replica.
    fn replica_id(&self, model: usize, device: usize) -> String {
        format!("{}-{device}", self.models.name(model))
    }

    /// The wiring of a cascade. `groups` are those of the balance.
    pub(super) fn wiring(
        &self,
        cascade: &Cascade,
        groups: &[Group],
        balance: &Balance,
        batching: impl Fn(usize) -> Batching,
    ) -> Wiring {
        let edges: Vec<Edge> = cascade
            .variants
            .iter()
            .map(|model| self.edge(*model, groups, balance))
            .collect();
        let stage = |(place, model): (usize, &usize)| {
            Stage::new(
                self.models.name(*model),
                self.models.name(*model),
                match (cascade.thresholds.get(place), edges.get(place + 1)) {
                    (Some(threshold), Some(next)) => exit(*threshold, next),
                    _ => Exit::Reply,
                },
                batching(place),
            )
        };
        Wiring {
            entry: edges.first().cloned().unwrap_or_else(|| Edge::to("")),
            ensemble: Vec::new(),
            stages: cascade.variants.iter().enumerate().map(stage).collect(),
        }
    }

    /// The edge into a model's stage, shared by its replicas as balanced.
    pub(super) fn edge(&self, model: usize, groups: &[Group], balance: &Balance) -> Edge {
        let of_model = balance.shares.iter().filter(|(served, ..)| *served == model);
        let shares = of_model.flat_map(|(_, group, share)| {
            let devices = groups
                .get(*group)
                .map_or(&[][..], |group| group.devices.as_slice());
            devices
                .iter()
                .map(move |device| (self.replica_id(model, *device), *share))
        });
        Edge {
            shares: shares.collect(),
            ..Edge::to(self.models.name(model))
        }
    }
}

/// Below the threshold the next stage is asked.
fn exit(threshold: f64, next: &Edge) -> Exit {
    Exit::Bands {
        bands: vec![Band::forward(0.0, next.clone()), Band::reply(threshold)],
    }
}
