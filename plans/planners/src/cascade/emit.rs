//! The plan of a chosen cascade: wiring, certified list and placement.

use std::collections::BTreeSet;

use kaskade_policy::confidence::deferral::DeferralScore;
use kaskade_policy::plan::{
    Band, Certificate, CertifiedList, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan,
    PlannedVariant, Replica, Sharing, Stage, Target, Wiring,
};
use kaskade_policy::profile::Profile;

use super::{CascadeOptions, ChosenCascade};
use crate::certify::{PassedCascade, Wired, certified_list, steps};
use crate::thresholds::{self, Exits, FORWARD_ALL, Family};

pub(super) fn plan(profile: &Profile, chosen: &ChosenCascade, options: &CascadeOptions) -> Plan {
    let wired = wiring(&chosen.family, &chosen.skips.exits, &chosen.scores, options);
    let list = safer_cascades(profile, chosen, &wired, options);
    let of_list = list.iter().flat_map(|list| &list.cascades);
    let stages = of_list.flat_map(|cascade| &cascade.gear.wiring.stages);
    let served: BTreeSet<&str> = stages
        .chain(&wired.stages)
        .map(|stage| stage.variant.as_str())
        .collect();
    let variants = || {
        let variants = profile.variants.iter();
        variants.filter(|variant| served.contains(variant.name.as_str()))
    };
    let names: Vec<&str> = variants().map(|variant| variant.name.as_str()).collect();
    Plan {
        version: PLAN_VERSION,
        app: profile.app.clone(),
        made_by: format!(
            "cascade/{} seed={} batch={}",
            options.objective.name(),
            options.seed,
            options.batch
        ),
        variants: variants()
            .map(|variant| PlannedVariant {
                name: variant.name.clone(),
                calibration: Some(variant.calibration),
            })
            .collect(),
        placement: placement(profile, &names, options),
        sharing: Sharing::default(),
        dropping: Dropping::None,
        slo: None,
        certificate: chosen
            .certified
            .as_ref()
            .map(|(certificate, _)| judged(certificate, profile)),
        gears: vec![Gear {
            name: options.objective.name().to_owned(),
            load: LoadRange::ALL,
            expected: None,
            wiring: wired,
        }],
        certified: list,
    }
}

fn wiring(
    family: &Family,
    exits: &Exits,
    scores: &[Option<DeferralScore>],
    options: &CascadeOptions,
) -> Wiring {
    let names: Vec<&str> = family
        .columns()
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    let stage = |(place, (name, bands)): (usize, (&&str, &Vec<thresholds::Band>))| Stage {
        score: scores.get(place).cloned().flatten(),
        ..Stage::new(*name, *name, exit(bands, &names), options.batching)
    };
    Wiring {
        entry: Edge::to(names.first().copied().unwrap_or_default()),
        ensemble: Vec::new(),
        stages: names.iter().zip(exits).enumerate().map(stage).collect(),
    }
}

/// Returns a certificate with the judge of the profile.
fn judged(certificate: &Certificate, profile: &Profile) -> Certificate {
    Certificate {
        judge: profile.judge.clone(),
        ..certificate.clone()
    }
}

/// Returns the certified list that ends with the chosen cascade; `None` if it is not certified, or the largest variant alone.
///
/// Safer cascades are kept if they need no further variant but the largest, which audits ask: a fallback should not cost memory.
fn safer_cascades(
    profile: &Profile,
    chosen: &ChosenCascade,
    wired: &Wiring,
    options: &CascadeOptions,
) -> Option<CertifiedList> {
    let (certificate, _) = chosen.certified.as_ref()?;
    let largest = profile.variants.last()?;
    let is_served =
        |name: &str| name == largest.name || chosen.family.columns().iter().any(|column| column.name == name);
    let safer: Vec<&PassedCascade> = chosen
        .safer
        .iter()
        .filter(|passed| {
            let mut columns = passed.cascade.family.columns().iter();
            columns.all(|column| is_served(&column.name))
        })
        .collect();
    let last = safer.len();
    if last == 0 {
        return None;
    }
    let wired = steps(last + 1, &[])
        .into_iter()
        .map(|place| match safer.get(place) {
            Some(passed) => Wired {
                wiring: wiring(
                    &passed.cascade.family,
                    &passed.cascade.skips.exits,
                    &passed.cascade.scores,
                    options,
                ),
                certificate: judged(&passed.certificate, profile),
            },
            None => Wired {
                wiring: wired.clone(),
                certificate: judged(certificate, profile),
            },
        });
    let wired: Vec<Wired> = wired.collect();
    let place = wired.len().saturating_sub(1) as u32;
    Some(certified_list(profile, wired, vec![place]))
}

fn exit(bands: &[thresholds::Band], names: &[&str]) -> Exit {
    let target = |to: Option<usize>| match to.and_then(|to| names.get(to)) {
        Some(name) => Target::Stage(Edge::to(*name)),
        None => Target::Reply,
    };
    // A threshold that no confidence reaches would be a band beyond 1.
    let bands: Vec<Band> = bands
        .iter()
        .filter(|band| band.from < FORWARD_ALL)
        .map(|band| Band {
            from: band.from,
            to: target(band.to),
        })
        .collect();
    match bands.as_slice() {
        []
        | [
            Band {
                to: Target::Reply, ..
            },
        ] => Exit::Reply,
        _ => Exit::Bands { bands },
    }
}

/// Replicas go to the workers round robin, across variants, so that no worker hosts all of the largest.
fn placement(profile: &Profile, names: &[&str], options: &CascadeOptions) -> Vec<Replica> {
    let mut workers = options.workers.iter().cycle();
    let mut placement = Vec::new();
    for name in names {
        let replicas = options
            .replicas_of
            .get(*name)
            .copied()
            .unwrap_or(options.replicas);
        for index in 0..replicas {
            let worker = workers.next().cloned().unwrap_or_default();
            let replica = Replica::whole(format!("{name}-{index}"), *name, worker, &options.device);
            placement.push(replica.with_checkpoint(profile.checkpoint(name)));
        }
    }
    placement
}
