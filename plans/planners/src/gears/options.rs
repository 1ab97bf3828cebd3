//! Options of the gear planner.

use thiserror::Error;

use super::model_set::ModelSet;
use crate::certify::CertifyOptions;
use crate::device::DeviceSpec;
use kaskade_policy::plan::{Gear, Slo};
use kaskade_policy::profile::{HopAtRate, HopTime, LatencyQuantiles, Profile};

/// Longest cascade: the load balancer examines every set of a cascade's models.
pub(crate) const MAX_STAGES: usize = 8;

/// How common each range of load is thought to be (appendix C.2): its share of time. [`RangeWeights`] says what means of a plan are over. The
/// planner computes in which gear a load is served: a shifter that counts few requests is often in a higher one than the load's own.
#[derive(Debug, Clone, PartialEq)]
pub enum Prior {
    /// Range `k`, from 1, in proportion to `k^-s`: low loads are common.
    Zipf {
        /// The exponent; 1 is Zipf's own.
        s: f64,
    },
    /// One weight per range, from the lowest; they need not sum to 1.
    Measured {
        /// The weights.
        weights: Vec<f64>,
    },
    /// All ranges are equally common.
    Uniform,
}

impl Prior {
    /// How common the ranges of another plan are, from the share of time that was measured in each of the running gears' ranges
    /// (contained in a drift notice): a gear's time is spread evenly over its range. `None` if no time was measured below `qps_max`.
    pub fn measured(gears: &[Gear], shares: &[f64], ranges: usize, qps_max: f64) -> Option<Self> {
        let width = qps_max / ranges.max(1) as f64;
        let mut weights = vec![0.0; ranges];
        for (gear, share) in gears.iter().zip(shares) {
            let from = gear.load.from_qps.min(qps_max);
            let to = gear.load.to_qps.unwrap_or(qps_max).min(qps_max);
            // A gear that begins beyond the highest load was measured at it.
            let (from, to) = if from < to {
                (from, to)
            } else {
                (qps_max - width, qps_max)
            };
            for (range, weight) in weights.iter_mut().enumerate() {
                let begin = range as f64 * width;
                let common = (to.min(begin + width) - from.max(begin)).max(0.0);
                *weight += share * common / (to - from);
            }
        }
        let prior = Self::Measured { weights };
        prior.shares(ranges).map(|_| prior)
    }

    /// The share of every range, summing to 1. `None` if the weights are not one per range, not negative, or all 0.
    pub fn shares(&self, ranges: usize) -> Option<Vec<f64>> {
        let weights: Vec<f64> = match self {
            Self::Zipf { s } => (1..=ranges).map(|k| (k as f64).powf(-s)).collect(),
            Self::Measured { weights } => weights.clone(),
            Self::Uniform => vec![1.0; ranges],
        };
        let total: f64 = weights.iter().sum();
        let sound = weights.len() == ranges
            && total.is_finite()
            && total > 0.0
            && weights.iter().all(|weight| *weight >= 0.0);
        sound.then(|| weights.iter().map(|weight| weight / total).collect())
    }
}

/// Weights of the ranges of load in the mean accuracy and latency of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RangeWeights {
    /// Weights by answers: the share of time of a range times its load. This is the mean that a user of the answers observes.
    #[default]
    Answers,
    /// Weights by time, as in the paper: under Zipf loads most of it is spent at low loads, where accurate cascades serve few requests.
    Time,
}

impl RangeWeights {
    /// Returns the weights of ranges of equal width, summing to 1, from their shares of time, the lowest range first.
    pub(super) fn of(self, time: &[f64]) -> Vec<f64> {
        if self == Self::Time {
            return time.to_vec();
        }
        let middles = (0..time.len()).map(|range| range as f64 + 0.5);
        let requests: Vec<f64> = time.iter().zip(middles).map(|(time, load)| time * load).collect();
        let total: f64 = requests.iter().sum();
        requests.into_iter().map(|share| share / total).collect()
    }
}

/// Options of the cascade search (§4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CascadeSearch {
    /// Thresholds that every variant can choose from: quantiles of its confidences.
    pub thresholds: u32,
    /// Most stages of a cascade, at most `MAX_STAGES` (8).
    pub max_stages: u32,
    /// Most cascades that the ranges choose from.
    pub max_cascades: u32,
    /// Up to this many cascades all are examined; of more, as many are drawn.
    pub exhaustive_up_to: u32,
}

impl Default for CascadeSearch {
    fn default() -> Self {
        Self {
            thresholds: 10,
            max_stages: 5,
            max_cascades: 48,
            exhaustive_up_to: 50_000,
        }
    }
}

/// Limits of batches (§4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most requests in a batch.
    pub max_batch: u32,
    /// Longest `min_queue` that is tried.
    pub max_min_queue: u32,
    /// An idle replica starts once the oldest request has waited this long, microseconds.
    pub max_wait_us: u64,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            max_batch: 64,
            max_min_queue: 16,
            max_wait_us: 50_000,
        }
    }
}

/// The part of the planner that is left out, to measure its effect (§6.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ablation {
    /// The whole planner.
    #[default]
    Full,
    /// One cascade for every load.
    NoSwitching,
    /// Single variants, switched by load.
    NoCascade,
    /// One variant for every load.
    Neither,
}

/// Options of planning gears.
#[derive(Debug, Clone, PartialEq)]
pub struct GearOptions {
    /// The objective; the other side is optimised.
    pub slo: Slo,
    /// The highest load that the plan must carry, requests/s.
    pub qps_max: f64,
    /// Ranges of equal width that the loads are cut into, the paper's `N`.
    pub ranges: u32,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
    /// Prior of the ranges of load.
    pub prior: Prior,
    /// Options of the cascade search.
    pub search: CascadeSearch,
    /// Limits of batches.
    pub batching: BatchLimits,
    /// Time of a message between two actors, the median, microseconds.
    pub hop_us: u64,
    /// Distribution of that time; `None` if it does not vary.
    pub hop_quantiles: Option<LatencyQuantiles>,
    /// Dependence of that time on the rate of requests, relative to `hop_us`; empty if there is none.
    pub hop_by_rate: Vec<HopAtRate>,
    /// Time from the end of a batch to the start of the next if requests wait, microseconds.
    pub turnaround_us: u64,
    /// Seed of the search and of the simulated arrivals.
    pub seed: u64,
    /// The ablation.
    pub ablation: Ablation,
    /// Weighting of the means of accuracy and latency over the ranges of load.
    pub weighing: RangeWeights,
    /// Highest utilisation of the busiest device in any gear, above 0 and at most 1. The profile's latencies are those of an idle
    /// machine; what is left is headroom for their variance.
    pub max_utilisation: f64,
    /// Runs on fresh arrivals that confirm a latency objective for every gear; 0 trusts the arrivals that it was chosen on. The largest of
    /// their 95th percentiles must keep the objective. It exceeds the median run with a probability of `1 - 2^-confirmations`.
    pub confirmations: u32,
    /// Guarantee of every gear, certified on samples that it was not chosen on.
    pub guarantee: Option<CertifyOptions>,
}

impl GearOptions {
    /// Options to serve a profiled family with: means over answers, headroom, and gears that fresh arrivals confirm.
    ///
    /// The times of messages and between two batches are the profile's, if they were measured. The headroom is that of the middle of the profile's 95th percentiles: a device that is planned to be busy for its share of the median
    /// keeps up when every batch takes that long. Without measured quantiles, 15 %.
    pub fn serving(profile: &Profile, slo: Slo, qps_max: f64, devices: Vec<DeviceSpec>) -> Self {
        let costs = profile.variants.iter().flat_map(|variant| &variant.costs);
        let mut tails: Vec<f64> = costs.filter_map(|cost| Some(cost.quantiles?.p95)).collect();
        tails.sort_by(f64::total_cmp);
        let tail = tails.get(tails.len() / 2);
        Self {
            turnaround_us: profile.turnaround_us(),
            weighing: RangeWeights::Answers,
            max_utilisation: tail.map_or(0.85, |p95| (1.0 / p95).clamp(0.5, 0.95)),
            confirmations: 5,
            ..Self::new(slo, qps_max, devices).with_hop(profile, None)
        }
    }

    /// Sets the time of a message: the given one, or else the profile's with its quantiles and rates, if it was measured.
    #[must_use]
    pub fn with_hop(self, profile: &Profile, given_us: Option<u64>) -> Self {
        let measured = profile.hop.as_ref().filter(|_| given_us.is_none());
        Self {
            hop_us: given_us
                .or(measured.map(HopTime::median_us))
                .unwrap_or(self.hop_us),
            hop_quantiles: measured.and_then(|hop| hop.quantiles),
            hop_by_rate: measured.map_or_else(Vec::new, |hop| hop.by_rate.clone()),
            ..self
        }
    }

    /// The least median time of a message at any rate, microseconds.
    pub(super) fn least_hop_us(&self) -> f64 {
        let factors = self.hop_by_rate.iter().map(|row| row.factor);
        self.hop_us as f64 * factors.reduce(f64::min).unwrap_or(1.0)
    }

    /// Options for an objective and a fleet, the rest as in the paper.
    pub fn new(slo: Slo, qps_max: f64, devices: Vec<DeviceSpec>) -> Self {
        Self {
            slo,
            qps_max,
            ranges: 16,
            devices,
            prior: Prior::Zipf { s: 1.0 },
            search: CascadeSearch::default(),
            batching: BatchLimits::default(),
            hop_us: 100,
            hop_quantiles: None,
            hop_by_rate: Vec::new(),
            turnaround_us: 0,
            seed: 0,
            ablation: Ablation::Full,
            weighing: RangeWeights::Time,
            max_utilisation: 1.0,
            confirmations: 0,
            guarantee: None,
        }
    }

    /// Checks everything that the types cannot express.
    ///
    /// # Errors
    /// The first [`OptionError`] found.
    pub fn check(&self, profile: &Profile) -> Result<(), OptionError> {
        let bad = |option, needs| Err(OptionError::OutOfRange { option, needs });
        let stages = self.search.max_stages as usize;
        match self.slo {
            Slo::Latency { p95_us: 0 } => return bad("the latency objective", "at least 1 microsecond"),
            Slo::Accuracy { at_least } if !(0.0..=1.0).contains(&at_least) => {
                return bad("the accuracy objective", "in [0, 1]");
            }
            _ => {}
        }
        if !(self.qps_max.is_finite() && self.qps_max > 0.0) {
            return bad("qps_max", "above 0 and finite");
        }
        if !(1..=4096).contains(&self.ranges) {
            return bad("ranges", "from 1 to 4096");
        }
        if !(1..=MAX_STAGES).contains(&stages) {
            return bad("max_stages", "from 1 to 8");
        }
        if self.search.thresholds == 0 || self.search.max_cascades < 2 || self.search.exhaustive_up_to == 0 {
            return bad(
                "the cascade search",
                "at least 1 threshold, 2 cascades and 1 draw",
            );
        }
        let limits = self.batching;
        if !(1..=limits.max_batch).contains(&limits.max_min_queue) {
            return bad("max_min_queue", "from 1 to max_batch");
        }
        if !(self.max_utilisation > 0.0 && self.max_utilisation <= 1.0) {
            return bad("the highest utilisation", "above 0 and at most 1");
        }
        if profile.variants.len() > ModelSet::MAX_VARIANTS {
            return bad("the number of variants", "at most 64");
        }
        if self.prior.shares(self.ranges as usize).is_none() {
            return bad("the prior", "one weight per range, none negative, not all 0");
        }
        self.check_devices()
    }

    /// Checks that the simulator has these devices' latencies.
    pub(super) fn check_speeds(&self) -> Result<(), OptionError> {
        let first = self.devices.first().map(|device| device.speed.to_bits());
        let same = |device: &DeviceSpec| Some(device.speed.to_bits()) == first;
        if self.devices.iter().all(same) {
            Ok(())
        } else {
            Err(OptionError::MixedSpeeds)
        }
    }

    fn check_devices(&self) -> Result<(), OptionError> {
        let mut names = std::collections::BTreeSet::new();
        for spec in &self.devices {
            if !(spec.speed.is_finite() && spec.speed > 0.0) {
                return Err(OptionError::OutOfRange {
                    option: "the speed of a device",
                    needs: "above 0 and finite",
                });
            }
            if !names.insert((&spec.worker, &spec.device)) {
                return Err(OptionError::SameDevice {
                    worker: spec.worker.clone(),
                    device: spec.device.clone(),
                });
            }
        }
        if self.devices.is_empty() {
            return Err(OptionError::OutOfRange {
                option: "the number of devices",
                needs: "at least 1",
            });
        }
        Ok(())
    }
}

/// An invalid option.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OptionError {
    /// A value is outside the allowed range.
    #[error("{option} must be {needs}")]
    OutOfRange {
        /// Name of the option.
        option: &'static str,
        /// The allowed values.
        needs: &'static str,
    },
    /// A device is listed twice.
    #[error("device `{device}` of worker `{worker}` is listed twice")]
    SameDevice {
        /// The worker.
        worker: String,
        /// The device.
        device: String,
    },
    /// The simulator knows one speed.
    #[error(
        "the devices differ in speed, and the simulator knows one; plan for each kind of device apart, or give all the speed of the slowest"
    )]
    MixedSpeeds,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kaskade_policy::plan::{Edge, LoadRange, Wiring};

    fn gears(ends: &[f64]) -> Vec<Gear> {
        let begins = std::iter::once(0.0).chain(ends.iter().copied());
        let ends = ends.iter().copied().map(Some).chain([None]);
        let gear = |(from_qps, to_qps)| Gear {
            name: format!("{from_qps}"),
            load: LoadRange { from_qps, to_qps },
            expected: None,
            wiring: Wiring {
                entry: Edge::to("s"),
                ensemble: Vec::new(),
                stages: Vec::new(),
            },
        };
        begins.zip(ends).map(gear).collect()
    }

    #[test]
    fn measured_time_is_spread_over_the_range_of_its_gear() {
        let measured = |shares: &[f64], qps_max| Prior::measured(&gears(&[50.0]), shares, 4, qps_max);
        let weights = |weights: [f64; 4]| {
            Some(Prior::Measured {
                weights: weights.to_vec(),
            })
        };
        assert_eq!(measured(&[0.8, 0.2], 100.0), weights([0.4, 0.4, 0.1, 0.1]));
        assert_eq!(measured(&[0.5, 0.5], 40.0), weights([0.125, 0.125, 0.125, 0.625]));
        assert_eq!(measured(&[], 100.0), None);
        assert_eq!(measured(&[0.5, f64::NAN], 100.0), None);
    }

    #[test]
    fn the_time_between_batches_is_the_profiles() {
        let slo = Slo::Latency { p95_us: 1_000_000 };
        let mut profile = kaskade_stated::workloads::llama().profile();
        let serving = |profile: &Profile| GearOptions::serving(profile, slo, 1.0, DeviceSpec::fleet(1, 1));
        assert_eq!(serving(&profile).turnaround_us, 0, "not measured");
        profile.turnaround_s = Some(2.5e-4);
        assert_eq!(serving(&profile).turnaround_us, 250);
    }

    proptest! {
        #[test]
        fn no_measured_time_is_lost(
            ends in prop::collection::btree_set(1_u32..1000, 0..6),
            shares in prop::collection::vec(0.01..1.0_f64, 7),
            ranges in 1_usize..40,
            qps_max in 1.0..2000.0_f64,
        ) {
            let ends: Vec<f64> = ends.into_iter().map(f64::from).collect();
            let gears = gears(&ends);
            let shares = &shares[..gears.len()];
            let Some(Prior::Measured { weights }) = Prior::measured(&gears, shares, ranges, qps_max) else {
                panic!("no prior");
            };
            let (before, after): (f64, f64) = (shares.iter().sum(), weights.iter().sum());
            prop_assert!((before - after).abs() < 1e-9 && weights.len() == ranges);
        }
    }
}
