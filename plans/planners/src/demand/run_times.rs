//! Run times as workers measure them, in place of the profiled ones.
//!
//! A profile is of one machine on one day. Where batches take longer, budgets by the profile are too tight and workers that are planned
//! to keep up do not; if they take less, accuracy is lost. The workers report how long their batches took, and the profiled
//! latencies of a variant are all scaled by the ratio to the profile for batches of that size. A variant that has
//! not run takes the common scale of those that have: usually the whole machine is slower, and a plan that moved to
//! variants that have not run, because only they seem fast, would fail once for each of them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kaskade_policy::demand::RunCounts;
use kaskade_policy::pipeline::{BatchLatency, Pipeline, TaskVariant};
use kaskade_policy::profile::{Profile, VariantProfile};
use kaskade_policy::run_time::OUTLIER;

/// How measured run times replace the profiled ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunTimeOptions {
    /// Batches of a variant before its measured run times are used; until then, the profiled ones are scaled as those of the
    /// other variants were.
    pub min_batches: u64,
    /// Weight of measurements from before the last allocation, in [0, 1).
    pub decay: f64,
    /// Relative difference from the planned run times that triggers planning at once; smaller differences are noise.
    pub change: f64,
}

impl Default for RunTimeOptions {
    fn default() -> Self {
        Self {
            min_batches: 20,
            decay: 0.5,
            change: 0.25,
        }
    }
}

/// The workers' reports, beside the profile.
#[derive(Debug, Clone)]
pub struct RunTimeEstimator {
    options: RunTimeOptions,
    /// Measurements of each variant.
    variants: BTreeMap<String, Measured>,
}

#[derive(Debug, Clone)]
struct Measured {
    profiled: TaskVariant,
    batches: f64,
    busy_us: f64,
    /// Time of the same batches by the profile, microseconds.
    profiled_us: f64,
    /// Factor of the profile in the plans.
    planned: f64,
    /// Whether it has run enough batches for an estimate of its own scale.
    has_own_scale: bool,
}

impl RunTimeEstimator {
    /// Creates the estimator of a pipeline as it was profiled.
    pub fn new(pipeline: &Pipeline, options: RunTimeOptions) -> Self {
        let variants = pipeline.tasks.iter().flat_map(|task| &task.variants);
        Self::of(variants.cloned(), options)
    }

    /// Creates the estimator of a family as it was profiled.
    pub fn of_profile(profile: &Profile, options: RunTimeOptions) -> Self {
        Self::of(profile.variants.iter().map(in_batches), options)
    }

    fn of(variants: impl Iterator<Item = TaskVariant>, options: RunTimeOptions) -> Self {
        let measured = |profiled: TaskVariant| Measured {
            profiled,
            batches: 0.0,
            busy_us: 0.0,
            profiled_us: 0.0,
            planned: 1.0,
            has_own_scale: false,
        };
        Self {
            options,
            variants: variants
                .map(|variant| (variant.name.clone(), measured(variant)))
                .collect(),
        }
    }

    /// Returns the factor on the profiled run times of a variant in plans; 1 for an unknown variant.
    fn scale(&self, variant: &str) -> f64 {
        self.variants
            .get(variant)
            .map_or(1.0, |measured| measured.planned)
    }

    /// Notes what a variant has run since the last report.
    pub fn record(&mut self, variant: &str, ran: RunCounts) {
        if let Some(measured) = self.variants.get_mut(variant).filter(|_| ran.batches > 0) {
            measured.note(ran);
            measured.has_own_scale |= measured.is_enough(&self.options);
        }
    }

    /// Returns the common factor on the profiles, over all variants that have run enough.
    fn common(&self) -> Option<f64> {
        let enough = self
            .variants
            .values()
            .filter(|measured| measured.is_enough(&self.options));
        let (busy_us, profiled_us) = enough.fold((0.0, 0.0), |sum, measured| {
            (sum.0 + measured.busy_us, sum.1 + measured.profiled_us)
        });
        Some(busy_us / profiled_us).filter(|scale| scale.is_finite() && *scale > 0.0)
    }

    /// Whether any variant's run times have changed enough to plan again.
    pub(crate) fn has_changed(&self) -> bool {
        let common = self.common();
        let mut variants = self.variants.values();
        variants.any(|measured| measured.news(common, &self.options).is_some())
    }

    /// Applies the measurements to a pipeline, and returns whether anything changed significantly.
    pub fn apply(&mut self, pipeline: &mut Pipeline) -> bool {
        let changed = self.learn();
        for variant in pipeline.tasks.iter_mut().flat_map(|task| &mut task.variants) {
            if let Some(measured) = self.variants.get(&variant.name) {
                variant.latency = measured.planned_latency();
            }
        }
        changed
    }

    /// Returns a family's profile with the measured run times, and whether anything changed significantly since the last call. `profile` is
    /// the one that the estimator was created from.
    ///
    /// The latencies of a variant are all scaled alike; their spread, energy and memory stay as profiled.
    pub fn corrected(&mut self, profile: &Profile) -> (Profile, bool) {
        let changed = self.learn();
        let mut corrected = profile.clone();
        for variant in &mut corrected.variants {
            let scale = self.scale(&variant.name);
            for cost in &mut variant.costs {
                cost.latency_s *= scale;
            }
        }
        (corrected, changed)
    }

    /// Takes the measurements over into the planned scales, and forgets a part of them.
    fn learn(&mut self) -> bool {
        let (mut changed, common) = (false, self.common());
        for measured in self.variants.values_mut() {
            if let Some(scale) = measured.news(common, &self.options) {
                measured.planned = scale;
                changed = true;
            }
        }
        for measured in self.variants.values_mut() {
            measured.batches *= self.options.decay;
            measured.busy_us *= self.options.decay;
            measured.profiled_us *= self.options.decay;
        }
        changed
    }
}

impl Measured {
    fn note(&mut self, ran: RunCounts) {
        let batches = ran.batches as f64;
        let Some(profiled_us) = latency_us(&self.profiled, ran.requests as f64 / batches) else {
            return;
        };
        let profiled_us = batches * profiled_us;
        self.batches += batches;
        self.profiled_us += profiled_us;
        // A model that fails at once says as little of its run time as a process that was stopped.
        let planned_us = self.planned * profiled_us;
        self.busy_us += (ran.busy_us as f64).clamp(planned_us / OUTLIER, planned_us * OUTLIER);
    }

    fn is_enough(&self, options: &RunTimeOptions) -> bool {
        self.batches >= options.min_batches.max(1) as f64
    }

    /// The new factor of the profile if it differs from the planned one; `common` for a variant that has not run enough.
    fn news(&self, common: Option<f64>, options: &RunTimeOptions) -> Option<f64> {
        let scale = if self.is_enough(options) {
            Some(self.busy_us / self.profiled_us)
        } else {
            common.filter(|_| !self.has_own_scale)
        };
        let differs = |scale: f64| (scale - self.planned).abs() > options.change * self.planned;
        scale.filter(|scale| scale.is_finite() && *scale > 0.0 && differs(*scale))
    }

    fn planned_latency(&self) -> Vec<BatchLatency> {
        let scaled = |sample: &BatchLatency| BatchLatency {
            us: sample.us * self.planned,
            ..*sample
        };
        self.profiled.latency.iter().map(scaled).collect()
    }
}

/// A variant of a family as one of a pipeline's: what counts here is how long its batches take.
fn in_batches(variant: &VariantProfile) -> TaskVariant {
    let samples = variant.costs.iter().map(|cost| BatchLatency {
        batch: cost.batch,
        us: cost.latency_s * 1e6,
    });
    TaskVariant {
        name: variant.name.clone(),
        checkpoint: variant.checkpoint.clone(),
        accuracy: 1.0,
        latency: samples.collect(),
        multiplicative_factor: 1.0,
        branch_ratios: BTreeMap::new(),
    }
}

/// Returns the latency for a mean batch size, interpolated linearly between two sizes, microseconds.
fn latency_us(variant: &TaskVariant, batch: f64) -> Option<f64> {
    let (below, above) = (
        variant.latency_us(batch.floor() as u32)?,
        variant.latency_us(batch.ceil() as u32)?,
    );
    Some(below + batch.fract() * (above - below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaskade_stated::pipelines::stated;

    const VARIANT: &str = "detect-x";

    fn estimator() -> RunTimeEstimator {
        RunTimeEstimator::new(&stated(), RunTimeOptions::default())
    }

    fn latencies(pipeline: &Pipeline, name: &str) -> Vec<f64> {
        let (task, variant) = pipeline.variant(name).unwrap();
        let latency = &pipeline.tasks[task].variants[variant].latency;
        latency.iter().map(|sample| sample.us).collect()
    }

    fn ran(batches: u64, times: f64) -> RunCounts {
        ran_of(VARIANT, batches, times)
    }

    /// Batches of one that take this many times what was profiled.
    fn ran_of(name: &str, batches: u64, times: f64) -> RunCounts {
        let one = latencies(&stated(), name)[0];
        RunCounts {
            batches,
            requests: batches,
            busy_us: (batches as f64 * one * times) as u64,
        }
    }

    /// Run times of a variant in a pipeline, as multiples of the profiled ones.
    fn scales(pipeline: &Pipeline, name: &str) -> Vec<f64> {
        let (now, profiled) = (latencies(pipeline, name), latencies(&stated(), name));
        now.iter()
            .zip(profiled)
            .map(|(now, profiled)| now / profiled)
            .collect()
    }

    fn are(scales: &[f64], wanted: f64) -> bool {
        scales.iter().all(|scale| (scale - wanted).abs() < 0.01 * wanted)
    }

    #[test]
    fn a_slower_machine_scales_all_sizes_alike_and_variants_that_have_not_run_too() {
        let (mut estimator, mut pipeline) = (estimator(), stated());
        estimator.record(VARIANT, ran(40, 2.5));
        assert!(estimator.has_changed() && estimator.apply(&mut pipeline));
        let names: Vec<String> = estimator.variants.keys().cloned().collect();
        assert!(names.len() > 2);
        for name in &names {
            assert!(are(&scales(&pipeline, name), 2.5), "{name}");
        }
        assert!(!estimator.has_changed(), "it is planned with now");
    }

    #[test]
    fn a_family_is_corrected_by_the_same_measurements_as_a_pipeline() {
        let profile = stated().profile();
        let mut estimator = RunTimeEstimator::of_profile(&profile, RunTimeOptions::default());
        estimator.record(VARIANT, ran(19, 2.5));
        assert_eq!(
            estimator.corrected(&profile),
            (profile.clone(), false),
            "too few batches"
        );
        estimator.record(VARIANT, ran(40, 2.5));
        let (corrected, changed) = estimator.corrected(&profile);
        assert!(changed && corrected.variants.len() == profile.variants.len());
        for (now, before) in corrected.variants.iter().zip(&profile.variants) {
            for (now, before) in now.costs.iter().zip(&before.costs) {
                assert!((now.latency_s / before.latency_s - 2.5).abs() < 0.03);
                assert_eq!(
                    (now.energy_j, now.memory_bytes),
                    (before.energy_j, before.memory_bytes)
                );
            }
        }
        assert!(!estimator.corrected(&profile).1, "it is planned with now");
    }

    #[test]
    fn a_variant_that_has_run_speaks_for_itself_even_long_after() {
        let (mut estimator, mut pipeline) = (estimator(), stated());
        let other = estimator
            .variants
            .keys()
            .find(|name| *name != VARIANT)
            .cloned()
            .unwrap();
        estimator.record(&other, ran_of(&other, 100, 1.0));
        estimator.apply(&mut pipeline);
        for _ in 0..10 {
            estimator.record(VARIANT, ran(100, 3.0));
            estimator.apply(&mut pipeline);
        }
        assert!(are(&scales(&pipeline, VARIANT), 3.0));
        assert!(
            are(&scales(&pipeline, &other), 1.0),
            "its batches are forgotten, their estimate is kept"
        );
    }

    #[test]
    fn few_batches_noise_and_strangers_change_nothing() {
        let (mut estimator, mut pipeline) = (estimator(), stated());
        estimator.record(VARIANT, ran(19, 2.5));
        estimator.record("unknown", ran(100, 2.5));
        estimator.record(VARIANT, RunCounts::default());
        assert!(!estimator.has_changed() && !estimator.apply(&mut pipeline));
        let mut estimator = self::estimator();
        estimator.record(VARIANT, ran(100, 1.2));
        assert!(!estimator.apply(&mut pipeline));
        assert_eq!(pipeline, stated());
    }

    #[test]
    fn what_was_slow_and_is_no_more_is_believed_again() {
        let (mut estimator, mut pipeline) = (estimator(), stated());
        estimator.record(VARIANT, ran(100, 3.0));
        assert!(estimator.apply(&mut pipeline));
        for _ in 0..6 {
            estimator.record(VARIANT, ran(100, 1.0));
            estimator.apply(&mut pipeline);
        }
        let now = scales(&pipeline, VARIANT)[0];
        assert!((now - 1.0).abs() < 0.25, "{now}");
    }

    #[test]
    fn a_process_that_was_stopped_says_nothing_of_its_model() {
        let (mut estimator, mut pipeline) = (estimator(), stated());
        estimator.record(VARIANT, ran(100, 1.0));
        estimator.record(VARIANT, ran(1, 10_000.0));
        assert!(!estimator.apply(&mut pipeline));
    }

    /// Batches that failed at once made the variant seem free, and scaled those that had not run likewise.
    #[test]
    fn batches_that_end_at_once_make_no_variant_free() {
        let (mut estimator, mut pipeline) = (estimator(), stated());
        estimator.record(VARIANT, ran(1_000, 1e-4));
        estimator.apply(&mut pipeline);
        for name in estimator.variants.keys() {
            assert!(are(&scales(&pipeline, name), 1.0 / OUTLIER), "{name}");
        }
    }

    #[test]
    fn batches_between_two_profiled_sizes_are_expected_between_them() {
        let mut estimator = estimator();
        let (task, variant) = stated().variant(VARIANT).unwrap();
        let variant = stated().tasks[task].variants[variant].clone();
        let busy: f64 = [1, 2, 2]
            .iter()
            .map(|batch| variant.latency_us(*batch).unwrap())
            .sum();
        let ran = RunCounts {
            batches: 60,
            requests: 100,
            busy_us: (20.0 * busy) as u64,
        };
        estimator.record(VARIANT, ran);
        let measured = &estimator.variants[VARIANT];
        assert!((measured.busy_us / measured.profiled_us - 1.0).abs() < 1e-3);
    }
}
