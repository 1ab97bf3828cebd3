//! `EfficientNet` (Tan and Le 2019): the blocks of `MobileNet` v2 with squeeze-and-excitation, scaled in width and
//! depth.

use super::builder::{BatchNorm, Builder, Window};
use super::{Family, divisible};
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Channels of the first and the last convolution, before scaling.
const STEM: usize = 32;
const FEATURES: usize = 1280;
/// Maximum width and depth multiplier; the largest model has 4 and 5.3.
const MAX_FACTOR: f64 = 64.0;

pub(in crate::architectures) struct EfficientNet;

impl Family for EfficientNet {
    const BASE: &'static str = "efficientnet";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig::read(config)?;
        let at = |name: &str| format!("{}.{name}", Self::BASE);
        let below = Window {
            kernel: 3,
            stride: 2,
            border: [0, 0, 1, 1],
        };
        let stem = at("embeddings");
        network.convolve(
            builder,
            [&format!("{stem}.convolution"), &format!("{stem}.batchnorm")],
            network.scaled(STEM),
            below,
        )?;
        builder.activate(network.activation);
        let mut index = 0;
        for stage in &network.stages {
            for repeat in 0..stage.depth {
                let block = Block {
                    name: at(&format!("encoder.blocks.{index}")),
                    stage,
                    stride: if repeat == 0 { stage.stride } else { 1 },
                    adds: repeat > 0,
                    even: network.even_borders.contains(&index),
                };
                block.add(builder, &network)?;
                index += 1;
            }
        }
        let [convolution, norm] = ["encoder.top_conv", "encoder.top_bn"].map(at);
        network.convolve(
            builder,
            [&convolution, &norm],
            network.scaled(FEATURES),
            Window::centred(1, 1),
        )?;
        builder.activate(network.activation);
        if network.pools_largest {
            builder.largest();
        } else {
            builder.mean();
        }
        Ok(())
    }
}

/// Configuration of a network.
struct NetworkConfig {
    activation: Activation,
    epsilon: f64,
    /// Width multiplier, and divisor of numbers of channels.
    width: f64,
    divisor: usize,
    /// Squeeze ratio, relative to a block's input channels.
    squeeze: f64,
    stages: Vec<Stage>,
    /// Blocks of stride 2 with symmetric padding.
    even_borders: Vec<usize>,
    pools_largest: bool,
}

/// Consecutive blocks of the same size.
struct Stage {
    /// Input channels of the first block, and output channels of all blocks.
    inputs: usize,
    outputs: usize,
    kernel: usize,
    /// Stride of the first block.
    stride: usize,
    expansion: usize,
    depth: usize,
}

impl NetworkConfig {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let factor = |key: &str| {
            let value = config.required::<f64>(key)?;
            if value > 0.0 && value <= MAX_FACTOR {
                Ok(value)
            } else {
                Err(config.invalid_value(key, format!("it must be above 0 and at most {MAX_FACTOR}")))
            }
        };
        let list = |key: &str| {
            let values: Vec<usize> = config.required(key)?;
            if values.iter().all(|value| (1..=1 << 16).contains(value)) {
                Ok(values)
            } else {
                Err(config.invalid_value(key, "its values must be from 1 to 65536"))
            }
        };
        let inputs = list("in_channels")?;
        let same = |key: &str| {
            let values = list(key)?;
            if values.len() == inputs.len() {
                Ok(values)
            } else {
                let reason = format!("it must have {} values, as `in_channels` has", inputs.len());
                Err(config.invalid_value(key, reason))
            }
        };
        let (outputs, kernels, strides) = (same("out_channels")?, same("kernel_sizes")?, same("strides")?);
        let (expansions, repeats) = (same("expand_ratios")?, same("num_block_repeats")?);
        if strides.iter().any(|stride| *stride > 2) {
            return Err(config.invalid_value("strides", "1 and 2 are supported"));
        }
        if kernels.iter().any(|kernel| kernel % 2 == 0) {
            return Err(config.invalid_value("kernel_sizes", "odd ones are supported"));
        }
        let depth = factor("depth_coefficient")?;
        let sizes = inputs.iter().zip(outputs).zip(kernels.into_iter().zip(strides));
        let stages = sizes.zip(expansions.into_iter().zip(repeats));
        let stages = stages.map(
            |(((inputs, outputs), (kernel, stride)), (expansion, repeats))| Stage {
                inputs: *inputs,
                outputs,
                kernel,
                stride,
                expansion,
                depth: (depth * repeats as f64).ceil() as usize,
            },
        );
        Ok(Self {
            activation: activation(config, "hidden_act")?,
            epsilon: epsilon(config, "batch_norm_eps")?,
            width: factor("width_coefficient")?,
            divisor: config.size("depth_divisor")?,
            squeeze: factor("squeeze_expansion_ratio")?,
            stages: stages.collect(),
            even_borders: config.optional("depthwise_padding")?.unwrap_or_default(),
            pools_largest: match config.optional::<String>("pooling_type")?.as_deref() {
                None | Some("mean") => false,
                Some("max") => true,
                Some(_) => return Err(config.invalid_value("pooling_type", "mean and max are supported")),
            },
        })
    }

    fn scaled(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width, self.divisor, self.divisor)
    }

    /// Adds a convolution with a batch norm, by name.
    fn convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        [name, norm]: [&str; 2],
        outputs: usize,
        window: Window,
    ) -> Result<(), LoadError> {
        let norm = BatchNorm {
            name: norm,
            epsilon: self.epsilon,
        };
        builder.convolve(name, Some(norm), outputs, window)
    }
}

/// An inverted residual block.
struct Block<'a> {
    name: String,
    stage: &'a Stage,
    stride: usize,
    /// Whether the block has a residual connection.
    adds: bool,
    /// Whether a stride of 2 has symmetric padding.
    even: bool,
}

impl Block<'_> {
    fn add<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        network: &NetworkConfig,
    ) -> Result<(), LoadError> {
        if self.adds && self.stride == 1 {
            builder.add(|builder| self.branch(builder, network), |_| Ok(()))
        } else {
            self.branch(builder, network)
        }
    }

    fn branch<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        network: &NetworkConfig,
    ) -> Result<(), LoadError> {
        let Stage {
            inputs,
            outputs,
            kernel,
            expansion,
            ..
        } = *self.stage;
        let at = |name: &str| format!("{}.{name}", self.name);
        let inputs = network.scaled(if self.adds { outputs } else { inputs });
        if expansion != 1 {
            let [convolution, norm] = ["expansion.expand_conv", "expansion.expand_bn"].map(at);
            let expanded = inputs * expansion;
            network.convolve(builder, [&convolution, &norm], expanded, Window::centred(1, 1))?;
            builder.activate(network.activation);
        }
        let mut window = Window::centred(kernel, self.stride);
        if self.stride == 2 && !self.even {
            let [above, left, ..] = &mut window.border;
            for side in [above, left] {
                *side = side.saturating_sub(1);
            }
        }
        let norm = BatchNorm {
            name: &at("depthwise_conv.depthwise_norm"),
            epsilon: network.epsilon,
        };
        builder.depthwise_convolve(&at("depthwise_conv.depthwise_conv"), Some(norm), window)?;
        builder.activate(network.activation);
        let (expanded, squeezed) = (
            builder.channels(),
            ((inputs as f64 * network.squeeze) as usize).max(1),
        );
        builder.excite(|builder| {
            builder.convolve(
                &at("squeeze_excite.reduce"),
                None,
                squeezed,
                Window::centred(1, 1),
            )?;
            builder.activate(network.activation);
            builder.convolve(
                &at("squeeze_excite.expand"),
                None,
                expanded,
                Window::centred(1, 1),
            )?;
            builder.activate(Activation::Sigmoid);
            Ok(())
        })?;
        let [convolution, norm] = ["projection.project_conv", "projection.project_bn"].map(at);
        network.convolve(
            builder,
            [&convolution, &norm],
            network.scaled(outputs),
            Window::centred(1, 1),
        )
    }
}
