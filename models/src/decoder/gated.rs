//! Llama-like decoders: norms, rotary positions, grouped-query attention, and a feed-forward that is usually gated. A
//! family states its differences in its [`ModelConfig`] and a [`Layout`].

use kaskade_policy::plan::Partition;

use super::config_values::{activation, eos_token_ids, epsilon, layers};
use super::experts::ExpertLayout;
use super::gated_layer;
use super::latent::LatentLayout;
use super::recurrent::RecurrentLayout;
use super::rotary::{RotaryKeys, RotaryPositions, rotary};
use super::streams::StreamLayout;
use super::weights::{Decoder, LayerWeights, LocalAttention, ModelConfig, NormWeights};
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::ops::{Activation, Heads};

/// Tensor layout of a family, beyond the tensors of every decoder of this kind.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "which tensors a family has")]
pub(super) struct Layout {
    /// Whether the query, key and value projections have biases.
    pub(super) qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub(super) output_bias: bool,
    /// Whether the feed-forward has biases.
    pub(super) feed_forward_bias: bool,
    /// Name of the fused projection to queries, keys and values, if there is one (Phi-3).
    pub(super) fused_projections: Option<&'static str>,
    /// Sizes of latent attention (`DeepSeek`), if keys and values are computed from latent vectors.
    pub(super) latent: Option<LatentLayout>,
    /// Recurrent mixers of some layers.
    pub(super) recurrent: Option<RecurrentLayout>,
    /// Further parameters of a layer.
    pub(super) extra: Extra,
    /// Name of the output projection.
    pub(super) output: &'static str,
    /// Names of the first layers of the feed-forward: gate and up projection, or a fused one.
    pub(super) up: &'static [&'static str],
    /// Name of the down projection.
    pub(super) down: &'static str,
    /// Experts in place of the feed-forward, or in addition to a shared one.
    pub(super) experts: Option<ExpertLayout>,
    /// Kind of the norms.
    pub(super) norms: NormKind,
    /// Offset to add to the weights of the norms (Gemma).
    pub(super) norm_offset: f32,
    /// Names of a layer's norms.
    pub(super) norm_names: NormNames,
    /// Whether layers without attention have norms before mixer and feed-forward, as in Llama, whatever norms the
    /// others have (`OLMo` Hybrid).
    pub(super) recurrent_input_norms: bool,
    /// Query-key norms, if there are any.
    pub(super) head_norms: HeadNormLayout,
    /// Prefix of embedding and layers.
    pub(super) base: &'static str,
    /// Name of the final norm.
    pub(super) final_norm: &'static str,
    /// Whether each layer has the attention of [`ModelConfig::local`].
    pub(super) local_layers: Vec<bool>,
    /// Size of a value head, if it is smaller than that of a key head (`MiMo`).
    pub(super) value_dim: Option<usize>,
    /// Whether global layers use keys also as values, before norm and rotation (Gemma 4).
    pub(super) keys_are_values: bool,
    /// For each layer, the layer whose keys and values it uses; empty if each layer uses its own.
    pub(super) kv_sources: Vec<usize>,
    /// Size of each feed-forward; empty if all have the size in [`ModelConfig`].
    pub(super) inner_sizes: Vec<usize>,
    /// Per layer, the threshold below which gates of the feed-forward become zero, in standard deviations above their
    /// mean; empty if no layer is sparse.
    pub(super) sparsity: Vec<Option<f32>>,
    /// AltUp streams, if there are any.
    pub(super) streams: Option<StreamLayout>,
    /// Width of per-layer embeddings, if there are any.
    pub(super) per_layer_width: Option<usize>,
    /// Name of the factor of a layer's output, if there is one.
    pub(super) output_scale: Option<&'static str>,
    /// Number of embedding rows after the vocabulary, which texts do not use.
    pub(super) unused_tokens: usize,
    /// Layer numbers in tensor names; empty if they equal the indices.
    pub(super) layer_names: Vec<usize>,
}

/// Parameters of a layer besides linear layers and norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extra {
    /// None.
    No,
    /// Attention sinks (gpt-oss).
    Sinks,
    /// Attention sinks of local layers (`MiMo`).
    LocalSinks,
    /// Coefficients of the activation xIELU (Apertus).
    Activation,
    /// Gates of the attention's output; the gates of a head follow its queries in the query projection (Qwen 3.5).
    OutputGate,
    /// Norms before the output projection and the down projection (`BitNet`).
    InnerNorms,
    /// Gates of the attention's output, with a separate projection (Trinity).
    OwnOutputGate,
    /// One gate per head of the attention's output (LFM3).
    HeadGate,
}

/// Names of a layer's norms; a family has some of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct NormNames {
    /// Norm before attention.
    pub(super) attention: &'static str,
    /// Norm after attention.
    pub(super) attention_output: &'static str,
    /// Norm before the feed-forward.
    pub(super) feed_forward: &'static str,
    /// Norm after the feed-forward.
    pub(super) feed_forward_output: &'static str,
}

/// Layout of query-key norms.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadNormLayout {
    /// Names of the query norms and the key norms.
    pub(super) names: [&'static str; 2],
    /// Storage layout.
    pub(super) tensors: HeadNormTensors,
}

/// Storage layout of query-key norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadNormTensors {
    /// Norms of the same kind as the others.
    Norm,
    /// Weights of layer norms without bias, one row per head (Command R+).
    Rows,
    /// Layer norms without bias, one per head (`StableLM`).
    Each,
    /// RMS norms without weights, in local layers only (Llama 4).
    Local,
    /// RMS norms without weights (nanochat).
    Plain,
}

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    /// RMS norms.
    Rms,
    /// Layer norms with bias.
    Layer,
    /// Layer norms without bias.
    Unbiased,
    /// Layer norms without weights.
    Plain,
    /// RMS norms without weights.
    PlainRms,
}

impl NormKind {
    pub(super) fn take(
        self,
        weights: &mut Weights,
        name: &str,
        width: usize,
    ) -> Result<NormWeights, LoadError> {
        match self {
            Self::Rms => NormWeights::take_rms(weights, name, width),
            Self::Layer => NormWeights::take(weights, name, width),
            Self::Unbiased => NormWeights::take_unbiased(weights, name, width),
            Self::Plain => Ok(NormWeights::plain(width)),
            Self::PlainRms => Ok(NormWeights::plain_rms(width)),
        }
    }
}

impl Default for Layout {
    /// Returns the names and norms of Llama, without biases.
    fn default() -> Self {
        Self {
            qkv_bias: false,
            output_bias: false,
            feed_forward_bias: false,
            fused_projections: None,
            latent: None,
            recurrent: None,
            extra: Extra::No,
            output: "self_attn.o_proj",
            up: &["mlp.gate_proj", "mlp.up_proj"],
            down: "mlp.down_proj",
            experts: None,
            norms: NormKind::Rms,
            norm_offset: 0.0,
            norm_names: NormNames {
                attention: "input_layernorm",
                attention_output: "post_attention_layernorm",
                feed_forward: "post_attention_layernorm",
                feed_forward_output: "post_feedforward_layernorm",
            },
            recurrent_input_norms: false,
            head_norms: HeadNormLayout {
                names: ["self_attn.q_norm", "self_attn.k_norm"],
                tensors: HeadNormTensors::Norm,
            },
            base: "model",
            final_norm: "model.norm",
            local_layers: Vec::new(),
            value_dim: None,
            keys_are_values: false,
            kv_sources: Vec::new(),
            inner_sizes: Vec::new(),
            per_layer_width: None,
            output_scale: None,
            sparsity: Vec::new(),
            streams: None,
            unused_tokens: 0,
            layer_names: Vec::new(),
        }
    }
}

impl Layout {
    /// Returns the default with the biases that `attention_bias` and `mlp_bias` state.
    pub(super) fn with_biases(config: &Config) -> Result<Self, LoadError> {
        let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
        Ok(Self {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            feed_forward_bias: config.optional("mlp_bias")?.unwrap_or(false),
            ..Self::default()
        })
    }
}

/// Reads the configuration keys that decoders of this kind share.
pub(super) fn model_config(config: &Config, keys: RotaryKeys) -> Result<ModelConfig, LoadError> {
    activated(config, activation(config, "hidden_act", "silu")?, keys)
}

/// Same as [`model_config`], with an activation that `hidden_act` does not state.
pub(super) fn activated(
    config: &Config,
    activation: Activation,
    keys: RotaryKeys,
) -> Result<ModelConfig, LoadError> {
    let heads = heads(config, config.size("hidden_size")?)?;
    let positions = rotary(config, heads.head_dim, keys)?;
    shared(config, heads, positions, activation)
}

/// Same as [`model_config`], with given heads and positions.
pub(super) fn with_positions(
    config: &Config,
    heads: Heads,
    positions: RotaryPositions,
) -> Result<ModelConfig, LoadError> {
    shared(
        config,
        heads,
        positions,
        activation(config, "hidden_act", "silu")?,
    )
}

/// Same as [`activated`], with a feed-forward size that `intermediate_size` does not state.
pub(super) fn sized(
    config: &Config,
    intermediate_size: usize,
    activation: Activation,
    keys: RotaryKeys,
) -> Result<ModelConfig, LoadError> {
    let heads = heads(config, config.size("hidden_size")?)?;
    let positions = rotary(config, heads.head_dim, keys)?;
    with_size(config, heads, positions, activation, intermediate_size)
}

fn shared(
    config: &Config,
    heads: Heads,
    positions: RotaryPositions,
    activation: Activation,
) -> Result<ModelConfig, LoadError> {
    with_size(
        config,
        heads,
        positions,
        activation,
        config.size("intermediate_size")?,
    )
}

fn with_size(
    config: &Config,
    heads: Heads,
    positions: RotaryPositions,
    activation: Activation,
    intermediate_size: usize,
) -> Result<ModelConfig, LoadError> {
    let context = config.size("max_position_embeddings")?;
    Ok(ModelConfig {
        width: config.size("hidden_size")?,
        heads,
        intermediate_size,
        vocabulary: config.size("vocab_size")?,
        context: positions.context.map_or(context, |trained| context.min(trained)),
        epsilon: epsilon(config, "rms_norm_eps", 1e-6)?,
        activation,
        gated: true,
        rotary: Some(positions.rotary),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

/// Returns the attention of local layers, and which layers are local: by `layer_types`, or in files without it by
/// `local`, given the layer's index. None without `sliding_window`.
pub(super) fn windows(
    config: &Config,
    local: impl Fn(usize) -> bool,
) -> Result<(Option<LocalAttention>, Vec<bool>), LoadError> {
    let Some(window) = config.optional_size("sliding_window")? else {
        return Ok((None, Vec::new()));
    };
    let local_layers = match config.optional::<Vec<String>>("layer_types")? {
        None => (0..config.size("num_hidden_layers")?).map(local).collect(),
        Some(_) => layers_of_type(config, "layer_types", &["sliding_attention"], &["full_attention"])?,
    };
    let rotary = None;
    let window = Some(window);
    Ok((Some(LocalAttention { window, rotary }), local_layers))
}

/// Restricts rotary positions to the sliding-window layers, if there are any.
pub(super) fn positions_of_windows(mut base: ModelConfig, local: Option<LocalAttention>) -> ModelConfig {
    if let Some(local) = local {
        let rotary = base.rotary.take();
        base.local = Some(LocalAttention { rotary, ..local });
    }
    base
}

/// Returns which layers have rotary positions, by `no_rope_layers`, or by the interval of layers without them.
pub(super) fn rotated_layers(config: &Config) -> Result<Vec<bool>, LoadError> {
    let count = config.size("num_hidden_layers")?;
    let interval = config.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    // 1 means a layer with positions.
    let key = "no_rope_layers";
    let listed = config.optional::<Vec<u8>>(key)?;
    match listed.filter(|listed| !listed.is_empty()) {
        None => Ok((1..=count).map(|layer| !layer.is_multiple_of(interval)).collect()),
        Some(listed) if listed.len() < count => {
            Err(config.invalid_value(key, format!("it must have an entry for all {count} layers")))
        }
        Some(listed) => Ok(listed
            .into_iter()
            .take(count)
            .map(|rotated| rotated != 0)
            .collect()),
    }
}

/// Returns which layers have a type in `wanted`, by the list `key`; all others must have a type in `others`.
pub(super) fn layers_of_type(
    config: &Config,
    key: &str,
    wanted: &[&str],
    others: &[&str],
) -> Result<Vec<bool>, LoadError> {
    let count = config.size("num_hidden_layers")?;
    let types = config.required::<Vec<String>>(key)?;
    if types.len() != count {
        return Err(config.invalid_value(key, format!("it must name the type of all {count} layers")));
    }
    let is_one = |known: &[&str], name: &String| known.contains(&name.as_str());
    if types
        .iter()
        .any(|name| !is_one(wanted, name) && !is_one(others, name))
    {
        let reason = format!("{} are supported", [others, wanted].concat().join(" and "));
        return Err(config.invalid_value(key, reason));
    }
    Ok(types.iter().map(|name| is_one(wanted, name)).collect())
}

/// Reads the weights.
pub(super) fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    model_config: ModelConfig,
    layout: &Layout,
) -> Result<Decoder, LoadError> {
    read_adapted(checkpoint, partition, model_config, layout, |layer, _| layer)
}

/// Reads the weights, and applies `adapt` to those of every layer.
pub(super) fn read_adapted(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    model_config: ModelConfig,
    layout: &Layout,
    adapt: impl Fn(LayerWeights, &ModelConfig) -> LayerWeights,
) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let (width, vocabulary) = (model_config.width, model_config.vocabulary);
    let mut embedding = weights.take(
        &format!("{}.embed_tokens.weight", layout.base),
        &[vocabulary + layout.unused_tokens, width],
    )?;
    embedding.truncate(vocabulary * width);
    let mut blocks: Vec<LayerWeights> = Vec::new();
    for index in layers(config, "num_hidden_layers", partition)? {
        let source = layout.kv_sources.get(index).filter(|source| **source < index);
        let source = source.and_then(|source| blocks.get(*source));
        let layer = gated_layer::read(weights, &model_config, layout, (index, source))?;
        let layer = adapt(layer, &model_config);
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = layout.norms.take(weights, layout.final_norm, width)?;
    let final_norm = final_norm.plus(layout.norm_offset);
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

/// Reads the attention heads.
pub(super) fn heads(config: &Config, width: usize) -> Result<Heads, LoadError> {
    let queries = config.size("num_attention_heads")?;
    let keys = config.optional_size("num_key_value_heads")?.unwrap_or(queries);
    if !queries.is_multiple_of(keys) {
        return Err(config.invalid_value(
            "num_key_value_heads",
            format!("it must divide num_attention_heads = {queries}"),
        ));
    }
    let head_dim = match config.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if width.is_multiple_of(queries) => width / queries,
        None => {
            let reason = format!("it must divide hidden_size = {width} if head_dim is missing");
            return Err(config.invalid_value("num_attention_heads", reason));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(config.invalid_value(
            "head_dim",
            "it must be even, because elements are rotated in pairs",
        ));
    }
    Ok(Heads {
        queries,
        keys,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
    })
}
