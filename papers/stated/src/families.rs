//! Profiles shaped like the paper's three families, every figure stated (HybridServe §VI, Tables II to IV).
//!
//! Parameters and accuracies are the paper's. It prints neither latencies nor energies of single models, and its devices and data
//! sets are not here: those follow from parameters and arithmetic on the data sheet of its GPU, an NVIDIA T4, and the answers are drawn
//! from a model of difficulty ([`crate::workloads`] has the same). Programs that print results based on them print
//! [`StatedFamily::assumptions`] beside it.
//!
//! A batch of `b` takes `gap + read + b compute` seconds: launching the kernels of every layer, during which the device waits; reading
//! the weights once; two operations per weight and token. Kernels run in the last two parts, so the kernel utilisation of a batch is
//! their share. Energy is idle power all the time, and what comes on top while kernels run.

use std::collections::BTreeMap;

use serde::Serialize;

pub use crate::Assumption;
use crate::difficulty::Difficulty;
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::profile::{BatchCost, Profile, Validation, VariantProfile};

/// A device whose figures are stated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatedDevice {
    /// Name.
    pub name: String,
    /// Memory for models, bytes.
    pub memory_bytes: u64,
    /// Operations per second that are reached.
    pub flops: f64,
    /// Bytes per second at which weights are read.
    pub bandwidth: f64,
    /// Seconds per layer in which kernels are launched and none runs.
    pub gap_s: f64,
    /// Power of a device that hosts models, watts.
    pub idle_watts: f64,
    /// Power that comes on top while kernels run, watts.
    pub active_watts: f64,
    /// Power of a device that hosts nothing, watts.
    pub spare_watts: f64,
}

/// Seeds of second draws are this much larger.
const SECOND_DRAW: u64 = 1_000;

/// The T4 of the paper's 12 servers.
pub fn t4() -> StatedDevice {
    StatedDevice {
        name: "stated: NVIDIA T4 16 GB".to_owned(),
        memory_bytes: 15_000_000_000,
        flops: 4.05e12,
        bandwidth: 256e9,
        gap_s: 0.15e-3,
        idle_watts: 26.0,
        active_watts: 44.0,
        spare_watts: 10.0,
    }
}

/// A family whose figures are stated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatedFamily {
    /// Name of the family and of its app.
    pub name: String,
    /// Device of the family.
    pub device: StatedDevice,
    /// The models, smallest first.
    pub models: Vec<StatedModel>,
    /// Tokens of a request.
    pub tokens: u32,
    /// Operations per weight and request.
    pub operations: f64,
    /// Why it is that many.
    pub why: String,
    /// Bytes of a request from model to model.
    pub request_bytes: f64,
    /// Batch sizes in the profile.
    pub batches: Vec<u32>,
    /// Validation samples.
    pub samples: usize,
    /// Answers to choose from.
    pub classes: u32,
    /// How much of what makes a sample hard is hard for all models, in [0, 1].
    pub shared_difficulty: f64,
    /// Deviation of the noise through which a model sees its own margin.
    pub blur: f64,
    /// Seed of the answers.
    pub seed: u64,
}

/// A model whose figures are stated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatedModel {
    /// Name of the model, in the paper's notation.
    pub name: String,
    /// Number of weights (Table II).
    pub parameters: u64,
    /// Share of right answers (Table II).
    pub accuracy: f64,
    /// Layers, over encoder and decoder.
    pub layers: u32,
    /// Length of a token's hidden state.
    pub width: u32,
}

/// Bytes of a weight and of an activation: 32-bit floats.
const BYTES: f64 = 4.0;

/// Activations of a token that are held at once, as multiples of its hidden state.
const HELD: f64 = 20.0;

fn model(name: &str, millions: u64, accuracy: f64, layers: u32, width: u32) -> StatedModel {
    StatedModel {
        name: name.to_owned(),
        parameters: millions * 1_000_000,
        accuracy,
        layers,
        width,
    }
}

/// T5 small to XL on GLUE.
pub fn t5() -> StatedFamily {
    StatedFamily {
        name: "t5".to_owned(),
        device: t4(),
        models: vec![
            model("T5-S", 60, 0.782, 16, 512),
            model("T5-M", 220, 0.842, 24, 768),
            model("T5-L", 770, 0.871, 48, 1_024),
            model("T5-XL", 3_000, 0.905, 48, 2_048),
        ],
        tokens: 128,
        operations: 132.0,
        why: "half of the weights see the 128 tokens of the input, the other half 4 of the answer".to_owned(),
        request_bytes: 512.0,
        batches: vec![1, 2, 4, 8, 16, 32],
        samples: 4_000,
        classes: 2,
        shared_difficulty: 0.9,
        blur: 1.1,
        seed: 5,
    }
}

/// GPT-2 and GPT-J on LAMBADA.
pub fn gpt() -> StatedFamily {
    StatedFamily {
        name: "gpt".to_owned(),
        device: t4(),
        models: vec![
            model("GPT-XS", 86, 0.236, 6, 768),
            model("GPT-S", 124, 0.311, 12, 768),
            model("GPT-M", 345, 0.344, 24, 1_024),
            model("GPT-L", 774, 0.354, 36, 1_280),
            model("GPT-XL", 1_558, 0.369, 48, 1_600),
            model("GPT-XXL", 6_700, 0.423, 28, 4_096),
        ],
        tokens: 80,
        operations: 160.0,
        why: "every weight sees the 80 tokens of the context".to_owned(),
        request_bytes: 320.0,
        batches: vec![1, 2, 4, 8, 16, 32],
        samples: 4_000,
        classes: 50_257,
        shared_difficulty: 0.9,
        blur: 1.0,
        seed: 6,
    }
}

/// The GPT family with eight models, as many as in the paper (§IV-C): two are put in where the steps between sizes are the
/// widest, with accuracies between their neighbours'.
pub fn gpt_of_eight() -> StatedFamily {
    let mut family = StatedFamily {
        name: "gpt-8".to_owned(),
        ..gpt()
    };
    family.models.insert(5, model("GPT-2XL", 3_200, 0.396, 32, 2_560));
    family.models.insert(3, model("GPT-ML", 516, 0.349, 30, 1_152));
    family
}

/// `ViT` tiny to large on `ImageNet`.
pub fn vit() -> StatedFamily {
    StatedFamily {
        name: "vit".to_owned(),
        device: t4(),
        models: vec![
            model("ViT-XS", 12, 0.748, 12, 192),
            model("ViT-S", 45, 0.808, 12, 384),
            model("ViT-M", 86, 0.812, 12, 768),
            model("ViT-L", 307, 0.823, 24, 1_024),
        ],
        tokens: 197,
        operations: 394.0,
        why: "every weight sees the 197 tokens of an image".to_owned(),
        request_bytes: 602_112.0,
        batches: vec![1, 2, 4, 8, 16, 32],
        samples: 4_000,
        classes: 1_000,
        shared_difficulty: 0.9,
        blur: 2.5,
        seed: 7,
    }
}

impl StatedFamily {
    /// Everything that was assumed, in words, for print beside results.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let device = &self.device;
        let assumption = |what: String, why: &str| Assumption {
            what,
            why: why.to_owned(),
        };
        let mut all = vec![
            assumption(
                format!(
                    "{}: {:.0} GB for models, {:.2} TFLOP/s, {:.0} GB/s, {:.2} ms per layer to launch kernels",
                    device.name,
                    device.memory_bytes as f64 / 1e9,
                    device.flops / 1e12,
                    device.bandwidth / 1e9,
                    device.gap_s * 1e3
                ),
                "half of the data sheet's 8.1 TFLOP/s in 32-bit floats, four fifths of its 320 GB/s, one GB for the runtime; the paper names no \
                 half precision",
            ),
            assumption(
                format!(
                    "{} W while models are loaded, {} W more while kernels run, {} W where nothing is loaded",
                    device.idle_watts, device.active_watts, device.spare_watts
                ),
                "the data sheet's 70 W at the most; the idle figures are usual readings of such a card",
            ),
            assumption(
                format!(
                    "{}: {} operations per weight and request",
                    self.name, self.operations
                ),
                &self.why,
            ),
            assumption(
                format!(
                    "{} answers of each model from a model of difficulty: {:.0} % of the variance of a margin is shared by all, confidence sees it \
                     through noise of deviation {}",
                    self.samples,
                    100.0 * self.shared_difficulty,
                    self.blur
                ),
                "set so that the largest model answers about the share of Table III under AP; the paper's answers are not published",
            ),
        ];
        all.extend(self.models.iter().map(|model| {
            let (gap, read, compute) = self.seconds(model);
            assumption(
                format!(
                    "{}: a batch of b takes {:.1} + {:.1} + {:.2} b ms (launch, weights, arithmetic), {:.1} GB, accuracy {}",
                    model.name,
                    gap * 1e3,
                    read * 1e3,
                    compute * 1e3,
                    self.memory(model, 1) / 1e9,
                    model.accuracy
                ),
                "parameters and accuracy from Table II, the rest from them",
            )
        }));
        all
    }

    /// Seconds of a batch to launch kernels and to read the weights, and of each request in it.
    fn seconds(&self, model: &StatedModel) -> (f64, f64, f64) {
        let (device, weights) = (&self.device, model.parameters as f64);
        (
            f64::from(model.layers) * device.gap_s,
            weights * BYTES / device.bandwidth,
            weights * self.operations / device.flops,
        )
    }

    fn memory(&self, model: &StatedModel, batch: u32) -> f64 {
        let state = f64::from(self.tokens) * f64::from(model.width) * BYTES;
        model.parameters as f64 * BYTES + f64::from(batch) * state * HELD
    }

    /// Returns the bytes that a request carries from partition to partition, by model: a hidden state per token.
    pub fn hidden_bytes(&self) -> BTreeMap<String, f64> {
        let bytes = |model: &StatedModel| f64::from(self.tokens) * f64::from(model.width) * BYTES;
        let named = self.models.iter().map(|model| (model.name.clone(), bytes(model)));
        named.collect()
    }

    /// The layers of each model.
    pub fn layers(&self) -> BTreeMap<String, u32> {
        let named = self.models.iter().map(|model| (model.name.clone(), model.layers));
        named.collect()
    }

    /// The profile of a second draw of answers of the same models, independent of [`profile`](Self::profile): what was chosen on one is
    /// judged on the other.
    pub fn second_draw(&self) -> Profile {
        let other = Self {
            seed: self.seed + SECOND_DRAW,
            ..self.clone()
        };
        other.profile()
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
        let answers = difficulty.answers(self.models.iter().map(|model| model.accuracy));
        let profiled = |(model, validation): (&StatedModel, Validation)| VariantProfile {
            parameters: model.parameters,
            ..VariantProfile::new(
                &model.name,
                Calibration::uncalibrated(Estimator::MaxSquared),
                self.batches
                    .iter()
                    .map(|batch| self.cost(model, *batch))
                    .collect(),
                validation,
            )
        };
        let variants = self.models.iter().zip(answers).map(profiled).collect();
        Profile {
            device: self.device.name.clone(),
            energy_source: format!(
                "stated: {} W idle + {} W while kernels run",
                self.device.idle_watts, self.device.active_watts
            ),
            ..Profile::new(&self.name, Estimator::MaxSquared, variants)
        }
    }

    fn cost(&self, model: &StatedModel, batch: u32) -> BatchCost {
        let (gap, read, compute) = self.seconds(model);
        let kernel = read + f64::from(batch) * compute;
        let latency_s = gap + kernel;
        BatchCost {
            energy_j: Some(latency_s * self.device.idle_watts + kernel * self.device.active_watts),
            memory_bytes: Some(self.memory(model, batch) as u64),
            utilisation: Some(kernel / latency_s),
            ..BatchCost::new(batch, latency_s)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_are_sound_and_as_stated() {
        for family in [t5(), gpt(), gpt_of_eight(), vit()] {
            let profile = family.profile();
            profile.validate().unwrap();
            assert_eq!(profile, family.profile());
            for (stated, found) in family.models.iter().zip(&profile.variants) {
                let right = found.validation.correct.iter().filter(|right| **right).count();
                let accuracy = right as f64 / family.samples as f64;
                assert!(
                    (accuracy - stated.accuracy).abs() < 1e-3,
                    "{} {accuracy}",
                    stated.name
                );
            }
            assert!(family.assumptions().len() > family.models.len());
        }
    }

    #[test]
    fn a_second_draw_has_the_same_models_and_other_answers() {
        let (first, second) = (vit().profile(), vit().second_draw());
        second.validate().unwrap();
        for (first, second) in first.variants.iter().zip(&second.variants) {
            assert_eq!((&first.name, &first.costs), (&second.name, &second.costs));
            let right = |profile: &VariantProfile| {
                profile.validation.correct.iter().filter(|right| **right).count() as f64
            };
            assert!((right(first) - right(second)).abs() <= 0.01 * right(first));
            assert_ne!(first.validation, second.validation);
        }
    }

    #[test]
    fn larger_models_take_more_of_everything_but_launches() {
        for family in [t5(), gpt(), gpt_of_eight(), vit()] {
            let profile = family.profile();
            for pair in profile.variants.windows(2) {
                let (small, large) = (&pair[0].costs[0], &pair[1].costs[0]);
                assert!(small.latency_s < large.latency_s && small.memory_bytes < large.memory_bytes);
                assert!(small.energy_j < large.energy_j);
            }
        }
    }

    #[test]
    fn only_the_largest_of_gpt_fits_no_single_device() {
        let memory = t4().memory_bytes;
        let too_large = |family: &StatedFamily| {
            let profile = family.profile();
            let large = profile.variants.into_iter();
            let large = large.filter(|variant| variant.costs[0].memory_bytes > Some(memory));
            large.map(|variant| variant.name).collect::<Vec<_>>()
        };
        assert_eq!(too_large(&gpt()), ["GPT-XXL"]);
        assert!(too_large(&t5()).is_empty() && too_large(&vit()).is_empty());
    }
}
