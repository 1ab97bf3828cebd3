//! The transformer encoder that all encoder architectures share (Vaswani et al. 2017, "Attention Is All You Need",
//! section 3). An architecture describes its blocks by an [`EncoderConfig`] and [`BlockNames`].

use std::collections::HashMap;
use std::sync::Arc;

use super::global_attention::GlobalAttention;
use super::layers::Layers;
use super::position_bias::PositionBias;
use super::token_convolution::{ConvolutionForm, TokenConvolution};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, DistanceRows, DistanceScores, EncoderAttention, Ops, PairScores, Rotary};
use crate::runtime::slice::Slice;

/// Sizes and form of an encoder.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each names one independent property"
)]
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EncoderConfig {
    /// Size of a token's vector.
    pub width: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of attention heads; divides the width of the attention.
    pub heads: usize,
    /// Number of heads of keys and values, which divides that of the queries; the same unless queries share them.
    pub key_value_heads: usize,
    /// Size of all queries of a token, as of all keys and all values that are not shared; that of its vector unless the checkpoint says otherwise.
    pub attention_width: usize,
    /// Factor of the attention's scores; by default the inverse root of a head's size.
    pub attention_scale: Option<f32>,
    /// Size of the feed-forward layer.
    pub intermediate_size: usize,
    /// Activation of the feed-forward layer.
    pub activation: Activation,
    /// Whether the feed-forward layer multiplies its activation by a second projection.
    pub gated: bool,
    /// Added to the variance by the norms.
    pub epsilon: f64,
    /// Whether the norms come before attention and feed-forward layer instead of after their residual sums.
    pub norms_first: bool,
    /// Whether the norms have a bias.
    pub norm_bias: bool,
    /// Whether the norms divide by the root mean square, without a mean and a bias.
    pub rms: bool,
    /// Whether the query, key and value projections have a bias.
    pub projection_bias: bool,
    /// Whether the key projection, which is a layer of its own, has a bias if the others do.
    pub key_bias: bool,
    /// Whether the output of the attention has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward layer has biases.
    pub feed_forward_bias: bool,
    /// Whether its first layer has one if it has biases.
    pub up_bias: bool,
    /// Whether the first layer, if gated, is one layer with the values before the gate.
    pub values_first: bool,
}

/// Names of a block's tensors, relative to the block's prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockNames {
    /// Query, key and value projections: three layers, or one that holds all.
    pub projections: &'static [&'static str],
    /// Biases of queries and values, if the one layer holds the projections head by head and keys have no bias.
    pub head_biases: Option<[&'static str; 2]>,
    /// Output of the attention.
    pub output: &'static str,
    /// Norm of the attention.
    pub attention_norm: &'static str,
    /// First layer of the feed-forward layer; if gated, the gate followed by the values, in one layer or two.
    pub up: &'static [&'static str],
    /// Its second layer.
    pub down: &'static str,
    /// Norm of the feed-forward layer.
    pub feed_forward_norm: &'static str,
    /// Factors of the elements that attention and feed-forward layer add, if there are any.
    pub scales: Option<[&'static str; 2]>,
}

impl BlockNames {
    /// Names in BERT and most architectures that follow it.
    pub(super) const BERT: Self = Self {
        projections: &[
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ],
        head_biases: None,
        output: "attention.output.dense",
        attention_norm: "attention.output.LayerNorm",
        up: &["intermediate.dense"],
        down: "output.dense",
        feed_forward_norm: "output.LayerNorm",
        scales: None,
    };
}

/// What distinguishes a block from the others of its encoder.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct BlockForm {
    /// Prefix of its tensors; blocks of the same prefix share their weights.
    pub prefix: String,
    /// Whether it has no norm before its attention.
    pub without_first_norm: bool,
    /// Largest distance of tokens that attend to each other.
    pub window: Option<usize>,
    /// Rotation of queries and keys.
    pub rotary: Option<Rotary>,
    /// Layers of queries, keys and values by which the first token attends to all; the others then attend to it whatever the window.
    pub global: Option<[&'static str; 3]>,
    /// Convolution of its input that is added to its result.
    pub convolution: Option<ConvolutionForm>,
    /// Position bias of this block alone.
    pub position_bias: Option<PositionBias>,
}

/// How queries and keys are projected from the vectors of distances ([`DistanceScores`]).
pub(super) struct Distances<O: Ops> {
    /// Row of a distance.
    pub rows: DistanceRows,
    /// Vectors of the distances `[rows, width]`.
    pub vectors: O::Matrix,
    /// Layer in a block that gives the keys.
    pub keys: Option<&'static str>,
    /// Whether that layer has a bias.
    pub key_bias: bool,
    /// Layer in a block that gives the queries.
    pub queries: Option<&'static str>,
}

/// What is added to the scores of an attention.
pub(super) enum Bias<'a, X> {
    /// The table of a [`RelativeBias`](crate::ops::RelativeBias).
    ByDistance(&'a X),
    /// Scores of all pairs of this many tokens, `[heads, tokens * tokens]`.
    ByPair(&'a X, usize),
}

/// One block: attention and a feed-forward layer, each with a norm and a residual connection.
pub(super) struct Block<O: Ops> {
    heads: usize,
    scale: f32,
    window: Option<usize>,
    rotary: Option<Rotary>,
    global: Option<GlobalAttention<O>>,
    convolution: Option<TokenConvolution<O>>,
    position_bias: Option<O::Matrix>,
    distances: Option<DistanceScores<O::Matrix>>,
    projections: O::Linear,
    output: O::Linear,
    attention_norm: Option<O::Norm>,
    up: O::Linear,
    activation: Activation,
    gated: bool,
    down: O::Linear,
    feed_forward_norm: O::Norm,
    /// Factors of what attention and feed-forward layer add.
    scales: Option<[O::Norm; 2]>,
    norms_first: bool,
}

impl EncoderConfig {
    /// Reads the keys that BERT and most architectures share.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`], or [`LoadError::BadKey`] for an invalid value.
    pub(super) fn read(config: &Config) -> Result<Self, LoadError> {
        let mut read = Self::sized(
            config,
            [
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
                "hidden_act",
            ],
        )?;
        read.epsilon = epsilon(config, "layer_norm_eps")?;
        read.projection_bias = config.optional("qkv_bias")?.unwrap_or(true);
        Ok(read)
    }

    /// Reads width, blocks, heads, size of the feed-forward layer and activation by these keys; the rest is as in BERT.
    ///
    /// # Errors
    /// As [`EncoderConfig::read`].
    pub(super) fn sized(config: &Config, keys: [&str; 5]) -> Result<Self, LoadError> {
        let [width_key, blocks, heads_key, intermediate_size, activation_key] = keys;
        let keys = [width_key, blocks, heads_key, intermediate_size];
        Self::sized_with(config, keys, activation(config, activation_key)?)
    }

    /// Reads width, blocks, heads and size of the feed-forward layer by these keys; the rest is as in BERT.
    ///
    /// # Errors
    /// As [`EncoderConfig::read`].
    pub(super) fn sized_with(
        config: &Config,
        [width_key, blocks, heads_key, intermediate_size]: [&str; 4],
        activation: Activation,
    ) -> Result<Self, LoadError> {
        let (width, heads) = (config.size(width_key)?, config.size(heads_key)?);
        if !width.is_multiple_of(heads) {
            return Err(config.invalid_value(heads_key, format!("it must divide {width_key} = {width}")));
        }
        Ok(Self {
            width,
            blocks: config.size(blocks)?,
            heads,
            key_value_heads: heads,
            attention_width: width,
            attention_scale: None,
            intermediate_size: config.size(intermediate_size)?,
            activation,
            gated: false,
            epsilon: 1e-12,
            norms_first: false,
            norm_bias: true,
            rms: false,
            projection_bias: true,
            key_bias: true,
            output_bias: true,
            feed_forward_bias: true,
            up_bias: true,
            values_first: false,
        })
    }

    /// Returns one form per block with the prefixes `{prefix}.0`, `{prefix}.1`, ...
    pub(super) fn numbered(&self, prefix: &str) -> Vec<BlockForm> {
        let forms = (0..self.blocks).map(|index| BlockForm {
            prefix: format!("{prefix}.{index}"),
            ..BlockForm::default()
        });
        forms.collect()
    }

    /// Takes the blocks of a slice from a checkpoint.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take), and [`LoadError::TooManySlices`].
    pub(super) fn take_blocks<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        forms: &[BlockForm],
        names: &BlockNames,
        distances: Option<&Distances<O>>,
        slice: Slice,
    ) -> Result<Vec<Arc<Block<O>>>, LoadError> {
        let mut taken: HashMap<&str, Arc<Block<O>>> = HashMap::new();
        let mut blocks = Vec::new();
        for form in of_slice(forms, slice, layers.weights.file())? {
            let block = match taken.get(form.prefix.as_str()) {
                Some(block) => block.clone(),
                None => Arc::new(self.take_block(layers, form, names, distances)?),
            };
            taken.insert(&form.prefix, block.clone());
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn take_block<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        form: &BlockForm,
        names: &BlockNames,
        distances: Option<&Distances<O>>,
    ) -> Result<Block<O>, LoadError> {
        let (width, intermediate_size) = (self.width, self.intermediate_size);
        let attention_width = self.attention_width;
        let at = |name: &str| format!("{}.{name}", form.prefix);
        let distances = distances
            .map(|form| self.take_distances(layers, form, names, &at))
            .transpose()?;
        let prefixes: Vec<String> = names.projections.iter().map(|part| at(part)).collect();
        let each = 3 * attention_width / prefixes.len().max(1);
        let biased: Vec<bool> = (0..prefixes.len())
            .map(|part| self.projection_bias && (part != 1 || self.key_bias))
            .collect();
        let up = if self.gated {
            2 * intermediate_size
        } else {
            intermediate_size
        };
        let scales = names.scales.map(|scales| {
            let [attention, feed_forward] = scales.map(|name| layers.factors(&at(name), width));
            Ok::<_, LoadError>([attention?, feed_forward?])
        });
        let scales = scales.transpose()?;
        let ups: Vec<String> = names.up.iter().map(|part| at(part)).collect();
        let up_bias = self.feed_forward_bias && self.up_bias;
        let attention_norm = if form.without_first_norm {
            None
        } else {
            Some(self.norm(layers, &at(names.attention_norm))?)
        };
        let global = form.global.map(|names| {
            let names = names.map(|name| format!("{}.{name}", form.prefix));
            GlobalAttention::take(layers, names, width, self.heads)
        });
        let convolution = form
            .convolution
            .as_ref()
            .map(|form| TokenConvolution::take(layers, form, width, self.epsilon));
        let position_bias = form.position_bias.as_ref();
        let position_bias = position_bias.map(|bias| bias.take(layers, self.heads, &at));
        // Distances add scores, which are scaled to the same variance (He et al. 2021, section 3.1).
        let summands = distances.as_ref().map_or(1, |scores| {
            1 + usize::from(scores.keys.is_some()) + usize::from(scores.queries.is_some())
        });
        Ok(Block {
            heads: self.heads,
            scale: self
                .attention_scale
                .unwrap_or_else(|| 1.0 / ((attention_width / self.heads * summands) as f32).sqrt()),
            window: form.window,
            rotary: form.rotary.clone(),
            global: global.transpose()?,
            convolution: convolution.transpose()?,
            position_bias: position_bias.transpose()?,
            distances,
            projections: match names.head_biases {
                Some(parts) => layers.by_head(&prefixes.concat(), &parts.map(&at), width, self.heads)?,
                None if self.key_value_heads < self.heads => {
                    let heads = [self.heads, self.key_value_heads];
                    layers.grouped(&prefixes, [width, attention_width], heads, &biased)?
                }
                None => layers.concatenated_with(&prefixes, width, each, &biased)?,
            },
            output: layers.linear_with(&at(names.output), attention_width, width, self.output_bias)?,
            attention_norm,
            up: if self.values_first {
                layers.swapped(&ups.concat(), width, up, up_bias)?
            } else {
                layers.concatenated(&ups, width, up / ups.len().max(1), up_bias)?
            },
            activation: self.activation,
            gated: self.gated,
            down: layers.linear_with(&at(names.down), intermediate_size, width, self.feed_forward_bias)?,
            feed_forward_norm: self.norm(layers, &at(names.feed_forward_norm))?,
            scales,
            norms_first: self.norms_first,
        })
    }

    /// Takes a norm of this encoder.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn norm<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        prefix: &str,
    ) -> Result<O::Norm, LoadError> {
        if self.rms {
            let gamma = layers.weights.take(&format!("{prefix}.weight"), &[self.width])?;
            return Ok(layers.ops.norm(gamma, None, self.epsilon as f32));
        }
        layers.layer_norm_with(prefix, self.width, self.epsilon, self.norm_bias)
    }

    /// Projects the vectors of the distances by the layers of a block. These may be the block's own projections, which
    /// are therefore copied.
    fn take_distances<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        form: &Distances<O>,
        names: &BlockNames,
        at: &impl Fn(&str) -> String,
    ) -> Result<DistanceScores<O::Matrix>, LoadError> {
        let mut project = |name: Option<&str>, biased: bool| -> Result<Option<O::Matrix>, LoadError> {
            let Some(name) = name else { return Ok(None) };
            let layer = if names.projections.contains(&name) {
                layers.shared_linear(&at(name), self.width, self.width)?
            } else {
                layers.linear_with(&at(name), self.width, self.width, biased)?
            };
            Ok(Some(layers.ops.multiply(&form.vectors, &layer)))
        };
        Ok(DistanceScores {
            keys: project(form.keys, form.key_bias)?,
            queries: project(form.queries, true)?,
            rows: form.rows.clone(),
        })
    }
}

/// Returns the forms of the blocks of a slice.
///
/// # Errors
/// [`LoadError::TooManySlices`].
pub(super) fn of_slice<'a>(
    forms: &'a [BlockForm],
    slice: Slice,
    file: &str,
) -> Result<&'a [BlockForm], LoadError> {
    if slice.of() > forms.len() {
        return Err(LoadError::TooManySlices {
            file: file.to_owned(),
            blocks: forms.len(),
            of: slice.of(),
        });
    }
    Ok(forms.get(slice.blocks(forms.len())).unwrap_or_default())
}

/// Reads the number that a norm adds to the variance.
///
/// # Errors
/// [`LoadError::MissingKey`], or [`LoadError::BadKey`] unless it is between 0 and 1.
pub(super) fn epsilon(config: &Config, key: &str) -> Result<f64, LoadError> {
    let epsilon = config.required::<f64>(key)?;
    if epsilon > 0.0 && epsilon < 1.0 {
        return Ok(epsilon);
    }
    Err(config.invalid_value(key, "it must be between 0 and 1"))
}

/// Reads an activation.
///
/// # Errors
/// [`LoadError::MissingKey`], or [`LoadError::BadKey`] for one that is not supported.
pub(super) fn activation(config: &Config, key: &str) -> Result<Activation, LoadError> {
    match config.required::<String>(key)?.as_str() {
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "silu" | "swish" => Ok(Activation::Silu),
        "tanh" => Ok(Activation::Tanh),
        "quick_gelu" => Ok(Activation::QuickGelu),
        "relu6" => Ok(Activation::Relu6),
        "sigmoid" => Ok(Activation::Sigmoid),
        "hard_swish" | "hardswish" => Ok(Activation::HardSwish),
        _ => Err(config.invalid_value(
            key,
            "gelu, gelu_new, gelu_pytorch_tanh, hardswish, quick_gelu, relu, relu6, sigmoid, silu and tanh are supported",
        )),
    }
}

impl<O: Ops> Block<O> {
    /// Computes the block. The rows of `x` are tokens, grouped by sequence; `sequences` says which are visible
    /// ([`Ops::attend_sequences`]).
    pub(super) fn forward(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
        bias: Option<&Bias<'_, O::Matrix>>,
    ) -> O::Matrix {
        let result = self.transformed(ops, x, sequences, bias);
        match &self.convolution {
            Some(convolution) => convolution.add_to(ops, x, &result, sequences),
            None => result,
        }
    }

    /// Computes attention and feed-forward layer.
    fn transformed(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
        bias: Option<&Bias<'_, O::Matrix>>,
    ) -> O::Matrix {
        let [before, after] = match &self.attention_norm {
            Some(norm) if self.norms_first => [Some(norm), None],
            norm => [None, norm.as_ref()],
        };
        let attended = self.attend(ops, x, before, sequences, bias);
        let x = match after {
            Some(norm) => ops.normalise(&attended, norm),
            None => attended,
        };
        if self.norms_first {
            return self.feed_forward(ops, &x, Some(&self.feed_forward_norm));
        }
        ops.normalise(&self.feed_forward(ops, &x, None), &self.feed_forward_norm)
    }

    /// Computes the attention of the rows, normalised if there is a norm, and adds the rows.
    fn attend(
        &self,
        ops: &O,
        x: &O::Matrix,
        norm: Option<&O::Norm>,
        sequences: &[&[bool]],
        bias: Option<&Bias<'_, O::Matrix>>,
    ) -> O::Matrix {
        let mut projected = match norm {
            Some(norm) => ops.multiply_normalised(x, norm, &self.projections),
            None => ops.multiply(x, &self.projections),
        };
        if let Some(rotary) = &self.rotary {
            let positions: Vec<usize> = sequences.iter().flat_map(|mask| 0..mask.len()).collect();
            // Queries and keys are the first two thirds of a row.
            ops.rotate(
                &mut projected,
                2 * self.heads,
                2 * rotary.frequencies.len(),
                rotary,
                &positions,
            );
        }
        let kinds = vec![0; sequences.len()];
        let attention = EncoderAttention {
            heads: self.heads,
            scale: self.scale,
            window: self.window,
            first: self.global.is_some(),
            position_bias: match bias {
                Some(Bias::ByDistance(table)) => Some(*table),
                _ => self.position_bias.as_ref(),
            },
            distances: self.distances.as_ref(),
            pairs: match bias {
                Some(Bias::ByPair(values, tokens)) => Some(PairScores {
                    values: *values,
                    kinds: &kinds,
                    tokens: *tokens,
                }),
                _ => None,
            },
        };
        let mut attended = ops.attend_sequences(&projected, sequences, &attention);
        if let Some(global) = &self.global {
            global.replace(ops, x, sequences, &mut attended);
        }
        let Some([factors, _]) = &self.scales else {
            return ops.multiply_and_add(&attended, &self.output, x);
        };
        let mut attended = ops.multiply(&attended, &self.output);
        ops.scale(&mut attended, factors);
        ops.add(&mut attended, x);
        attended
    }

    /// Computes the feed-forward layer of the rows, normalised if there is a norm, and adds the rows.
    fn feed_forward(&self, ops: &O, x: &O::Matrix, norm: Option<&O::Norm>) -> O::Matrix {
        let layers = [&self.up, &self.down];
        let Some([_, factors]) = &self.scales else {
            return ops.feed_forward_residual(x, norm, layers, self.activation, self.gated);
        };
        let normalised = norm.map(|norm| ops.normalise(x, norm));
        let x_or_normalised = normalised.as_ref().unwrap_or(x);
        let mut fed = ops.feed_forward(x_or_normalised, layers, self.activation, self.gated);
        ops.scale(&mut fed, factors);
        ops.add(&mut fed, x);
        fed
    }
}
