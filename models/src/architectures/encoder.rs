//! The transformer encoder shared by all encoder architectures (Vaswani et al. 2017, "Attention Is All You Need",
//! section 3). An architecture describes its blocks with an [`EncoderConfig`] and [`BlockNames`].

pub(super) mod block_attention;
pub(super) mod bottleneck;
pub(super) mod dynamic_convolution;
pub(super) mod feed_forward;
pub(super) mod fourier;
pub(super) mod global_attention;
pub(super) mod grid_rotary;
pub(super) mod position_bias;
pub(super) mod relative_attention;
pub(super) mod residual;
pub(super) mod token_convolution;

use std::collections::HashMap;
use std::sync::Arc;

use kaskade_policy::plan::Partition;

use self::block_attention::BlockAttention;
use self::feed_forward::{ExpertsConfig, FeedForward};
use self::fourier::Fourier;
use self::grid_rotary::GridRotary;
use self::position_bias::PositionBias;
use self::token_convolution::{ConvolutionConfig, TokenConvolution};
use super::layers::Layers;
use super::weight_layout::WeightLayouts;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, DistanceRows, Ops, OpsError, Rotary};

/// Dimensions of an encoder, and the computation of its blocks.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each names one independent property"
)]
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EncoderConfig {
    /// Hidden size.
    pub width: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of attention heads; divides `attention_width`.
    pub heads: usize,
    /// Number of key and value heads, which divides `heads`; equal to `heads` without grouped-query attention.
    pub key_value_heads: usize,
    /// Width of all queries of a token, and of its ungrouped keys and values; the hidden size unless the checkpoint
    /// says otherwise.
    pub attention_width: usize,
    /// Factor of attention scores; by default the inverse square root of the head size.
    pub attention_scale: Option<f32>,
    /// Intermediate size of the feed-forward.
    pub intermediate_size: usize,
    /// Activation of the feed-forward.
    pub activation: Activation,
    /// Whether the feed-forward is gated: its activation is multiplied by a second projection.
    pub gated: bool,
    /// Epsilon of the norms.
    pub epsilon: f64,
    /// Whether norms come before attention and feed-forward (pre-norm) instead of after the residual sums (post-norm).
    pub norms_first: bool,
    /// Whether the norms have a bias.
    pub norm_bias: bool,
    /// Whether the norms are RMS norms, without mean and bias.
    pub rms: bool,
    /// Offset to add to the weights of RMS norms.
    pub norm_offset: f32,
    /// Whether the query, key and value projections have a bias.
    pub projection_bias: bool,
    /// Whether the key projection has a bias if the others do; it is then a separate layer.
    pub key_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward has biases.
    pub feed_forward_bias: bool,
    /// Whether the first layer of the feed-forward has a bias if `feed_forward_bias` is set.
    pub up_bias: bool,
    /// Whether the first layer, if gated and fused, has the values before the gate.
    pub values_first: bool,
    /// Token mixing of the blocks.
    pub mixing: Mixing,
    /// Storage layout of linear layers in the file.
    pub weight_layouts: WeightLayouts,
}

/// Token mixing of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mixing {
    /// Attention.
    #[default]
    Attention,
    /// Attention whose queries have separate biases for keys, distances and segments (`XLNet`).
    Relative,
    /// Attention in parallel with dynamic convolutions (`ConvBERT`).
    Convolutions {
        /// Kernel size of the convolutions, tokens; odd.
        kernel: usize,
    },
    /// Fourier transforms instead of attention (`FNet`).
    Fourier,
}

/// Names of a block's tensors, relative to the prefix of the block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockNames {
    /// Names of the query, key and value projections, or of a fused layer.
    pub projections: &'static [&'static str],
    /// Biases of queries and values, if they are separate from the fused layer and keys have no bias.
    pub split_biases: Option<SplitBiases>,
    /// Name of the output projection.
    pub output: &'static str,
    /// Name of the attention's norm.
    pub attention_norm: &'static str,
    /// Names of the first layer of the feed-forward; if gated, gate and values, in one layer or two.
    pub up: &'static [&'static str],
    /// Name of the second layer of the feed-forward.
    pub down: &'static str,
    /// Name of the norm before the second layer of the feed-forward, if there is one.
    pub inner_norm: Option<&'static str>,
    /// Name of the feed-forward's norm.
    pub feed_forward_norm: &'static str,
    /// Names of the layer scales of attention and feed-forward, if there are any.
    pub scales: Option<[&'static str; 2]>,
    /// Names of the norms after attention and feed-forward, if there are any.
    pub output_norms: Option<[&'static str; 2]>,
    /// Names of the query and key norms, if there are any.
    pub head_norms: Option<[&'static str; 2]>,
}

/// Biases that are stored separately from a fused projection.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitBiases {
    /// Names of the query bias and the value bias.
    pub names: [&'static str; 2],
    /// Whether the fused layer is ordered by head, instead of all queries, all keys and all values.
    pub by_head: bool,
}

impl BlockNames {
    /// Names in BERT and most architectures derived from it.
    pub(super) const BERT: Self = Self {
        projections: &[
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ],
        split_biases: None,
        output: "attention.output.dense",
        attention_norm: "attention.output.LayerNorm",
        up: &["intermediate.dense"],
        down: "output.dense",
        inner_norm: None,
        feed_forward_norm: "output.LayerNorm",
        scales: None,
        output_norms: None,
        head_norms: None,
    };
}

/// Properties of a single block of an encoder.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct BlockConfig {
    /// Prefix of the tensors; blocks with the same prefix share their weights.
    pub prefix: String,
    /// Whether the block has no norm before its attention.
    pub without_first_norm: bool,
    /// Attention window: maximum distance between tokens.
    pub window: Option<usize>,
    /// Rotary embedding of queries and keys.
    pub rotary: Option<Rotary>,
    /// Rotary embedding of queries and keys by the row and column of patches.
    pub grid: Option<Arc<GridRotary>>,
    /// Names of the projections for global attention of the first tokens; all tokens then attend to these regardless
    /// of the window.
    pub global: Option<[&'static str; 3]>,
    /// Convolution of the block's input that is added to its result.
    pub convolution: Option<ConvolutionConfig>,
    /// Position bias of this block, if it has its own.
    pub position_bias: Option<PositionBias>,
    /// Experts instead of the feed-forward.
    pub experts: Option<ExpertsConfig>,
}

/// Projection of distance embeddings to queries and keys ([`DistanceScores`]).
pub(super) struct Distances<O: Ops> {
    /// Row of each distance.
    pub rows: DistanceRows,
    /// Embeddings of the distances `[rows, width]`.
    pub vectors: O::Matrix,
    /// Name of the layer in a block that computes the keys.
    pub keys: Option<&'static str>,
    /// Whether the key layer has a bias.
    pub key_bias: bool,
    /// Name of the layer in a block that computes the queries.
    pub queries: Option<&'static str>,
}

/// Terms to add to the scores of an attention.
pub(super) enum Bias<'a, X> {
    /// Table of a [`RelativeBias`](crate::ops::RelativeBias).
    Distances(&'a X),
    /// Scores of all token pairs for this number of tokens, `[heads, tokens * tokens]`.
    Pairs(&'a X, usize),
    /// Kinds (segments) of the tokens per sequence; the blocks compute scores for pairs of different kinds.
    Kinds(&'a [&'a [i64]]),
}

/// A block: attention or another token mixer, then a feed-forward, each with a norm and a residual connection.
pub(super) struct Block<O: Ops> {
    mixer: Mixer<O>,
    convolution: Option<TokenConvolution<O>>,
    attention_norm: Option<O::Norm>,
    feed_forward: FeedForward<O>,
    feed_forward_norm: O::Norm,
    norms_first: bool,
}

/// Token mixer of a block.
enum Mixer<O: Ops> {
    Attention(Box<BlockAttention<O>>),
    Fourier(Arc<Fourier<O>>),
}

/// Maximum number of layers of an encoder; each layer has a description, which is created before its weights are read.
pub(super) const MAX_LAYERS: usize = 10_000;

/// Reads a number of layers.
///
/// # Errors
/// [`LoadError::MissingKey`], or [`LoadError::BadKey`] for more than [`MAX_LAYERS`].
pub(super) fn layer_count(config: &Config, key: &str) -> Result<usize, LoadError> {
    let layers = config.size(key)?;
    if layers > MAX_LAYERS {
        return Err(config.invalid_value(key, format!("it must be at most {MAX_LAYERS}")));
    }
    Ok(layers)
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

    /// Reads hidden size, number of blocks and heads, feed-forward size and activation from these keys; the rest is as
    /// in BERT.
    ///
    /// # Errors
    /// Same as [`EncoderConfig::read`].
    pub(super) fn sized(config: &Config, keys: [&str; 5]) -> Result<Self, LoadError> {
        let [width_key, blocks, heads_key, intermediate_size, activation_key] = keys;
        let keys = [width_key, blocks, heads_key, intermediate_size];
        Self::sized_with(config, keys, activation(config, activation_key)?)
    }

    /// Reads hidden size, number of blocks and heads, and feed-forward size from these keys; the rest is as in BERT.
    ///
    /// # Errors
    /// Same as [`EncoderConfig::read`].
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
            blocks: layer_count(config, blocks)?,
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
            norm_offset: 0.0,
            projection_bias: true,
            key_bias: true,
            output_bias: true,
            feed_forward_bias: true,
            up_bias: true,
            values_first: false,
            mixing: Mixing::Attention,
            weight_layouts: WeightLayouts::default(),
        })
    }

    /// Returns the configurations of the blocks, with the prefixes `{prefix}.0`, `{prefix}.1`, ...
    pub(super) fn numbered(&self, prefix: &str) -> Vec<BlockConfig> {
        let configs = (0..self.blocks).map(|index| BlockConfig {
            prefix: format!("{prefix}.{index}"),
            ..BlockConfig::default()
        });
        configs.collect()
    }

    /// Takes the blocks of a partition from a checkpoint.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take), and [`LoadError::TooManyPartitions`].
    pub(super) fn take_blocks<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        configs: &[BlockConfig],
        names: &BlockNames,
        distances: Option<&Distances<O>>,
        partition: Partition,
    ) -> Result<Vec<Arc<Block<O>>>, LoadError> {
        let fourier = matches!(self.mixing, Mixing::Fourier);
        let fourier = fourier.then(|| Arc::new(Fourier::new(layers.ops, self.width)));
        let mut taken: HashMap<&str, Arc<Block<O>>> = HashMap::new();
        let mut blocks = Vec::new();
        for config in of_partition(configs, partition, layers.weights.file())? {
            let block = match taken.get(config.prefix.as_str()) {
                Some(block) => block.clone(),
                None => Arc::new(self.take_block(layers, config, names, distances, fourier.as_ref())?),
            };
            taken.insert(&config.prefix, block.clone());
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn take_block<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        config: &BlockConfig,
        names: &BlockNames,
        distances: Option<&Distances<O>>,
        fourier: Option<&Arc<Fourier<O>>>,
    ) -> Result<Block<O>, LoadError> {
        let at = |name: &str| format!("{}.{name}", config.prefix);
        let mixer = match fourier {
            Some(fourier) => Mixer::Fourier(fourier.clone()),
            None => Mixer::Attention(Box::new(self.take_attention(layers, config, names, distances)?)),
        };
        let attention_norm = if config.without_first_norm {
            None
        } else {
            Some(self.norm(layers, &at(names.attention_norm))?)
        };
        let convolution = config
            .convolution
            .as_ref()
            .map(|convolution| TokenConvolution::take(layers, convolution, self.width, self.epsilon));
        Ok(Block {
            mixer,
            convolution: convolution.transpose()?,
            attention_norm,
            feed_forward: self.take_feed_forward(layers, config, names)?,
            feed_forward_norm: self.norm(layers, &at(names.feed_forward_norm))?,
            norms_first: self.norms_first,
        })
    }

    /// Takes a norm of this encoder.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn norm<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        prefix: &str,
    ) -> Result<O::Norm, LoadError> {
        if self.rms {
            let gamma = layers.weights.take(&format!("{prefix}.weight"), &[self.width])?;
            let gamma = gamma
                .into_iter()
                .map(|factor| factor + self.norm_offset)
                .collect();
            return Ok(layers.ops.norm(gamma, None, self.epsilon as f32));
        }
        layers.layer_norm_with(prefix, self.width, self.epsilon, self.norm_bias)
    }
}

/// Returns the configurations of the blocks of a partition.
///
/// # Errors
/// [`LoadError::TooManyPartitions`].
pub(super) fn of_partition<'a>(
    configs: &'a [BlockConfig],
    partition: Partition,
    file: &str,
) -> Result<&'a [BlockConfig], LoadError> {
    if partition.of as usize > configs.len() {
        return Err(LoadError::TooManyPartitions {
            file: file.to_owned(),
            blocks: configs.len(),
            of: partition.of,
        });
    }
    Ok(configs.get(partition.layers(configs.len())).unwrap_or_default())
}

/// Reads the epsilon of a norm.
///
/// # Errors
/// [`LoadError::MissingKey`], or [`LoadError::BadKey`] unless the value is between 0 and 1.
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
/// [`LoadError::MissingKey`], or [`LoadError::BadKey`] for an unsupported activation.
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
    /// Computes the block. The rows of `x` are tokens, grouped by sequence; `sequences` states which tokens are
    /// visible ([`Ops::attend_sequences`]).
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; only blocks with experts wait for the device.
    pub(super) fn forward(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
        bias: Option<&Bias<'_, O::Matrix>>,
    ) -> Result<O::Matrix, OpsError> {
        let result = self.transformed(ops, x, sequences, bias)?;
        Ok(match &self.convolution {
            Some(convolution) => convolution.add_to(ops, x, &result, sequences),
            None => result,
        })
    }

    /// Computes attention and feed-forward.
    fn transformed(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
        bias: Option<&Bias<'_, O::Matrix>>,
    ) -> Result<O::Matrix, OpsError> {
        let [before, after] = match &self.attention_norm {
            Some(norm) if self.norms_first => [Some(norm), None],
            norm => [None, norm.as_ref()],
        };
        let attended = match &self.mixer {
            Mixer::Attention(attention) => attention.add_to(ops, x, before, sequences, bias),
            Mixer::Fourier(fourier) => fourier.add_to(ops, x, sequences),
        };
        let x = match after {
            Some(norm) => ops.normalise(&attended, norm),
            None => attended,
        };
        if self.norms_first {
            return self.feed_forward.add_to(ops, &x, Some(&self.feed_forward_norm));
        }
        let fed = self.feed_forward.add_to(ops, &x, None)?;
        Ok(ops.normalise(&fed, &self.feed_forward_norm))
    }
}
