//! Algorithm 3: how many devices and how much load, then every combination of replicas and partitions that fits, and the best placement
//! of the best of them.

use super::curves::Curves;
use super::emit;
use super::fault::PlacementError;
use super::flow::{self, Flow};
use super::most;
use super::options::{Fleet, Goal, PlacementOptions};
use super::outcome::{Placed, Shapes};
use super::problem::{Cluster, excess};
use super::search;
use super::shapes::{Models, Shape};
use super::solve::Solved;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;

/// Places a cascade (Algorithm 3). The same profile, cascade and options give the same plan, byte for byte.
///
/// # Errors
/// A [`PlacementError`] that says which constraint fails, with the figures. Whoever holds an older plan keeps it.
pub fn plan_placement(
    profile: &Profile,
    cascade: &Plan,
    options: &PlacementOptions,
) -> Result<Placed, PlacementError> {
    options.check()?;
    let flow = flow::flow(profile, cascade)?;
    let curves = curves(profile, &flow, options)?;
    let models = Models::new(&flow, &curves, options);
    let planner = Planner { models, options };
    let (cluster, qps, seen) = planner.fleet()?;
    let found = search::search(&planner, &cluster, qps, seen)?;
    emit::placed(profile, cascade, &planner.models, options, &cluster, &found)
}

/// The lines of the cascade's variants.
pub(super) fn curves(
    profile: &Profile,
    flow: &Flow,
    options: &PlacementOptions,
) -> Result<Vec<Curves>, PlacementError> {
    let of = |name: &String| {
        let mut variants = profile.variants.iter();
        let known = variants.find(|known| known.name == *name);
        let known = known.ok_or_else(|| PlacementError::NoVariant { name: name.clone() })?;
        Curves::new(known, options)
    };
    flow.variants.iter().map(of).collect()
}

/// A combination that was seen to carry a load, and how.
pub(super) type Seen = (Shape, Solved);

/// What is planned from.
pub(super) struct Planner<'a> {
    pub(super) models: Models<'a>,
    pub(super) options: &'a PlacementOptions,
}

impl Planner<'_> {
    /// The devices to use, the load to carry, and a combination that was seen to do it.
    fn fleet(&self) -> Result<(Cluster, f64, Option<Seen>), PlacementError> {
        let all = Cluster::new(self.options, self.options.devices.len());
        self.fits_at_all(&all)?;
        let Goal::Carry { qps } = self.options.goal else {
            let found = most::most(self, &all);
            let (qps, seen) = found.ok_or_else(|| search::unplaced(0.0, &Shapes::default(), 0, false))?;
            return Ok((all, qps, Some(seen)));
        };
        self.is_bearable(&all, qps)?;
        if self.options.fleet == Fleet::All {
            return Ok((all, qps, None));
        }
        for count in 1..self.options.devices.len() {
            let few = Cluster::new(self.options, count);
            if self.fits_at_all(&few).is_ok()
                && self.is_bearable(&few, qps).is_ok()
                && let Some(seen) = most::carries(self, &few, qps)
            {
                return Ok((few, qps, Some(seen)));
            }
        }
        Ok((all, qps, None))
    }

    /// Most partitions of a model on a cluster.
    pub(super) fn partitions(&self, cluster: &Cluster, model: usize) -> u32 {
        let most = self.models.most.get(model).copied().unwrap_or(1);
        most.min(u32::try_from(cluster.devices.len()).unwrap_or(u32::MAX))
    }

    /// The fewest partitions of every model that fit a device, if one copy of each fits the cluster.
    pub(super) fn fits_at_all(&self, cluster: &Cluster) -> Result<Vec<u32>, PlacementError> {
        let largest = cluster.largest_memory();
        let (mut fewest, mut needed) = (Vec::new(), 0.0);
        for (model, curves) in self.models.curves.iter().enumerate() {
            let (alone, most) = (curves.memory.held(1.0), self.partitions(cluster, model));
            needed += alone;
            let fits = |partitions: &u32| excess(alone / f64::from(*partitions), largest) <= 0.0;
            let Some(partitions) = (1..=most).find(fits) else {
                return Err(PlacementError::TooLarge {
                    variant: curves.variant.clone(),
                    partitions: most,
                    needed_bytes: alone / f64::from(most),
                    device_bytes: largest as u64,
                });
            };
            fewest.push(partitions);
        }
        if excess(needed, cluster.memory()) > 0.0 {
            return Err(PlacementError::NoMemory {
                needed_bytes: needed,
                device_bytes: cluster.memory(),
                devices: cluster.devices.len(),
            });
        }
        Ok(fewest)
    }

    /// Whether the load asks for no more kernel time than there is, in the best batches.
    fn is_bearable(&self, cluster: &Cluster, qps: f64) -> Result<(), PlacementError> {
        let each = self.models.least_kernel();
        if excess(qps * each, cluster.work()) <= 0.0 {
            return Ok(());
        }
        Err(PlacementError::Overloaded {
            qps,
            needed: qps * each,
            bound: self.options.utilisation,
            available: cluster.work(),
            devices: cluster.devices.len(),
            most_qps: cluster.work() / each,
        })
    }
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
