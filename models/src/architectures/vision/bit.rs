//! `BiT` (Kolesnikov et al. 2020, "Big Transfer"): residual networks with standardised weights and group norms.

use super::Family;
use super::builder::{Builder, Window};
use crate::architectures::encoder::activation;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of the weight standardisation.
const WEIGHT_EPSILON: f64 = 1e-8;
/// Epsilon of the norms, torch's default.
const EPSILON: f64 = 1e-5;
/// Divisor of all numbers of channels.
const DIVISOR: usize = 8;

pub(in crate::architectures) struct Bit;

/// Configuration shared by all blocks.
#[derive(Clone, Copy)]
struct BlockConfig {
    /// Whether the blocks have pre-activation: norms before the convolutions.
    before: bool,
    activation: Activation,
    groups: usize,
    /// Whether convolutions have TensorFlow's `SAME` padding.
    same: bool,
}

impl Family for Bit {
    const BASE: &'static str = "bit";
    const CLASSIFIER: &'static str = "classifier.1";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let (sizes, depths) = super::stages(config, "hidden_sizes")?;
        let block = BlockConfig::read(config)?;
        // The stem divides the image by 4, and stages after the first by 2.
        let smallest = 1_usize << sizes.len().min(16);
        if sizes.len() > 1 && config.optional_size("output_stride")?.unwrap_or(32) <= smallest {
            return Err(config.invalid_value("output_stride", "dilated convolutions are not supported"));
        }
        if config
            .optional::<f64>("width_factor")?
            .is_some_and(|factor| (factor - 1.0).abs() > 0.0)
        {
            return Err(config.invalid_value("width_factor", "only 1 is supported"));
        }
        let width = config.size("embedding_size")?;
        let inner = sizes.iter().map(|outputs| inner(*outputs));
        let mut widths = [width].into_iter().chain(sizes.iter().copied()).chain(inner);
        if widths.any(|width| !width.is_multiple_of(DIVISOR) || !width.is_multiple_of(block.groups)) {
            let reason =
                format!("{DIVISOR} and `num_groups` must divide it, its fourths and `embedding_size`");
            return Err(config.invalid_value("hidden_sizes", reason));
        }
        block.convolve(builder, "bit.embedder.convolution", width, 7, 2)?;
        if !block.same {
            builder.pad([1; 4]);
        }
        if !block.before {
            block.normalise(builder, "bit.embedder.norm", true)?;
        }
        if config.optional("embedding_dynamic_padding")?.unwrap_or(false) {
            builder.pad(builder.same_window(3, 2).border);
        }
        builder.max_pool(Window {
            kernel: 3,
            stride: 2,
            border: [0; 4],
        });
        for (stage, (outputs, depth)) in sizes.into_iter().zip(depths).enumerate() {
            for layer in 0..depth {
                let name = format!("bit.encoder.stages.{stage}.layers.{layer}");
                let stride = if layer == 0 && stage > 0 { 2 } else { 1 };
                block.block(builder, &name, outputs, stride, layer == 0)?;
            }
        }
        if builder.size().contains(&0) {
            return Err(config.invalid_value("hidden_sizes", "an image must have pixels after every stage"));
        }
        if block.before {
            block.normalise(builder, "bit.norm", true)?;
        }
        builder.mean();
        Ok(())
    }
}

impl BlockConfig {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let padding = config
            .optional::<String>("global_padding")?
            .map(|name| name.to_uppercase());
        Ok(Self {
            before: match config.optional::<String>("layer_type")?.as_deref() {
                None | Some("preactivation") => true,
                Some("bottleneck") => false,
                Some(_) => {
                    let reason = "preactivation and bottleneck are supported";
                    return Err(config.invalid_value("layer_type", reason));
                }
            },
            activation: activation(config, "hidden_act")?,
            groups: config.optional_size("num_groups")?.unwrap_or(32),
            same: match padding.as_deref() {
                None => false,
                Some("SAME") => true,
                Some(_) => return Err(config.invalid_value("global_padding", "only SAME is supported")),
            },
        })
    }

    fn convolve<O: Ops>(
        self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<(), LoadError> {
        let window = if self.same {
            builder.same_window(kernel, stride)
        } else {
            Window {
                kernel,
                stride,
                border: [(kernel + stride - 2) / 2; 4],
            }
        };
        builder.convolve_standardised(name, WEIGHT_EPSILON, outputs, window)
    }

    fn normalise<O: Ops>(
        self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        activated: bool,
    ) -> Result<(), LoadError> {
        builder.normalise_groups(name, self.groups, EPSILON)?;
        if activated {
            builder.activate(self.activation);
        }
        Ok(())
    }

    /// Adds a block; the first block of a stage has a projection shortcut.
    fn block<O: Ops>(
        self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        stride: usize,
        first: bool,
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let inner = inner(outputs);
        let convolutions = [(inner, 1, 1), (inner, 3, stride), (outputs, 1, 1)];
        // The shortcut of a first block reads the result of the first norm.
        if self.before && first {
            self.normalise(builder, &at("norm1"), true)?;
        }
        builder.add(
            |builder| {
                for (place, (outputs, kernel, stride)) in convolutions.into_iter().enumerate() {
                    let norm = at(&format!("norm{}", place + 1));
                    if self.before && !(first && place == 0) {
                        self.normalise(builder, &norm, true)?;
                    }
                    self.convolve(
                        builder,
                        &at(&format!("conv{}", place + 1)),
                        outputs,
                        kernel,
                        stride,
                    )?;
                    if !self.before {
                        self.normalise(builder, &norm, place < 2)?;
                    }
                }
                Ok(())
            },
            |builder| {
                if first {
                    self.convolve(builder, &at("downsample.conv"), outputs, 1, stride)?;
                    if !self.before {
                        self.normalise(builder, &at("downsample.norm"), false)?;
                    }
                }
                Ok(())
            },
        )?;
        if !self.before {
            builder.activate(self.activation);
        }
        Ok(())
    }
}

/// Returns the channels of the bottleneck.
fn inner(outputs: usize) -> usize {
    super::divisible(outputs as f64 / 4.0, DIVISOR, DIVISOR)
}
