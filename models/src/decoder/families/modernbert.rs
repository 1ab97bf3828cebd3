//! `ModernBERT` as a decoder (Weller et al. 2025, "Seq vs Seq"): sliding-window layers with separate rotary positions
//! between global layers, a norm after the embedding instead of before the first layer, and a layer before the head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{activation, epsilon, layers};
use crate::decoder::gated::{self, NormKind};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, LocalAttention, ModelConfig};

/// Rotary keys of global layers.
const GLOBAL: RotaryKeys = RotaryKeys {
    theta_key: "global_rope_theta",
    theta: 160_000.0,
    layer_type: Some("full_attention"),
    ..RotaryKeys::LLAMA
};
/// Rotary keys of sliding-window layers.
const LOCAL: RotaryKeys = RotaryKeys {
    theta_key: "local_rope_theta",
    layer_type: Some("sliding_attention"),
    ..RotaryKeys::LLAMA
};

/// Returns the kind of norms.
pub(in crate::decoder) fn norms(config: &Config) -> Result<NormKind, LoadError> {
    let biased = config.optional("norm_bias")?.unwrap_or(false);
    Ok(if biased {
        NormKind::Layer
    } else {
        NormKind::Unbiased
    })
}

pub(in crate::decoder) fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let (model_config, local_layers) = model_config(config)?;
    let (norms, width) = (norms(config)?, model_config.width);
    let inner = model_config.intermediate_size;
    let bias = |key: &str| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(false));
    let (attention_bias, mlp_bias) = (bias("attention_bias")?, bias("mlp_bias")?);
    let name = "model.embeddings.tok_embeddings.weight";
    let embedding = weights.take(name, &[model_config.vocabulary, width])?;
    let embedding_norm = norms.take(weights, "model.embeddings.norm", width)?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", partition)? {
        let at = |name: &str| format!("model.layers.{index}.{name}");
        let mut square = |name: &str| LinearWeights::take(weights, &at(name), width, width, attention_bias);
        let query = square("attn.q_proj")?;
        let key_value = square("attn.k_proj")?.concat_outputs(&square("attn.v_proj")?);
        let output = square("attn.Wo")?;
        let first = (index > 0).then(|| norms.take(weights, &at("attn_norm"), width));
        let layer = LayerWeights {
            local: local_layers.get(index).copied().unwrap_or_default(),
            attention_norm: first.transpose()?,
            query,
            key_value,
            output,
            feed_forward_norm: Some(norms.take(weights, &at("mlp_norm"), width)?),
            up: LinearWeights::take(weights, &at("mlp.Wi"), width, 2 * inner, mlp_bias)?,
            down: LinearWeights::take(weights, &at("mlp.Wo"), inner, width, mlp_bias)?,
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = norms.take(weights, "model.final_norm", width)?;
    Ok(Decoder {
        embedding_norm: Some(embedding_norm),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}

/// Reads the configuration, and which layers have a sliding window.
fn model_config(config: &Config) -> Result<(ModelConfig, Vec<bool>), LoadError> {
    let key = "local_attention";
    // The window of the encoder extends equally in both directions; half of it is before a token.
    let window = config.optional_size(key)?.unwrap_or(128) / 2;
    if window == 0 {
        return Err(config.invalid_value(key, "it must be at least 2"));
    }
    let every = config.optional_size("global_attn_every_n_layers")?.unwrap_or(3);
    let mut with_window = config.clone();
    with_window.set("sliding_window", window.into());
    let (local, local_layers) = gated::windows(&with_window, |index| !index.is_multiple_of(every))?;
    let act = activation(config, "hidden_activation", "gelu")?;
    let base = gated::activated(config, act, GLOBAL)?;
    let near = rotary(config, base.heads.head_dim, LOCAL)?.rotary;
    let model_config = ModelConfig {
        epsilon: epsilon(config, "norm_eps", 1e-5)?,
        local: local.map(|local| LocalAttention {
            rotary: Some(near),
            ..local
        }),
        ..base
    };
    Ok((model_config, local_layers))
}
