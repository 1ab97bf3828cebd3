//! `MobileViT` (Mehta and Rastegari 2022): inverted residual blocks, and transformer blocks in which a pixel attends
//! to the pixels at the same position of all patches; and `MobileViT` v2 (Mehta and Rastegari 2022, "Separable
//! self-attention for mobile vision transformers"), with attention of linear cost.

use super::builder::{BatchNorm, Builder, Window};
use super::separable::SeparableAttention;
use super::windows::{WindowAttention, Windows};
use super::{Family, divisible};
use crate::architectures::encoder::{activation, epsilon};
use crate::architectures::vit::patches::side_lengths;
use crate::checkpoint::timm::PACKED;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of the batch norms.
const EPSILON: f64 = 1e-5;
/// Number of transformer layers in the last three stages of v1.
const DEPTHS: [usize; 3] = [2, 4, 3];
/// Maximum width multiplier.
const MAX_FACTOR: f64 = 64.0;

/// `MobileViT` v1.
pub(in crate::architectures) struct MobileVit;
/// `MobileViT` v2.
pub(in crate::architectures) struct MobileVitV2;

impl Family for MobileVit {
    const BASE: &'static str = "mobilevit";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig::read(config, Self::BASE, 4.0)?;
        let necks = sizes::<7>(config, "neck_hidden_sizes")?;
        let widths = sizes::<3>(config, "hidden_sizes")?;
        let transformer = Transformer {
            heads: config.size("num_attention_heads")?,
            mlp_ratio: factor(config, "mlp_ratio", 2.0)?,
            biased: config.optional("qkv_bias")?.unwrap_or(true),
            packed: config.optional(PACKED)?.unwrap_or(false),
        };
        let [stem, first, second, third, fourth, fifth, features] = necks;
        network.convolve(builder, &network.at("conv_stem"), stem, (3, 2), true)?;
        network.residual(builder, &network.layer("0.layer.0"), first, 1)?;
        for index in 0..3 {
            let stride = if index == 0 { 2 } else { 1 };
            network.residual(
                builder,
                &network.layer(&format!("1.layer.{index}")),
                second,
                stride,
            )?;
        }
        let stages = [third, fourth, fifth].into_iter().zip(widths).zip(DEPTHS);
        for (index, ((outputs, width), depth)) in stages.enumerate() {
            if !width.is_multiple_of(transformer.heads) {
                return Err(config.invalid_value("num_attention_heads", "it must divide all hidden_sizes"));
            }
            let stage = Stage {
                network: &network,
                name: network.layer(&(index + 2).to_string()),
                width,
                depth,
            };
            stage.add(builder, outputs, transformer)?;
        }
        network.convolve(builder, &network.at("conv_1x1_exp"), features, (1, 1), true)?;
        builder.mean();
        Ok(())
    }
}

impl Family for MobileVitV2 {
    const BASE: &'static str = "mobilevitv2";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig::read(config, Self::BASE, 2.0)?;
        let multiplier = factor(config, "width_multiplier", 1.0)?;
        let depths = sizes::<3>(config, "n_attn_blocks")?;
        let units = sizes::<3>(config, "base_attn_unit_dims")?;
        let feed_forward = factor(config, "ffn_multiplier", 2.0)?;
        let scaled = |channels: usize, divisor| divisible(channels as f64 * multiplier, divisor, divisor);
        let stem = divisible((32.0 * multiplier).clamp(16.0, 64.0), 8, 16);
        network.convolve(builder, &network.at("conv_stem"), stem, (3, 2), true)?;
        network.residual(builder, &network.layer("0.layer.0"), scaled(64, 16), 1)?;
        for (index, stride) in [2, 1].into_iter().enumerate() {
            let name = network.layer(&format!("1.layer.{index}"));
            network.residual(builder, &name, scaled(128, 8), stride)?;
        }
        let stages = [256, 384, 512].into_iter().zip(units).zip(depths);
        for (index, ((outputs, unit), depth)) in stages.enumerate() {
            let stage = Stage {
                network: &network,
                name: network.layer(&(index + 2).to_string()),
                width: scaled(unit, 8),
                depth,
            };
            stage.add_separable(builder, scaled(outputs, 8), feed_forward)?;
        }
        builder.mean();
        Ok(())
    }
}

/// Configuration of both versions.
struct NetworkConfig<'a> {
    config: &'a Config,
    base: &'static str,
    activation: Activation,
    epsilon: f64,
    expansion: f64,
    /// Patch size, pixels.
    patch: usize,
    /// Kernel size of the convolution before the transformer.
    kernel: usize,
}

impl<'a> NetworkConfig<'a> {
    fn read(config: &'a Config, base: &'static str, expansion: f64) -> Result<Self, LoadError> {
        if config.optional("output_stride")?.unwrap_or(32) != 32 {
            return Err(config.invalid_value(
                "output_stride",
                "only 32, without dilated convolutions, is supported",
            ));
        }
        let [patch, across] = side_lengths(config, "patch_size")?;
        let kernel = config.optional_size("conv_kernel_size")?.unwrap_or(3);
        if patch != across || kernel % 2 == 0 {
            let key = if patch == across {
                "conv_kernel_size"
            } else {
                "patch_size"
            };
            return Err(config.invalid_value(key, "square patches and odd kernels are supported"));
        }
        Ok(Self {
            config,
            base,
            activation: activation(config, "hidden_act")?,
            epsilon: epsilon(config, "layer_norm_eps")?,
            expansion: factor(config, "expand_ratio", expansion)?,
            patch,
            kernel,
        })
    }

    fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.base)
    }

    fn layer(&self, name: &str) -> String {
        format!("{}.encoder.layer.{name}", self.base)
    }

    /// Adds a convolution with its batch norm, and the activation if `activated`.
    fn convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        (kernel, stride): (usize, usize),
        activated: bool,
    ) -> Result<(), LoadError> {
        let (convolution, norm) = names(name);
        let window = Window::centred(kernel, stride);
        builder.convolve(&convolution, Some(batch_norm(&norm)), outputs, window)?;
        if activated {
            builder.activate(self.activation);
        }
        Ok(())
    }

    /// Adds a depthwise convolution with an activation.
    fn depthwise_convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        (kernel, stride): (usize, usize),
    ) -> Result<(), LoadError> {
        let (convolution, norm) = names(name);
        let window = Window::centred(kernel, stride);
        builder.depthwise_convolve(&convolution, Some(batch_norm(&norm)), window)?;
        builder.activate(self.activation);
        Ok(())
    }

    /// Adds an inverted residual block.
    fn residual<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        stride: usize,
    ) -> Result<(), LoadError> {
        let inputs = builder.channels();
        let branch = |builder: &mut Builder<'_, '_, O>| {
            // Rounds halves to even, as Python does.
            let expanded = (inputs as f64 * self.expansion).round_ties_even();
            let expanded = divisible(expanded, 8, 8);
            self.convolve(builder, &format!("{name}.expand_1x1"), expanded, (1, 1), true)?;
            self.depthwise_convolve(builder, &format!("{name}.conv_3x3"), (3, stride))?;
            self.convolve(builder, &format!("{name}.reduce_1x1"), outputs, (1, 1), false)
        };
        if stride == 1 && inputs == outputs {
            builder.add(branch, |_| Ok(()))
        } else {
            branch(builder)
        }
    }
}

/// Configuration of the transformer layers of v1.
#[derive(Clone, Copy)]
struct Transformer {
    heads: usize,
    mlp_ratio: f64,
    /// Whether queries, keys and values have biases.
    biased: bool,
    /// Whether queries, keys and values are one fused layer, as in timm.
    packed: bool,
}

/// A stage with transformer layers.
struct Stage<'a> {
    network: &'a NetworkConfig<'a>,
    name: String,
    /// Hidden size of the transformer.
    width: usize,
    depth: usize,
}

impl Stage<'_> {
    fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// Returns the sequences of the transformer, one per pixel of a patch.
    fn sequences<O: Ops>(&self, builder: &Builder<'_, '_, O>) -> Result<Windows, LoadError> {
        Windows::strided(builder.size(), self.network.patch).ok_or_else(|| {
            let reason = "the images of every stage must consist of whole patches";
            self.network.config.invalid_value("image_size", reason)
        })
    }

    /// Adds a stage of v1.
    fn add<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        outputs: usize,
        transformer: Transformer,
    ) -> Result<(), LoadError> {
        let network = self.network;
        network.residual(builder, &self.at("downsampling_layer"), outputs, 2)?;
        let (convolution, norm) = names(&self.at("fusion"));
        let window = Window::centred(network.kernel, 1);
        let halves = builder.halves(&convolution, batch_norm(&norm), outputs, window)?;
        let [of_input, of_features] = halves;
        builder.add(
            |builder| {
                network.convolve(builder, &self.at("conv_kxk"), outputs, (network.kernel, 1), true)?;
                builder.project(&self.at("conv_1x1.convolution"), self.width)?;
                for index in 0..self.depth {
                    self.transformer_layer(
                        builder,
                        &self.at(&format!("transformer.layer.{index}")),
                        transformer,
                    )?;
                }
                builder.normalise(&self.at("layernorm"), network.epsilon)?;
                network.convolve(builder, &self.at("conv_projection"), outputs, (1, 1), true)?;
                builder.convolve_by(of_features, outputs, window);
                Ok(())
            },
            |builder| {
                builder.convolve_by(of_input, outputs, window);
                Ok(())
            },
        )?;
        builder.activate(network.activation);
        Ok(())
    }

    fn transformer_layer<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        transformer: Transformer,
    ) -> Result<(), LoadError> {
        let Transformer {
            heads,
            mlp_ratio,
            biased,
            packed,
        } = transformer;
        let at = |part: &str| format!("{name}.{part}");
        let (network, width) = (self.network, self.width);
        builder.add(
            |builder| {
                builder.normalise(&at("layernorm_before"), network.epsilon)?;
                let windows = self.sequences(builder)?;
                let parts = ["query", "key", "value"].map(|part| at(&format!("attention.attention.{part}")));
                let layers = builder.layers();
                let projections = if packed {
                    layers.linear_with(&at("attention.qkv"), width, 3 * width, biased)?
                } else {
                    layers.concatenated(&parts, width, width, biased)?
                };
                let output = layers.linear(&at("attention.output.dense"), width, width)?;
                builder.attend(WindowAttention {
                    windows,
                    heads,
                    scale: 1.0 / ((width / heads) as f32).sqrt(),
                    cosine: None,
                    scores: None,
                    projections,
                    output,
                });
                Ok(())
            },
            |_| Ok(()),
        )?;
        builder.add(
            |builder| {
                builder.normalise(&at("layernorm_after"), network.epsilon)?;
                builder.multiply(&at("intermediate.dense"), (width as f64 * mlp_ratio) as usize)?;
                builder.activate(network.activation);
                builder.multiply(&at("output.dense"), width)
            },
            |_| Ok(()),
        )
    }

    /// Adds a stage of v2.
    fn add_separable<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        outputs: usize,
        feed_forward: f64,
    ) -> Result<(), LoadError> {
        let network = self.network;
        network.residual(builder, &self.at("downsampling_layer"), outputs, 2)?;
        network.depthwise_convolve(builder, &self.at("conv_kxk"), (network.kernel, 1))?;
        builder.project(&self.at("conv_1x1.convolution"), self.width)?;
        for index in 0..self.depth {
            let name = self.at(&format!("transformer.layer.{index}"));
            self.separable_layer(builder, &name, feed_forward)?;
        }
        builder.normalise_images(&self.at("layernorm"), network.epsilon)?;
        network.convolve(builder, &self.at("conv_projection"), outputs, (1, 1), false)
    }

    fn separable_layer<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        feed_forward: f64,
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let (network, width) = (self.network, self.width);
        // Rounds down to a multiple of 16.
        let between = (feed_forward * width as f64) as usize / 16 * 16;
        builder.add(
            |builder| {
                builder.normalise_images(&at("layernorm_before"), network.epsilon)?;
                let windows = self.sequences(builder)?;
                let names = ["qkv_proj", "out_proj"].map(|part| at(&format!("attention.{part}.convolution")));
                let attention = SeparableAttention::take(builder.layers(), names, width, windows)?;
                builder.attend_separably(attention);
                Ok(())
            },
            |_| Ok(()),
        )?;
        builder.add(
            |builder| {
                builder.normalise_images(&at("layernorm_after"), network.epsilon)?;
                builder.convolve(&at("ffn.conv1.convolution"), None, between, Window::centred(1, 1))?;
                builder.activate(network.activation);
                builder.convolve(&at("ffn.conv2.convolution"), None, width, Window::centred(1, 1))
            },
            |_| Ok(()),
        )
    }
}

/// Returns the names of a convolution and its batch norm.
fn names(name: &str) -> (String, String) {
    (format!("{name}.convolution"), format!("{name}.normalization"))
}

fn batch_norm(name: &str) -> BatchNorm<'_> {
    BatchNorm {
        name,
        epsilon: EPSILON,
    }
}

/// Reads a list of `COUNT` sizes, each at least 1.
fn sizes<const COUNT: usize>(config: &Config, key: &str) -> Result<[usize; COUNT], LoadError> {
    let sizes: Vec<usize> = config.required(key)?;
    let valid = sizes.iter().all(|size| (1..=1 << 16).contains(size));
    <[usize; COUNT]>::try_from(sizes)
        .ok()
        .filter(|_| valid)
        .ok_or_else(|| config.invalid_value(key, format!("it must have {COUNT} values from 1 to 65536")))
}

/// Reads a width multiplier.
fn factor(config: &Config, key: &str, default: f64) -> Result<f64, LoadError> {
    let factor = config.optional::<f64>(key)?.unwrap_or(default);
    if factor > 0.0 && factor <= MAX_FACTOR {
        return Ok(factor);
    }
    Err(config.invalid_value(key, format!("it must be above 0 and at most {MAX_FACTOR}")))
}
