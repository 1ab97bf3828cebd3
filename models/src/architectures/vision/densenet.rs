//! `DenseNet` (Huang et al. 2017, section 3) as built by timm and torchvision: every layer reads the channels of all
//! previous layers.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use crate::checkpoint::timm::DENSENET;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = DENSENET;
/// Epsilon of the norms.
const EPSILON: f64 = 1e-5;
/// Bottleneck width of a layer, in multiples of the growth rate.
const NARROW: usize = 4;

pub(in crate::architectures) struct DenseNet;

impl Family for DenseNet {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.classifier";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.features.{name}", Self::BASE);
        let growth = config.size("growth_rate")?;
        let depths = config.required::<Vec<usize>>("depths")?;
        convolve(
            builder,
            [&at("conv0"), &at("norm0")],
            2 * growth,
            Window::centred(7, 2),
        )?;
        builder.max_pool(Window::centred(3, 2));
        for (stage, depth) in depths.iter().enumerate() {
            for layer in 1..=*depth {
                let name = at(&format!("denseblock{}.denselayer{layer}", stage + 1));
                let part = |part: &str| format!("{name}.{part}");
                builder.append(|builder| {
                    normalise(builder, &part("norm1"))?;
                    let between = NARROW * growth;
                    convolve(
                        builder,
                        [&part("conv1"), &part("norm2")],
                        between,
                        Window::patches(1),
                    )?;
                    builder.convolve_unbiased(&part("conv2"), growth, Window::centred(3, 1))
                })?;
            }
            if stage + 1 < depths.len() {
                let name = at(&format!("transition{}", stage + 1));
                normalise(builder, &format!("{name}.norm"))?;
                let half = builder.channels() / 2;
                builder.convolve_unbiased(&format!("{name}.conv"), half, Window::patches(1))?;
                builder.pool_mean(Window::patches(2));
            }
        }
        normalise(builder, &at("norm5"))?;
        builder.mean();
        Ok(())
    }
}

/// Adds a convolution with a batch norm, and an activation.
fn convolve<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    [name, norm]: [&str; 2],
    outputs: usize,
    window: Window,
) -> Result<(), LoadError> {
    let norm = BatchNorm {
        name: norm,
        epsilon: EPSILON,
    };
    builder.convolve(name, Some(norm), outputs, window)?;
    builder.activate(Activation::Relu);
    Ok(())
}

/// Adds a batch norm without a preceding convolution, and an activation.
fn normalise<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str) -> Result<(), LoadError> {
    builder.normalise_batch(BatchNorm {
        name,
        epsilon: EPSILON,
    })?;
    builder.activate(Activation::Relu);
    Ok(())
}
