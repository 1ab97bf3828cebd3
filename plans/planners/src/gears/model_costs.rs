//! The family as the gear planner reads it: how long, how large, by index.

use super::model_set::ModelSet;
use super::options::GearOptions;
use super::violation::GearError;
use crate::thresholds::FamilyError;
use kaskade_policy::linear_fit::{batch_latency_s, batch_memory_bytes};
use kaskade_policy::plan::Slo;
use kaskade_policy::profile::{BatchCost, Profile, VariantProfile};

/// Bytes of a weight that was never measured in memory: a 32-bit float.
const BYTES_PER_PARAMETER: u64 = 4;

/// The figures of every variant that planning needs.
#[derive(Debug, Clone)]
pub struct Models {
    models: Vec<Model>,
}

#[derive(Debug, Clone)]
struct Model {
    name: String,
    /// Seconds of one request in a batch of one.
    run_time_s: f64,
    /// Seconds per request in a batch of the working size.
    batched_time_s: f64,
    max_batch: u32,
    memory_bytes: u64,
}

impl Models {
    /// The variants of a profile, in batches of at most `max_batch` that end within `longest_us` (a batch of one may take longer).
    /// The working size is the one of least time per request among those: what a variant can be driven to under load.
    pub(super) fn new(profile: &Profile, max_batch: u32, longest_us: Option<u64>) -> Self {
        let limit_s = longest_us.map_or(f64::INFINITY, |longest| longest as f64 / 1e6);
        let model = |variant: &VariantProfile| {
            let seconds = |batch| {
                let batch_s = batch_latency_s(&variant.costs, batch).unwrap_or(f64::INFINITY);
                batch_s / f64::from(batch)
            };
            let fits = |batch: &u32| *batch == 1 || seconds(*batch) * f64::from(*batch) <= limit_s;
            let batched_time_s = (1..=max_batch)
                .filter(fits)
                .map(seconds)
                .fold(f64::INFINITY, f64::min);
            let max_batch = (1..=max_batch).rev().find(fits).unwrap_or(1);
            Model {
                name: variant.name.clone(),
                run_time_s: seconds(1),
                batched_time_s,
                max_batch,
                memory_bytes: memory(&variant.costs, max_batch)
                    .unwrap_or(variant.parameters * BYTES_PER_PARAMETER),
            }
        };
        Self {
            models: profile.variants.iter().map(model).collect(),
        }
    }

    /// The variants as these options let them run. Under a latency objective a batch lasts at most half of it: a request that
    /// just missed one waits for it, and then for its own.
    pub fn from_profile(profile: &Profile, options: &GearOptions) -> Self {
        let longest_us = match options.slo {
            Slo::Latency { p95_us } => Some(p95_us / 2),
            Slo::Accuracy { .. } => None,
        };
        Self::new(profile, options.batching.max_batch, longest_us)
    }

    /// Checks the profile and the options, and returns the variants as [`from_profile`](Self::from_profile) does.
    ///
    /// # Errors
    /// A [`GearError`] that names what is unusable.
    pub fn checked(profile: &Profile, options: &GearOptions) -> Result<Self, GearError> {
        profile.validate().map_err(FamilyError::from)?;
        options.check(profile)?;
        Ok(Self::from_profile(profile, options))
    }

    /// Number of variants.
    #[expect(clippy::len_without_is_empty, reason = "a profile is never empty")]
    pub fn len(&self) -> usize {
        self.models.len()
    }

    /// The name of a model.
    pub fn name(&self, model: usize) -> &str {
        self.models.get(model).map_or("", |model| model.name.as_str())
    }

    /// Seconds of one request in a batch of one, at speed 1.
    pub fn run_time_s(&self, model: usize) -> f64 {
        self.models
            .get(model)
            .map_or(f64::INFINITY, |model| model.run_time_s)
    }

    /// Seconds per request in a batch of the working size, at speed 1: `t_r` of the load balancer.
    pub fn batched_time_s(&self, model: usize) -> f64 {
        self.models
            .get(model)
            .map_or(f64::INFINITY, |model| model.batched_time_s)
    }

    /// Most requests in a batch.
    pub fn max_batch(&self, model: usize) -> u32 {
        self.models.get(model).map_or(1, |model| model.max_batch)
    }

    /// Memory of a replica at its largest batch, bytes.
    pub fn memory_bytes(&self, model: usize) -> u64 {
        self.models.get(model).map_or(0, |model| model.memory_bytes)
    }

    /// Memory of one replica each of a set, bytes.
    pub fn memory_of(&self, set: ModelSet) -> u64 {
        set.iter().map(|model| self.memory_bytes(model)).sum()
    }
}

/// The most that a batch of at most `max_batch` takes, between measured sizes and beyond them too; `None` if memory was not measured.
fn memory(costs: &[BatchCost], max_batch: u32) -> Option<u64> {
    let within = costs.iter().filter(|cost| cost.batch <= max_batch);
    let measured = within.filter_map(|cost| cost.memory_bytes).max();
    let largest = batch_memory_bytes(costs, max_batch);
    measured.max(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_batch_between_and_beyond_measured_sizes_is_on_their_line() {
        let cost = |(batch, memory_bytes): (u32, Option<u64>)| BatchCost {
            memory_bytes,
            ..BatchCost::new(batch, 0.01)
        };
        let measured =
            [(1, 600), (8, 800), (32, 1_500), (64, 2_600)].map(|(batch, bytes)| cost((batch, Some(bytes))));
        let most = |batch| memory(&measured, batch).unwrap();
        assert_eq!([1, 8, 50, 64].map(most), [600, 800, 2_119, 2_600]);
        assert!(most(128) > 4_000);
        // How the memory of one size grows is unknown.
        let one = [cost((1, None)), cost((8, Some(800)))];
        assert_eq!([1, 32].map(|batch| memory(&one, batch)), [Some(800), Some(800)]);
        assert_eq!(memory(&one[..1], 8), None);
    }
}
