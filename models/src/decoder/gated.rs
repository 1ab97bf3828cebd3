//! Decoders of the Llama kind: RMS norms, rotary positions, grouped-query attention, a gated feed-forward layer. A
//! family states in a [`Layout`] what it adds, and which of its layers see a window only.

use super::config_values::{activation, eos_token_ids, epsilon, layers};
use super::rotary::{RotaryKeys, rotary};
use super::weights::{
    Decoder, HeadNorms, LayerWeights, LinearWeights, LocalAttention, ModelConfig, NormWeights, OutputNorms,
};
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::ops::Heads;
use crate::precision::Table;
use crate::runtime::slice::Slice;

/// What a family's tensors are, beyond those of every decoder of this kind.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a family")]
pub(super) struct Layout {
    /// Whether the projections to queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub(super) output_bias: bool,
    /// Whether the feed-forward layer has biases.
    pub(super) feed_forward_bias: bool,
    /// Whether one tensor holds queries, keys and values, and another one gate and values (Phi-3).
    pub(super) fused: bool,
    /// Added to the factors of the norms (Gemma).
    pub(super) norm_offset: f32,
    /// Whether the head shares the embedding if `tie_word_embeddings` is missing.
    pub(super) tied: bool,
    /// Which layers see a window only; others see everything.
    pub(super) local_layers: Vec<bool>,
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
    Ok(Decoder {
        encoder: None,
        final_norm: NormWeights::take_rms(weights, "model.norm", width)?.plus(layout.norm_offset),
        head: head(config, weights, &embedding, width, layout.tied)?,
        positions: None,
        weight_type: weights.weight_type(),
        embedding: Table::new(embedding, width),
        layers: blocks,
        model_config,
    })
}

/// Reads the head: `lm_head`, or the embedding `[vocabulary, width]` if it is tied.
pub(super) fn head(
    config: &Config,
    weights: &mut Weights,
    embedding: &[f32],
    width: usize,
    tied: bool,
) -> Result<LinearWeights, LoadError> {
    if config.optional("tie_word_embeddings")?.unwrap_or(tied) {
        weights.ignore_suffixes(&["lm_head.weight"]);
        return Ok(LinearWeights::tied(embedding, width));
    }
    let vocabulary = embedding.len() / width.max(1);
    LinearWeights::take(weights, "lm_head", width, vocabulary, false)
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
    let (query, key_value, up) = if layout.fused {
        let projections = from("self_attn.qkv_proj", width, query + 2 * key, layout.qkv_bias)?;
        let (query, key_value) = projections.split(query);
        let up = from("mlp.gate_up_proj", width, 2 * inner, layout.feed_forward_bias)?;
        (query, key_value, up)
    } else {
        let keys = from("self_attn.k_proj", width, key, layout.qkv_bias)?;
        let values = from("self_attn.v_proj", width, key, layout.qkv_bias)?;
        let gate = from("mlp.gate_proj", width, inner, layout.feed_forward_bias)?;
        let up = from("mlp.up_proj", width, inner, layout.feed_forward_bias)?;
        let query = from("self_attn.q_proj", width, query, layout.qkv_bias)?;
        (query, keys.concat_outputs(&values), gate.concat_outputs(&up))
    };
    let output = from("self_attn.o_proj", query.outputs, width, layout.output_bias)?;
    let down = from("mlp.down_proj", inner, width, layout.feed_forward_bias)?;
    let mut norm = |name: &str, width: usize| -> Result<NormWeights, LoadError> {
        Ok(NormWeights::take_rms(weights, &at(name), width)?.plus(layout.norm_offset))
    };
    let head_dim = model_config.heads.head_dim;
    let head_norms = if model_config.head_norms {
        let query = norm("self_attn.q_norm", head_dim)?;
        let key = norm("self_attn.k_norm", head_dim)?;
        Some(HeadNorms { query, key })
    } else {
        None
    };
    let (before, output_norms) = if model_config.output_norms {
        let attention = norm("post_attention_layernorm", width)?;
        let feed_forward = norm("post_feedforward_layernorm", width)?;
        let norms = OutputNorms {
            attention,
            feed_forward,
        };
        ("pre_feedforward_layernorm", Some(norms))
    } else {
        ("post_attention_layernorm", None)
    };
    Ok(LayerWeights {
        local: layout.local_layers.get(index).copied().unwrap_or_default(),
        attention_norm: norm("input_layernorm", width)?,
        head_norms,
        output_norms,
        query,
        key_value,
        output,
        feed_forward_norm: Some(norm(before, width)?),
        up,
        down,
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
