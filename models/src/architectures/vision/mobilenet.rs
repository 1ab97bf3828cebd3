//! `MobileNet` v1 (Howard et al. 2017) with depthwise convolutions, and v2 (Sandler et al. 2018) with inverted
//! residual blocks.

use super::builder::{BatchNorm, Builder, Window};
use super::{Family, divisible};
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Strides of the depthwise convolutions of v1.
const STRIDES: [usize; 13] = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1];
/// Output channels and strides of the blocks of v2; the first block is the stem.
const BLOCKS: [(usize, usize); 17] = [
    (16, 1),
    (24, 2),
    (24, 1),
    (32, 2),
    (32, 1),
    (32, 1),
    (64, 2),
    (64, 1),
    (64, 1),
    (64, 1),
    (96, 1),
    (96, 1),
    (96, 1),
    (160, 2),
    (160, 1),
    (160, 1),
    (320, 1),
];
/// Channels of the first convolution.
const STEM: usize = 32;
/// Channels of the last convolution of v2.
const FEATURES: usize = 1280;

/// `MobileNet` v1.
pub(in crate::architectures) struct MobileNetV1;
/// `MobileNet` v2.
pub(in crate::architectures) struct MobileNetV2;

impl Family for MobileNetV1 {
    const BASE: &'static str = "mobilenet_v1";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig::read(config)?;
        let scaled = |channels: usize| ((channels as f64 * network.multiplier) as usize).max(network.least);
        let at = |index: usize| format!("{}.layer.{index}", Self::BASE);
        let mut channels = STEM;
        let stem = format!("{}.conv_stem", Self::BASE);
        network.convolve(builder, &stem, scaled(channels), [3, 2])?;
        for (index, stride) in STRIDES.into_iter().enumerate() {
            if stride == 2 || index == 0 {
                channels *= 2;
            }
            network.depthwise_convolve(builder, &at(2 * index), stride)?;
            network.convolve(builder, &at(2 * index + 1), scaled(channels), [1, 1])?;
        }
        builder.mean();
        Ok(())
    }
}

impl Family for MobileNetV2 {
    const BASE: &'static str = "mobilenet_v2";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig::read(config)?;
        let divisor = config.optional_size("depth_divisible_by")?.unwrap_or(8);
        let expansion = positive(config, "expand_ratio", 6.0)?;
        if config.optional("output_stride")?.unwrap_or(32) != 32 {
            return Err(config.invalid_value(
                "output_stride",
                "only 32, without dilated convolutions, is supported",
            ));
        }
        let scale = |channels: usize, factor: f64| {
            // Rounds halves to even, as Python does.
            divisible(
                (channels as f64 * factor).round_ties_even(),
                divisor,
                network.least,
            )
        };
        let scaled = |channels: usize| scale(channels, network.multiplier);
        let at = |name: &str| format!("{}.{name}", Self::BASE);
        for (index, (outputs, stride)) in BLOCKS.into_iter().enumerate() {
            let (outputs, inputs) = (scaled(outputs), builder.channels());
            let name = match index.checked_sub(1) {
                None => at("conv_stem"),
                Some(index) => at(&format!("layer.{index}")),
            };
            let expand = format!("{name}.expand_1x1");
            let branch = |builder: &mut Builder<'_, '_, O>| {
                if index > 0 {
                    network.convolve(builder, &expand, scale(inputs, expansion), [1, 1])?;
                } else {
                    let width = scaled(STEM);
                    network.convolve(builder, &format!("{name}.first_conv"), width, [3, 2])?;
                    if !config.optional("first_layer_is_expansion")?.unwrap_or(true) {
                        network.convolve(builder, &expand, width, [1, 1])?;
                    }
                }
                network.depthwise_convolve(builder, &format!("{name}.conv_3x3"), stride)?;
                network.project(builder, &format!("{name}.reduce_1x1"), outputs, [1, 1])
            };
            if index > 0 && stride == 1 && inputs == outputs {
                builder.add(branch, |_| Ok(()))?;
            } else {
                branch(builder)?;
            }
        }
        let fine = config.optional("finegrained_output")?.unwrap_or(true);
        let features = if fine && network.multiplier < 1.0 {
            FEATURES
        } else {
            scaled(FEATURES)
        };
        network.convolve(builder, &at("conv_1x1"), features, [1, 1])?;
        builder.mean();
        Ok(())
    }
}

/// Configuration of both versions.
struct NetworkConfig {
    activation: Activation,
    epsilon: f64,
    /// Width multiplier, and minimum number of channels.
    multiplier: f64,
    least: usize,
    /// Whether padding follows TensorFlow.
    tensorflow: bool,
}

impl NetworkConfig {
    fn read(config: &Config) -> Result<Self, LoadError> {
        Ok(Self {
            activation: activation(config, "hidden_act")?,
            epsilon: epsilon(config, "layer_norm_eps")?,
            multiplier: positive(config, "depth_multiplier", 1.0)?,
            least: config.optional_size("min_depth")?.unwrap_or(8),
            tensorflow: config.optional("tf_padding")?.unwrap_or(true),
        })
    }

    fn window<O: Ops>(&self, builder: &Builder<'_, '_, O>, [kernel, stride]: [usize; 2]) -> Window {
        if self.tensorflow {
            builder.same_window(kernel, stride)
        } else {
            Window::centred(kernel, stride)
        }
    }

    /// Adds a convolution with its batch norm and the activation; `window` is kernel size and stride.
    fn convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        window: [usize; 2],
    ) -> Result<(), LoadError> {
        self.project(builder, name, outputs, window)?;
        builder.activate(self.activation);
        Ok(())
    }

    /// Adds a convolution with its batch norm.
    fn project<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        window: [usize; 2],
    ) -> Result<(), LoadError> {
        let norm = BatchNorm {
            name: &format!("{name}.normalization"),
            epsilon: self.epsilon,
        };
        let window = self.window(builder, window);
        builder.convolve(&format!("{name}.convolution"), Some(norm), outputs, window)
    }

    /// Adds a depthwise convolution with its batch norm and the activation.
    fn depthwise_convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        stride: usize,
    ) -> Result<(), LoadError> {
        let norm = BatchNorm {
            name: &format!("{name}.normalization"),
            epsilon: self.epsilon,
        };
        let window = self.window(builder, [3, stride]);
        builder.depthwise_convolve(&format!("{name}.convolution"), Some(norm), window)?;
        builder.activate(self.activation);
        Ok(())
    }
}

/// Reads a positive factor.
fn positive(config: &Config, key: &str, absent: f64) -> Result<f64, LoadError> {
    let value = config.optional(key)?.unwrap_or(absent);
    if value > 0.0 && value < 1e3 {
        Ok(value)
    } else {
        Err(config.invalid_value(key, "it must be above 0, and below 1000"))
    }
}
