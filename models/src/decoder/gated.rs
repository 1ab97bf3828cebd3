//! Decoders of the Llama kind: norms, rotary positions, grouped-query attention, a feed-forward layer that is mostly gated. A
//! family states in its [`ModelConfig`] and a [`Layout`] how it differs, and which of its layers see a window only.

use super::config_values::{activation, eos_token_ids, epsilon, layers};
use super::experts::{ExpertLayout, ExpertWeights};
use super::rotary::{RotaryKeys, rotary};
use super::weights::{
    Decoder, HeadNorms, LayerWeights, LinearWeights, LocalAttention, ModelConfig, NormWeights, OutputNorms,
    Parallel, QueryKeyNorm,
};
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::ops::Heads;
use crate::runtime::slice::Slice;

/// What a family's tensors are, beyond those of every decoder of this kind.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Whether the projections to queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub(super) output_bias: bool,
    /// Whether the feed-forward layer has biases.
    pub(super) feed_forward_bias: bool,
    /// The layer that holds queries, keys and values, if one tensor does (Phi-3).
    pub(super) fused_projections: Option<&'static str>,
    /// Output projection.
    pub(super) output: &'static str,
    /// First layers of the feed-forward layer: gate and values, or one that holds all.
    pub(super) up: &'static [&'static str],
    /// Its last layer.
    pub(super) down: &'static str,
    /// Experts in place of the feed-forward layer, or beside it if one is shared.
    pub(super) experts: Option<ExpertLayout>,
    /// Kind of the norms.
    pub(super) norms: NormKind,
    /// Added to the factors of the norms (Gemma).
    pub(super) norm_offset: f32,
    /// Final norm.
    pub(super) final_norm: &'static str,
    /// Which layers have the attention of [`ModelConfig::local`].
    pub(super) local_layers: Vec<bool>,
}

/// What the norms compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    /// RMS norms.
    Rms,
    /// Layer norms with offsets.
    Layer,
    /// Layer norms without offsets.
    Unbiased,
    /// Layer norms without weights.
    Plain,
}

impl NormKind {
    fn take(self, weights: &mut Weights, name: &str, width: usize) -> Result<NormWeights, LoadError> {
        match self {
            Self::Rms => NormWeights::take_rms(weights, name, width),
            Self::Layer => NormWeights::take(weights, name, width),
            Self::Unbiased => NormWeights::take_unbiased(weights, name, width),
            Self::Plain => Ok(NormWeights {
                gamma: vec![1.0; width],
                beta: Some(vec![0.0; width]),
            }),
        }
    }
}

impl Default for Layout {
    /// The names and norms of Llama, without biases.
    fn default() -> Self {
        Self {
            qkv_bias: false,
            output_bias: false,
            feed_forward_bias: false,
            fused_projections: None,
            output: "self_attn.o_proj",
            up: &["mlp.gate_proj", "mlp.up_proj"],
            down: "mlp.down_proj",
            experts: None,
            norms: NormKind::Rms,
            norm_offset: 0.0,
            final_norm: "model.norm",
            local_layers: Vec::new(),
        }
    }
}

impl Layout {
    /// The default with the biases that `attention_bias` and `mlp_bias` state.
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

/// Reads the configuration that decoders of this kind share.
pub(super) fn model_config(config: &Config, keys: RotaryKeys) -> Result<ModelConfig, LoadError> {
    let width = config.size("hidden_size")?;
    let heads = heads(config, width)?;
    let positions = rotary(config, heads.head_dim, keys)?;
    let context = config.size("max_position_embeddings")?;
    Ok(ModelConfig {
        width,
        heads,
        intermediate_size: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        context: positions.context.map_or(context, |trained| context.min(trained)),
        epsilon: epsilon(config, "rms_norm_eps", 1e-6)?,
        activation: activation(config, "hidden_act", "silu")?,
        gated: true,
        rotary: Some(positions.rotary),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

/// Returns the attention of local layers and which layers are local: by `layer_types`, or by `local`, which takes the
/// index of a layer, in files without it. None without `sliding_window`.
pub(super) fn windows(
    config: &Config,
    local: impl Fn(usize) -> bool,
) -> Result<(Option<LocalAttention>, Vec<bool>), LoadError> {
    let Some(window) = config.optional_size("sliding_window")? else {
        return Ok((None, Vec::new()));
    };
    let key = "layer_types";
    let count = config.size("num_hidden_layers")?;
    let local_layers = match config.optional::<Vec<String>>(key)? {
        None => (0..count).map(local).collect(),
        Some(types) if types.len() != count => {
            return Err(config.invalid_value(key, format!("it must name the type of all {count} layers")));
        }
        Some(types) => {
            let parsed = types.iter().map(|name| match name.as_str() {
                "sliding_attention" => Ok(true),
                "full_attention" => Ok(false),
                _ => Err(config.invalid_value(key, "full_attention and sliding_attention are supported")),
            });
            parsed.collect::<Result<Vec<bool>, _>>()?
        }
    };
    let rotary = None;
    let window = Some(window);
    Ok((Some(LocalAttention { window, rotary }), local_layers))
}

/// Reads the weights.
pub(super) fn read(
    checkpoint: &mut Checkpoint,
    slice: Slice,
    model_config: ModelConfig,
    layout: &Layout,
) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let (width, vocabulary) = (model_config.width, model_config.vocabulary);
    let embedding = weights.take("model.embed_tokens.weight", &[vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", slice)? {
        let layer = layer(weights, &model_config, layout, index)?;
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = layout.norms.take(weights, layout.final_norm, width)?;
    let final_norm = final_norm.plus(layout.norm_offset);
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

fn layer(
    weights: &mut Weights,
    model_config: &ModelConfig,
    layout: &Layout,
    index: usize,
) -> Result<LayerWeights, LoadError> {
    let (width, inner) = (model_config.width, model_config.intermediate_size);
    let (query, key) = (model_config.heads.query_width(), model_config.heads.key_width());
    let at = |name: &str| format!("model.layers.{index}.{name}");
    let mut from = |name: &str, inputs: usize, outputs: usize, bias: bool| {
        LinearWeights::take(weights, &at(name), inputs, outputs, bias)
    };
    let (query, key_value) = if let Some(fused) = layout.fused_projections {
        from(fused, width, query + 2 * key, layout.qkv_bias)?.split(query)
    } else {
        let keys = from("self_attn.k_proj", width, key, layout.qkv_bias)?;
        let values = from("self_attn.v_proj", width, key, layout.qkv_bias)?;
        let query = from("self_attn.q_proj", width, query, layout.qkv_bias)?;
        (query, keys.concat_outputs(&values))
    };
    let output = from(layout.output, query.outputs, width, layout.output_bias)?;
    let mixture = layout.experts.as_ref();
    let mixture = mixture.filter(|experts| experts.layers.get(index).copied().unwrap_or_default());
    let (mut up, mut down) = (Vec::new(), LinearWeights::default());
    if let Some(experts) = mixture {
        if let Some(inner) = experts.shared {
            for name in ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"] {
                up.push(from(name, width, inner, false)?);
            }
            down = from("mlp.shared_expert.down_proj", inner, width, false)?;
        }
    } else {
        let each = if model_config.gated { 2 * inner } else { inner } / layout.up.len().max(1);
        for name in layout.up {
            up.push(from(name, width, each, layout.feed_forward_bias)?);
        }
        down = from(layout.down, inner, width, layout.feed_forward_bias)?;
    }
    let up = LinearWeights::concatenated(up);
    let experts = mixture.map(|experts| ExpertWeights::take(weights, &at(experts.block), width, experts));
    let experts = experts.transpose()?;
    let mut norm = |name: &str, width: usize| -> Result<NormWeights, LoadError> {
        let norm = layout.norms.take(weights, &at(name), width)?;
        Ok(norm.plus(layout.norm_offset))
    };
    let heads = &model_config.heads;
    let head_norms = match model_config.query_key_norm {
        QueryKeyNorm::No => None,
        kind => {
            let [[_, queries], [_, keys]] = [heads.queries, heads.keys].map(|count| kind.parts(count));
            let query = norm("self_attn.q_norm", queries * heads.head_dim)?;
            let key = norm("self_attn.k_norm", keys * heads.head_dim)?;
            Some(HeadNorms { query, key })
        }
    };
    let output_norms = if model_config.output_norms {
        let attention = norm("post_attention_layernorm", width)?;
        let feed_forward = norm("post_feedforward_layernorm", width)?;
        Some(OutputNorms {
            attention,
            feed_forward,
        })
    } else {
        None
    };
    let mut input_norm = |name: &str| -> Result<Option<NormWeights>, LoadError> {
        let used = !model_config.no_input_norms;
        used.then(|| norm(name, width)).transpose()
    };
    Ok(LayerWeights {
        local: layout.local_layers.get(index).copied().unwrap_or_default(),
        attention_norm: input_norm("input_layernorm")?,
        feed_forward_norm: match model_config.parallel {
            Parallel::SharedNorm => None,
            _ if model_config.output_norms => input_norm("pre_feedforward_layernorm")?,
            _ => input_norm("post_attention_layernorm")?,
        },
        head_norms,
        output_norms,
        query,
        key_value,
        output,
        up,
        down,
        experts,
        cross: None,
    })
}

fn heads(config: &Config, width: usize) -> Result<Heads, LoadError> {
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
