//! GPT-Neo (Black et al. 2021): GPT-2 with unscaled scores, and a sliding window in every second layer.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, epsilon, layers};
use crate::decoder::weights::{
    Decoder, LayerWeights, LinearWeights, LocalAttention, ModelConfig, NormWeights,
};
use crate::ops::Heads;
use crate::precision::Table;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let width = config.size("hidden_size")?;
    let local_layers = local_layers(config)?;
    let model_config = ModelConfig {
        width,
        heads: Heads {
            scale: 1.0,
            ..attention_heads(config, "num_heads", width)?
        },
        intermediate_size: config.optional_size("intermediate_size")?.unwrap_or(4 * width),
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "activation_function", "gelu_new")?,
        local: Some(LocalAttention {
            window: Some(config.optional_size("window_size")?.unwrap_or(256)),
            rotary: None,
        }),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let inner = model_config.intermediate_size;
    let embedding = weights.take("transformer.wte.weight", &[model_config.vocabulary, width])?;
    let positions = weights.take("transformer.wpe.weight", &[model_config.context, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_layers", partition)? {
        let at = |name: &str| format!("transformer.h.{index}.{name}");
        let mut square = |name: &str, bias| {
            LinearWeights::take(
                weights,
                &at(&format!("attn.attention.{name}")),
                width,
                width,
                bias,
            )
        };
        let query = square("q_proj", false)?;
        let key = square("k_proj", false)?;
        let value = square("v_proj", false)?;
        let output = square("out_proj", true)?;
        let layer = LayerWeights {
            local: local_layers.get(index).copied().unwrap_or_default(),
            attention_norm: Some(NormWeights::take(weights, &at("ln_1"), width)?),
            query,
            key_value: key.concat_outputs(&value),
            output,
            feed_forward_norm: Some(NormWeights::take(weights, &at("ln_2"), width)?),
            up: LinearWeights::take(weights, &at("mlp.c_fc"), width, inner, true)?,
            down: LinearWeights::take(weights, &at("mlp.c_proj"), inner, width, true)?,
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = NormWeights::take(weights, "transformer.ln_f", width)?;
    Ok(Decoder {
        positions: Some(Table::new(positions, width)),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}

/// Reads which layers are local: `attention_types` lists type patterns, each with a repeat count.
fn local_layers(config: &Config) -> Result<Vec<bool>, LoadError> {
    let key = "attention_types";
    let count = config.size("num_layers")?;
    let given = config.optional::<Vec<(Vec<String>, usize)>>(key)?;
    let given = given.unwrap_or_else(|| vec![(vec!["global".into(), "local".into()], count / 2)]);
    let mut local = Vec::new();
    for (types, repetitions) in given {
        for _ in 0..repetitions.min(count) {
            for name in &types {
                match name.as_str() {
                    "global" => local.push(false),
                    "local" => local.push(true),
                    _ => return Err(config.invalid_value(key, "the types global and local are supported")),
                }
            }
        }
    }
    if local.len() != count {
        return Err(config.invalid_value(key, format!("it must state the type of all {count} layers")));
    }
    Ok(local)
}
