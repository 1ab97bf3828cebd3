//! Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024): RMS norms, a gated feed-forward layer, grouped-query
//! attention, and rotary positions with scaling for contexts longer than in training.

use serde::Deserialize;

use super::config_values::{activation, eos_token_ids, epsilon, layers};
use super::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::ops::{Heads, Rotary};
use crate::runtime::slice::Slice;

/// `rope_scaling`, or `rope_parameters` in newer versions of transformers.
#[derive(Debug, Clone, Default, Deserialize)]
struct Scaling {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let width = config.size("hidden_size")?;
    let heads = heads(config, width)?;
    let model_config = ModelConfig {
        width,
        heads,
        intermediate_size: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: epsilon(config, "rms_norm_eps", 1e-6)?,
        activation: activation(config, "hidden_act", "silu")?,
        gated: true,
        parallel: false,
        rotary: Some(rotary(config, heads.head_dim)?),
        relative_bias: None,
        eos_token_ids: eos_token_ids(config)?,
    };
    let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
    let bias = config.optional("mlp_bias")?.unwrap_or(false);
    let embedding = weights.take("model.embed_tokens.weight", &[model_config.vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", slice)? {
        let at = |name: &str| format!("model.layers.{index}.{name}");
        let (query, key) = (heads.query_width(), heads.key_width());
        let mut from = |name: &str, inputs: usize, outputs: usize, bias: bool| {
            LinearWeights::take(weights, &at(name), inputs, outputs, bias)
        };
        let keys = from("self_attn.k_proj", width, key, attention_bias)?;
        let values = from("self_attn.v_proj", width, key, attention_bias)?;
        let query_weights = from("self_attn.q_proj", width, query, attention_bias)?;
        let output = from("self_attn.o_proj", query, width, attention_bias)?;
        let gate = from("mlp.gate_proj", width, model_config.intermediate_size, bias)?;
        let up = from("mlp.up_proj", width, model_config.intermediate_size, bias)?;
        let down = from("mlp.down_proj", model_config.intermediate_size, width, bias)?;
        blocks.push(LayerWeights {
            attention_norm: NormWeights::take_rms(weights, &at("input_layernorm"), width)?,
            query: query_weights,
            key_value: keys.concat_outputs(&values),
            output,
            feed_forward_norm: Some(NormWeights::take_rms(
                weights,
                &at("post_attention_layernorm"),
                width,
            )?),
            up: gate.concat_outputs(&up),
            down,
            cross: None,
        });
    }
    let head = if config.optional("tie_word_embeddings")?.unwrap_or(false) {
        weights.ignore_suffixes(&["lm_head.weight"]);
        LinearWeights::tied(&embedding, width)
    } else {
        LinearWeights::take(weights, "lm_head", width, model_config.vocabulary, false)?
    };
    Ok(Decoder {
        encoder: None,
        final_norm: NormWeights::take_rms(weights, "model.norm", width)?,
        head,
        positions: None,
        embedding,
        layers: blocks,
        model_config,
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

/// Computes angles as transformers does for the types `default`, `linear` and `llama3`.
fn rotary(config: &Config, head_dim: usize) -> Result<Rotary, LoadError> {
    let (key, scaling) = match config.optional::<Scaling>("rope_parameters")? {
        Some(scaling) => ("rope_parameters", scaling),
        None => (
            "rope_scaling",
            config.optional("rope_scaling")?.unwrap_or_default(),
        ),
    };
    let base = match scaling.rope_theta {
        Some(base) => base,
        None => config.optional("rope_theta")?.unwrap_or(10_000.0),
    };
    let needed = |value: Option<f64>, name: &str| {
        value
            .filter(|value| *value > 0.0)
            .ok_or_else(|| config.invalid_value(key, format!("`{name}` must be present and positive")))
    };
    let plain = (0..head_dim / 2).map(|pair| 1.0 / base.powf(2.0 * pair as f64 / head_dim as f64));
    let frequencies: Vec<f64> = match scaling.rope_type.as_deref().unwrap_or("default") {
        "default" => plain.collect(),
        "linear" => {
            let factor = needed(scaling.factor, "factor")?;
            plain.map(|frequency| frequency / factor).collect()
        }
        "llama3" => {
            let factor = needed(scaling.factor, "factor")?;
            let low = needed(scaling.low_freq_factor, "low_freq_factor")?;
            let high = needed(scaling.high_freq_factor, "high_freq_factor")?;
            let trained = needed(
                scaling.original_max_position_embeddings,
                "original_max_position_embeddings",
            )?;
            let scaled = |frequency: f64| {
                // Rotations within the training context decide: high frequencies stay, low ones are stretched, those
                // between are interpolated.
                let turns = trained * frequency / std::f64::consts::TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            };
            plain.map(scaled).collect()
        }
        _ => return Err(config.invalid_value(key, "the types default, linear and llama3 are supported")),
    };
    Ok(Rotary {
        frequencies: frequencies
            .into_iter()
            .map(|frequency| frequency as f32)
            .collect(),
        neighbours: false,
    })
}
