//! Profiles shaped like the paper's two workloads, every figure stated (CascadeServe §6.1).
//!
//! The paper prints neither latencies nor accuracies as numbers, and its GPUs and data sets are not available here. The substitutes are
//! in the two tables below: rough figures of such models on such a GPU, and answers drawn from a model of difficulty. Programs
//! that print results based on them print [`StatedWorkload::assumptions`] too.
//!
//! How the answers are drawn: `difficulty`.

use kaskade_simulator::offload::Assumption;
use serde::Serialize;

use crate::difficulty::Difficulty;
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::profile::{BatchCost, Profile, Validation, VariantProfile};

/// A workload whose figures are stated, not measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatedWorkload {
    /// Name of the workload and of its app.
    pub name: String,
    /// The device that the latencies are those of.
    pub device: String,
    /// Memory of a device, bytes.
    pub memory_bytes: u64,
    /// The highest load of the paper's trace, requests/s.
    pub peak_qps: f64,
    /// Peak of the paper's experiment with a low accuracy objective, requests/s.
    pub high_peak_qps: f64,
    /// Batch sizes in the profile.
    pub batches: Vec<u32>,
    /// The family.
    pub variants: Vec<StatedVariant>,
    /// Validation samples.
    pub samples: usize,
    /// Answers to choose from.
    pub classes: u32,
    /// `rho`: how much of what makes a sample hard is hard for all variants, in [0, 1].
    pub shared_difficulty: f64,
    /// `tau`: deviation of the noise through which a variant sees its own margin.
    pub blur: f64,
    /// Seed of the answers.
    pub seed: u64,
}

/// A variant whose figures are stated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatedVariant {
    /// Name of the variant.
    pub name: String,
    /// Number of weights.
    pub parameters: u64,
    /// Milliseconds of a batch, whatever its size: launching kernels, reading weights.
    pub batch_ms: f64,
    /// Milliseconds more for every request in it.
    pub request_ms: f64,
    /// Memory of a replica, bytes.
    pub memory_bytes: u64,
    /// Memory more for every request in a batch, bytes.
    pub request_bytes: u64,
    /// Share of right answers.
    pub accuracy: f64,
}

const MB: u64 = 1_000_000;

fn variant(
    name: &str,
    mega_parameters: u64,
    batch_ms: f64,
    request_ms: f64,
    megabytes: u64,
    request_megabytes: u64,
    accuracy: f64,
) -> StatedVariant {
    StatedVariant {
        name: name.to_owned(),
        parameters: mega_parameters * 1_000_000,
        batch_ms,
        request_ms,
        memory_bytes: megabytes * MB,
        request_bytes: request_megabytes * MB,
        accuracy,
    }
}

/// BERT Tiny to Base on Sentiment-140, one V100 of 32 GB per device.
pub fn bert() -> StatedWorkload {
    StatedWorkload {
        name: "bert".to_owned(),
        device: "stated: NVIDIA V100 32 GB".to_owned(),
        memory_bytes: 32_000 * MB,
        peak_qps: 7_600.0,
        high_peak_qps: 80_000.0,
        batches: vec![1, 2, 4, 8, 16, 32, 64, 128],
        variants: vec![
            variant("tiny", 4, 1.5, 0.008, 500, 1, 0.745),
            variant("mini", 11, 2.8, 0.030, 550, 2, 0.785),
            variant("small", 29, 2.9, 0.105, 650, 4, 0.808),
            variant("medium", 41, 5.4, 0.210, 700, 6, 0.822),
            variant("base", 110, 8.4, 0.700, 1_000, 10, 0.838),
        ],
        samples: 4_000,
        classes: 2,
        shared_difficulty: 0.9,
        blur: 1.0,
        seed: 1,
    }
}

/// `OpenLlama` 3b and Llama-2 7b to 70b, 4-bit, on `HellaSwag`, one V100 of 32 GB per device.
pub fn llama() -> StatedWorkload {
    StatedWorkload {
        name: "llama".to_owned(),
        device: "stated: NVIDIA V100 32 GB".to_owned(),
        memory_bytes: 32_000 * MB,
        peak_qps: 60.0,
        high_peak_qps: 196.0,
        batches: vec![1, 2, 4, 8, 16, 32],
        variants: vec![
            variant("llama-3b", 3_400, 18.0, 6.0, 2_600, 15, 0.490),
            variant("llama-7b", 6_700, 28.0, 13.0, 4_600, 25, 0.571),
            variant("llama-13b", 13_000, 45.0, 24.0, 8_200, 40, 0.601),
            variant("llama-70b", 69_000, 160.0, 130.0, 31_000, 20, 0.648),
        ],
        samples: 4_000,
        classes: 4,
        shared_difficulty: 0.9,
        blur: 1.0,
        seed: 2,
    }
}

impl StatedWorkload {
    /// Everything that was assumed, in words, for print beside results.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let assumption = |what: String, why: &str| Assumption {
            what,
            why: why.to_owned(),
        };
        let mut all: Vec<Assumption> = self
            .variants
            .iter()
            .map(|variant| {
                let StatedVariant {
                    name, batch_ms, request_ms, accuracy, ..
                } = variant;
                let memory = variant.memory_bytes as f64 / 1e9;
                assumption(
                    format!(
                        "{name}: a batch of b takes {batch_ms} + {request_ms} b ms, a replica {memory:.1} GB, accuracy {accuracy}"
                    ),
                    "time per batch from kernel launches and weight reads, per request from arithmetic at half of the V100's peak; \
                     accuracies within the range of the paper's figures",
                )
            })
            .collect();
        all.push(assumption(
            format!(
                "{} validation samples from a model of difficulty: {:.0} % of the variance of a margin is shared by all variants, confidence sees \
                 it through noise of deviation {}",
                self.samples,
                100.0 * self.shared_difficulty,
                self.blur
            ),
            "the data sets and the fine-tuned models are not published; larger variants err mostly where small ones do",
        ));
        if self
            .variants
            .iter()
            .any(|variant| variant.memory_bytes * 10 > self.memory_bytes * 9)
        {
            all.push(assumption(
                format!(
                    "a replica of the largest variant takes one device of {:.0} GB",
                    self.memory_bytes as f64 / 1e9
                ),
                "the paper spreads it over two GPUs; counting one makes large models cheaper, which favours the peers that serve them to all",
            ));
        }
        all
    }

    /// The profile that the figures describe. The same every time.
    pub fn profile(&self) -> Profile {
        let difficulty = Difficulty {
            samples: self.samples,
            classes: self.classes,
            shared: self.shared_difficulty,
            blur: self.blur,
            seed: self.seed,
        };
        let answers = difficulty.answers(self.variants.iter().map(|variant| variant.accuracy));
        let profiled = |(variant, validation): (&StatedVariant, Validation)| VariantProfile {
            parameters: variant.parameters,
            ..VariantProfile::new(
                &variant.name,
                Calibration::uncalibrated(Estimator::MaxSquared),
                self.costs(variant),
                validation,
            )
        };
        let variants = self.variants.iter().zip(answers).map(profiled).collect();
        Profile {
            device: self.device.clone(),
            energy_source: "not stated".to_owned(),
            ..Profile::new(&self.name, Estimator::MaxSquared, variants)
        }
    }

    fn costs(&self, variant: &StatedVariant) -> Vec<BatchCost> {
        let cost = |batch: &u32| BatchCost {
            memory_bytes: Some(variant.memory_bytes + variant.request_bytes * u64::from(*batch)),
            ..BatchCost::new(
                *batch,
                (variant.batch_ms + variant.request_ms * f64::from(*batch)) / 1e3,
            )
        };
        self.batches.iter().map(cost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_are_sound_and_as_stated() {
        for workload in [bert(), llama()] {
            let profile = workload.profile();
            profile.validate().unwrap();
            assert_eq!(profile, workload.profile());
            for (stated, found) in workload.variants.iter().zip(&profile.variants) {
                let right = found.validation.correct.iter().filter(|right| **right).count();
                let accuracy = right as f64 / workload.samples as f64;
                assert!(
                    (accuracy - stated.accuracy).abs() < 1e-3,
                    "{} {accuracy}",
                    stated.name
                );
            }
            assert!(workload.assumptions().len() > workload.variants.len());
        }
    }

    #[test]
    fn confidence_is_calibrated_and_tells_right_from_wrong() {
        let profile = bert().profile();
        for variant in &profile.variants {
            let answers = &variant.validation;
            let pairs = || answers.confidences.iter().zip(&answers.correct);
            let mean = pairs().map(|(confidence, _)| confidence).sum::<f64>() / pairs().count() as f64;
            let right = pairs().filter(|(_, right)| **right).count() as f64 / pairs().count() as f64;
            assert!((mean - right).abs() < 0.02, "{mean} {right}");
            let sure = || pairs().filter(|(confidence, _)| **confidence > 0.9);
            let right_when_sure = sure().filter(|(_, right)| **right).count() as f64 / sure().count() as f64;
            assert!(right_when_sure > right + 0.05 && right_when_sure > 0.9);
        }
    }

    #[test]
    fn variants_err_together() {
        let profile = bert().profile();
        let wrong = |at: usize| profile.variants[at].validation.correct.iter().map(|right| !right);
        let both = wrong(0).zip(wrong(4)).filter(|(a, b)| *a && *b).count() as f64;
        let base = wrong(4).filter(|wrong| *wrong).count() as f64;
        // If they erred independently, tiny would fail a quarter of what base fails.
        assert!(both / base > 0.5, "{}", both / base);
    }
}
