//! `RepVGG` (Ding et al. 2021) as built by timm: each convolution is the sum of a 3x3 convolution, a 1x1 convolution
//! and the identity, each with a batch norm (section 3.3).

use super::Family;
use super::builder::{BatchNorm, Builder, Window, by_pixel};
use crate::checkpoint::timm::REPVGG;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = REPVGG;
/// Epsilon of the batch norms.
const EPSILON: f64 = 1e-5;
/// Kernel size, pixels, and the index of its centre pixel.
const KERNEL: usize = 3;
const CENTRE: usize = 4;

pub(in crate::architectures) struct RepVgg;

impl Family for RepVgg {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.head.fc";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let (widths, depths) = super::stages(config, "hidden_sizes")?;
        builder.add_branches(&format!("{}.stem", Self::BASE), config.size("stem_size")?, 2)?;
        for (stage, (width, depth)) in widths.iter().zip(&depths).enumerate() {
            for block in 0..*depth {
                let name = format!("{}.stages.{stage}.{block}", Self::BASE);
                builder.add_branches(&name, *width, if block == 0 { 2 } else { 1 })?;
            }
        }
        builder.mean();
        Ok(())
    }
}

impl<O: Ops> Builder<'_, '_, O> {
    /// Adds the sum of the branches of a block as one convolution.
    fn add_branches(&mut self, name: &str, outputs: usize, stride: usize) -> Result<(), LoadError> {
        let inputs = self.channels();
        let mut branch = |part: &str, kernel: usize| {
            let norm = format!("{name}.{part}.bn");
            let norm = BatchNorm {
                name: &norm,
                epsilon: EPSILON,
            };
            let shape = [outputs, inputs, kernel, kernel];
            self.weight(&format!("{name}.{part}.conv"), Some(norm), &shape)
        };
        let (mut weight, mut bias) = branch("conv_kxk", KERNEL)?;
        let (of_pixel, shifts) = branch("conv_1x1", 1)?;
        add(&mut bias, &shifts);
        let centres = weight.iter_mut().skip(CENTRE).step_by(KERNEL * KERNEL);
        for (centre, own) in centres.zip(&of_pixel) {
            *centre += own;
        }
        if inputs == outputs && stride == 1 {
            let (factors, shifts) = self.scales(&BatchNorm {
                name: &format!("{name}.identity"),
                epsilon: EPSILON,
            })?;
            add(&mut bias, &shifts);
            let centres = weight.iter_mut().skip(CENTRE).step_by(KERNEL * KERNEL);
            // Centre weights from each channel to itself.
            for (centre, factor) in centres.step_by(inputs + 1).zip(&factors) {
                *centre += factor;
            }
        }
        let (weight, rows) = by_pixel(weight, outputs, KERNEL);
        let linear = self.layers().upload_folded(weight, bias, rows, outputs);
        self.convolve_by(linear, outputs, Window::centred(KERNEL, stride));
        self.activate(Activation::Relu);
        Ok(())
    }

    /// Takes a batch norm as scale and shift per channel.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn scales(&mut self, norm: &BatchNorm<'_>) -> Result<(Vec<f32>, Vec<f32>), LoadError> {
        let channels = self.channels();
        let weights = &mut *self.layers().weights;
        let mut part = |part: &str| weights.take(&format!("{}.{part}", norm.name), &[channels]);
        let (gamma, beta) = (part("weight")?, part("bias")?);
        let (mean, variance) = (part("running_mean")?, part("running_var")?);
        let factors = gamma.iter().zip(&variance);
        let factors =
            factors.map(|(gamma, variance)| f64::from(*gamma) / (f64::from(*variance) + norm.epsilon).sqrt());
        let factors: Vec<f64> = factors.collect();
        let shifts = beta.iter().zip(mean.iter().zip(&factors));
        let shifts =
            shifts.map(|(beta, (mean, factor))| (f64::from(*beta) - f64::from(*mean) * factor) as f32);
        Ok((
            factors.iter().map(|factor| *factor as f32).collect(),
            shifts.collect(),
        ))
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}
