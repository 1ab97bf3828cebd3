//! The cascades and ranges of a planner.

use crate::gears::options::{Ablation, GearOptions};
use crate::gears::search::Space;
use crate::gears::served;
use kaskade_policy::plan::LoadRange;

/// Cascades, and ranges of load.
#[derive(Debug, Clone)]
pub(in crate::gears) struct Scope {
    pub(super) space: Space,
    pub(in crate::gears) ranges: Vec<LoadRange>,
    /// How common the load of every range is thought to be, summing to 1.
    pub(super) common: Vec<f64>,
    /// How much is served in the gear of every range, summing to 1: what a range weighs, in answers or in time.
    pub(in crate::gears) weights: Vec<f64>,
}

impl Scope {
    /// Restricts all cascades and ranges to an ablation. `options` have been checked.
    pub(super) fn new(space: Space, options: &GearOptions, ablation: Ablation) -> Self {
        let space = match ablation {
            Ablation::NoCascade | Ablation::Neither => space.singles(),
            Ablation::Full | Ablation::NoSwitching => space,
        };
        let count = match ablation {
            Ablation::NoSwitching | Ablation::Neither => 1,
            Ablation::Full | Ablation::NoCascade => options.ranges,
        };
        let common = match count {
            1 => vec![1.0],
            _ => options.prior.shares(count as usize).unwrap_or_default(),
        };
        Self {
            space,
            ranges: ranges(options.qps_max, count),
            weights: served::shares(&options.weighing.of(&common), options.qps_max, options.seed),
            common,
        }
    }
}

/// `[0, qps_max]` in equal parts.
pub(in crate::gears) fn ranges(qps_max: f64, count: u32) -> Vec<LoadRange> {
    let bound = |k: u32| qps_max * f64::from(k) / f64::from(count);
    let range = |k| LoadRange {
        from_qps: bound(k),
        to_qps: Some(bound(k + 1)),
    };
    (0..count).map(range).collect()
}
