//! The transformer encoder shared by BERT and ViT (Vaswani et al. 2017, "Attention Is All You Need", section 3).

use burn::nn::{LayerNorm, Linear};
use burn::tensor::activation::{gelu_approximate, relu};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::layers::{concat_outputs, layer_norm, linear, linear_without_bias};
use crate::checkpoint::{Config, LoadError, Weights};
use crate::device::is_host;
use crate::ops::elementwise::gelu;
use crate::runtime::slice::Slice;

/// Sizes of an encoder, by the keys that BERT and ViT configurations share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EncoderConfig {
    /// `hidden_size`: size of a token's vector.
    pub width: usize,
    /// `num_hidden_layers`.
    pub blocks: usize,
    /// `num_attention_heads`; divides the width.
    pub heads: usize,
    /// `intermediate_size`: size of the feed-forward layer.
    pub intermediate_size: usize,
    /// `hidden_act`.
    pub activation: Activation,
    /// `layer_norm_eps`.
    pub epsilon: f64,
    /// `qkv_bias`; true if missing.
    pub projection_bias: bool,
}

/// Activation of the feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// Rectified linear unit.
    Relu,
}

/// Names of a block's tensors, relative to the block's prefix.
pub(super) struct BlockNames {
    /// Prefix of the `query`, `key` and `value` projections.
    pub projections: &'static str,
    /// Norm of the attention.
    pub attention_norm: &'static str,
    /// Norm of the feed-forward layer.
    pub feed_forward_norm: &'static str,
}

/// One block: attention and a feed-forward layer, each with a norm and a residual connection.
pub(super) struct Block {
    attention: Attention,
    attention_norm: LayerNorm,
    up: Linear,
    activation: Activation,
    down: Linear,
    feed_forward_norm: LayerNorm,
}

struct Attention {
    /// Query, key and value projections, concatenated: `[width, 3 * width]`.
    projections: Linear,
    output: Linear,
    heads: usize,
}

impl EncoderConfig {
    /// Reads the configuration.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`], or [`LoadError::BadKey`] for an invalid value.
    pub(super) fn read(config: &Config) -> Result<Self, LoadError> {
        let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        if !width.is_multiple_of(heads) {
            return Err(config.invalid_value(
                "num_attention_heads",
                format!("it must divide hidden_size = {width}"),
            ));
        }
        let epsilon = config.required::<f64>("layer_norm_eps")?;
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(config.invalid_value("layer_norm_eps", "it must be between 0 and 1"));
        }
        Ok(Self {
            width,
            blocks: config.size("num_hidden_layers")?,
            heads,
            intermediate_size: config.size("intermediate_size")?,
            activation: Activation::read(config)?,
            epsilon,
            projection_bias: config.optional("qkv_bias")?.unwrap_or(true),
        })
    }

    /// Takes the blocks of a slice (`{prefix}.0`, `{prefix}.1`, ...) from a checkpoint.
    ///
    /// # Errors
    /// As [`Weights::take`], and [`LoadError::TooManySlices`].
    pub(super) fn take_blocks(
        &self,
        weights: &mut Weights,
        prefix: &str,
        names: &BlockNames,
        device: &Device,
        slice: Slice,
    ) -> Result<Vec<Block>, LoadError> {
        if slice.of() > self.blocks {
            return Err(LoadError::TooManySlices {
                file: weights.file().to_owned(),
                blocks: self.blocks,
                of: slice.of(),
            });
        }
        slice
            .blocks(self.blocks)
            .map(|index| self.take_block(weights, &format!("{prefix}.{index}"), names, device))
            .collect()
    }

    fn take_block(
        &self,
        weights: &mut Weights,
        prefix: &str,
        names: &BlockNames,
        device: &Device,
    ) -> Result<Block, LoadError> {
        let (width, intermediate_size) = (self.width, self.intermediate_size);
        let take_linear = if self.projection_bias {
            linear
        } else {
            linear_without_bias
        };
        let projections = ["query", "key", "value"]
            .iter()
            .map(|part| {
                let name = format!("{prefix}.{}.{part}", names.projections);
                take_linear(weights, &name, width, width, device)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let at = |name: &str| format!("{prefix}.{name}");
        Ok(Block {
            attention: Attention {
                projections: concat_outputs(&projections),
                output: linear(weights, &at("attention.output.dense"), width, width, device)?,
                heads: self.heads,
            },
            attention_norm: layer_norm(weights, &at(names.attention_norm), width, self.epsilon, device)?,
            up: linear(
                weights,
                &at("intermediate.dense"),
                width,
                intermediate_size,
                device,
            )?,
            activation: self.activation,
            down: linear(weights, &at("output.dense"), intermediate_size, width, device)?,
            feed_forward_norm: layer_norm(
                weights,
                &at(names.feed_forward_norm),
                width,
                self.epsilon,
                device,
            )?,
        })
    }
}

impl Activation {
    fn read(config: &Config) -> Result<Self, LoadError> {
        match config.required::<String>("hidden_act")?.as_str() {
            "gelu" | "gelu_python" => Ok(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Self::GeluTanh),
            "relu" => Ok(Self::Relu),
            _ => Err(config.invalid_value(
                "hidden_act",
                "gelu, gelu_new, gelu_pytorch_tanh and relu are supported",
            )),
        }
    }

    fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => gelu(x),
            Self::GeluTanh => gelu_approximate(x),
            Self::Relu => relu(x),
        }
    }
}

impl Block {
    /// Computes the block with norms after the residual sums, as in the original transformer and BERT.
    ///
    /// `x` is `[batch, sequence, width]`, `padding` the result of [`padding_mask`].
    pub(super) fn post_norm(&self, x: Tensor<3>, padding: Option<&Tensor<4, Bool>>) -> Tensor<3> {
        let attended = self.attention.forward(x.clone(), padding);
        let x = self.attention_norm.forward(attended + x);
        let fed = self.feed_forward(x.clone());
        self.feed_forward_norm.forward(fed + x)
    }

    /// Computes the block with norms before each layer, as in ViT. `x` is `[batch, sequence, width]`.
    pub(super) fn pre_norm(&self, x: Tensor<3>) -> Tensor<3> {
        let x = self
            .attention
            .forward(self.attention_norm.forward(x.clone()), None)
            + x;
        self.feed_forward(self.feed_forward_norm.forward(x.clone())) + x
    }

    fn feed_forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down.forward(self.activation.apply(self.up.forward(x)))
    }
}

impl Attention {
    fn forward(&self, x: Tensor<3>, padding: Option<&Tensor<4, Bool>>) -> Tensor<3> {
        let [batch, sequence, width] = x.dims();
        // [3, batch, heads, sequence, width / heads]: the layout of the attention, so that it copies none of the three
        // again.
        let parts = self
            .projections
            .forward(x)
            .reshape([batch, sequence, 3, self.heads, width / self.heads])
            .permute([2, 0, 3, 1, 4]);
        let part = |index: usize| parts.clone().slice_dim(0, index..index + 1).squeeze_dim::<4>(0);
        let options = AttentionModuleOptions::default();
        let attended = attention(part(0), part(1), part(2), padding.cloned(), None, options);
        self.output
            .forward(attended.swap_dims(1, 2).reshape([batch, sequence, width]))
    }
}

/// Returns the mask that hides padding from the attention: true for hidden keys; `None` if there is no padding. `mask`
/// holds one row of equal length per sequence, true for tokens.
pub(super) fn padding_mask(mask: &[Vec<bool>], heads: usize, device: &Device) -> Option<Tensor<4, Bool>> {
    if mask.iter().flatten().all(|mask| *mask) {
        return None;
    }
    let (batch, sequence) = (mask.len(), mask.first().map_or(0, Vec::len));
    let padding = mask
        .iter()
        .flat_map(|row| row.iter().cycle().take(sequence * sequence))
        .map(|mask| !mask)
        .collect::<Vec<bool>>();
    let mask = Tensor::from_data(TensorData::new(padding, [batch, 1, sequence, sequence]), device);
    // On the CPU all heads share one mask without a copy; other devices need the full shape.
    if is_host(device) {
        Some(mask)
    } else {
        Some(mask.expand([batch, heads, sequence, sequence]))
    }
}
