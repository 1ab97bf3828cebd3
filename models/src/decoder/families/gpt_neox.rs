//! GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023): parallel attention and feed-forward with separate
//! norms, and rotary positions over a part of a head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, epsilon, layers};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights, Parallel};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let model_config = model_config(config)?;
    let width = model_config.width;
    let bias = config.optional("attention_bias")?.unwrap_or(true);
    let embedding = weights.take("gpt_neox.embed_in.weight", &[model_config.vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", partition)? {
        let prefix = format!("gpt_neox.layers.{index}");
        blocks.push(layer(weights, &model_config, &prefix, ("attention", bias))?);
    }
    let final_norm = NormWeights::take(weights, "gpt_neox.final_layer_norm", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

/// Takes the layer `prefix`. `attention` is the name of its attention, which has biases if `bias`.
pub(super) fn layer(
    weights: &mut Weights,
    model_config: &ModelConfig,
    prefix: &str,
    (attention, bias): (&str, bool),
) -> Result<LayerWeights, LoadError> {
    let (width, inner) = (model_config.width, model_config.intermediate_size);
    let at = |name: &str| format!("{prefix}.{name}");
    let in_attention = |name: &str| format!("{prefix}.{attention}.{name}");
    let fused = LinearWeights::take(weights, &in_attention("query_key_value"), width, 3 * width, bias)?;
    let (query, key_value) = fused.by_part(model_config.heads.head_dim, 3).split(width);
    let layer = LayerWeights {
        attention_norm: Some(NormWeights::take(weights, &at("input_layernorm"), width)?),
        query,
        key_value,
        output: LinearWeights::take(weights, &in_attention("dense"), width, width, bias)?,
        feed_forward_norm: Some(NormWeights::take(
            weights,
            &at("post_attention_layernorm"),
            width,
        )?),
        up: LinearWeights::take(weights, &at("mlp.dense_h_to_4h"), width, inner, true)?,
        down: LinearWeights::take(weights, &at("mlp.dense_4h_to_h"), inner, width, true)?,
        ..LayerWeights::default()
    };
    Ok(layer.stored_as(weights.weight_type()))
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let width = config.size("hidden_size")?;
    let heads = attention_heads(config, "num_attention_heads", width)?;
    let keys = RotaryKeys {
        theta_key: "rotary_emb_base",
        partial_key: "rotary_pct",
        partial: 0.25,
        ..RotaryKeys::default()
    };
    let positions = rotary(config, heads.head_dim, keys)?;
    let parallel = config.optional("use_parallel_residual")?.unwrap_or(true);
    Ok(ModelConfig {
        width,
        heads,
        intermediate_size: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: epsilon(config, "layer_norm_eps", 1e-5)?,
        activation: activation(config, "hidden_act", "gelu")?,
        parallel: if parallel { Parallel::OwnNorm } else { Parallel::No },
        rotary: Some(positions.rotary),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}
