//! Algorithm 3: how many devices and how much load, then every combination of replicas and partitions that fits, and the best placement
//! of the best of them.

use super::curves::Curves;
use super::emit;
use super::error::PlacementError;
use super::flow::{self, Flow};
use super::inputs::{Case, FeasiblePartition};
use super::max_throughput;
use super::options::{Fleet, PlacementObjective, PlacementOptions};
use super::outcome::{Placement, Shapes};
use super::problem::{Cluster, excess};
use super::search;
use super::shapes::Models;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;

/// Places a cascade (Algorithm 3). The same profile, cascade and options give the same plan, byte for byte.
///
/// # Errors
/// A [`PlacementError`] that names the violated constraint, with the figures. The caller keeps an older plan.
pub fn plan_placement(
    profile: &Profile,
    cascade: &Plan,
    options: &PlacementOptions,
) -> Result<Placement, PlacementError> {
    options.check()?;
    let flow = flow::flow(profile, cascade)?;
    let curves = curves(profile, &flow, options)?;
    let models = Models::new(&flow, &curves, options);
    let case = Case { models, options };
    let (cluster, qps, seen) = case.fleet()?;
    let found = search::search(&case, &cluster, qps, seen)?;
    emit::placed(profile, cascade, &case.models, options, &cluster, &found)
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

impl Case<'_> {
    /// The devices to use, the load to carry, and a combination that carries it.
    fn fleet(&self) -> Result<(Cluster, f64, Option<FeasiblePartition>), PlacementError> {
        let all = Cluster::new(self.options, self.options.devices.len());
        self.fits_at_all(&all)?;
        let PlacementObjective::Carry { qps } = self.options.goal else {
            let found = max_throughput::max_throughput(self, &all);
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
                && let Some(seen) = max_throughput::carries(self, &few, qps)
            {
                return Ok((few, qps, Some(seen)));
            }
        }
        Ok((all, qps, None))
    }

    /// Whether the load needs no more kernel time than there is, in the best batches.
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
            max_qps: cluster.work() / each,
        })
    }
}

#[cfg(test)]
mod tests;
