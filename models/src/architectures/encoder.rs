//! The transformer encoder shared by BERT and ViT (Vaswani et al. 2017, "Attention Is All You Need", section 3).

use super::layers::Layers;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};
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
pub(super) struct Block<O: Ops> {
    heads: usize,
    /// Query, key and value projections.
    projections: O::Linear,
    output: O::Linear,
    attention_norm: O::Norm,
    up: O::Linear,
    activation: Activation,
    down: O::Linear,
    feed_forward_norm: O::Norm,
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
            activation: activation(config)?,
            epsilon,
            projection_bias: config.optional("qkv_bias")?.unwrap_or(true),
        })
    }

    /// Takes the blocks of a slice (`{prefix}.0`, `{prefix}.1`, ...) from a checkpoint.
    ///
    /// # Errors
    /// As [`Weights::take`], and [`LoadError::TooManySlices`].
    pub(super) fn take_blocks<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        prefix: &str,
        names: &BlockNames,
        slice: Slice,
    ) -> Result<Vec<Block<O>>, LoadError> {
        if slice.of() > self.blocks {
            return Err(LoadError::TooManySlices {
                file: layers.weights.file().to_owned(),
                blocks: self.blocks,
                of: slice.of(),
            });
        }
        slice
            .blocks(self.blocks)
            .map(|index| self.take_block(layers, &format!("{prefix}.{index}"), names))
            .collect()
    }

    fn take_block<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        prefix: &str,
        names: &BlockNames,
    ) -> Result<Block<O>, LoadError> {
        let (width, intermediate_size, epsilon) = (self.width, self.intermediate_size, self.epsilon);
        let at = |name: &str| format!("{prefix}.{name}");
        let projections = ["query", "key", "value"].map(|part| at(&format!("{}.{part}", names.projections)));
        Ok(Block {
            heads: self.heads,
            projections: layers.concatenated(&projections, width, width, self.projection_bias)?,
            output: layers.linear(&at("attention.output.dense"), width, width)?,
            attention_norm: layers.layer_norm(&at(names.attention_norm), width, epsilon)?,
            up: layers.linear(&at("intermediate.dense"), width, intermediate_size)?,
            activation: self.activation,
            down: layers.linear(&at("output.dense"), intermediate_size, width)?,
            feed_forward_norm: layers.layer_norm(&at(names.feed_forward_norm), width, epsilon)?,
        })
    }
}

fn activation(config: &Config) -> Result<Activation, LoadError> {
    match config.required::<String>("hidden_act")?.as_str() {
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        _ => Err(config.invalid_value(
            "hidden_act",
            "gelu, gelu_new, gelu_pytorch_tanh and relu are supported",
        )),
    }
}

impl<O: Ops> Block<O> {
    /// Computes the block with norms after the residual sums, as in the original transformer and BERT.
    ///
    /// The rows of `x` are tokens, grouped by sequence; `sequences` says which are visible
    /// ([`Ops::attend_sequences`]).
    pub(super) fn post_norm(&self, ops: &O, x: &O::Matrix, sequences: &[&[bool]]) -> O::Matrix {
        let mut attended = self.attend(ops, x, sequences);
        ops.add(&mut attended, x);
        let x = ops.normalise(&attended, &self.attention_norm);
        let mut fed = self.feed_forward(ops, &x);
        ops.add(&mut fed, &x);
        ops.normalise(&fed, &self.feed_forward_norm)
    }

    /// Computes the block with norms before each layer, as in ViT; the arguments are those of [`Self::post_norm`].
    pub(super) fn pre_norm(&self, ops: &O, x: &O::Matrix, sequences: &[&[bool]]) -> O::Matrix {
        let mut attended = self.attend(ops, &ops.normalise(x, &self.attention_norm), sequences);
        ops.add(&mut attended, x);
        let mut fed = self.feed_forward(ops, &ops.normalise(&attended, &self.feed_forward_norm));
        ops.add(&mut fed, &attended);
        fed
    }

    fn attend(&self, ops: &O, x: &O::Matrix, sequences: &[&[bool]]) -> O::Matrix {
        let projected = ops.multiply(x, &self.projections);
        ops.multiply(
            &ops.attend_sequences(&projected, sequences, self.heads),
            &self.output,
        )
    }

    fn feed_forward(&self, ops: &O, x: &O::Matrix) -> O::Matrix {
        let up = ops.activate(ops.multiply(x, &self.up), self.activation, false);
        ops.multiply(&up, &self.down)
    }
}
