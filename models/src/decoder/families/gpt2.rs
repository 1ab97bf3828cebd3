//! GPT-2 (Radford et al. 2019).

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, epsilon, layers, require};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};
use crate::precision::Table;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    require(
        config,
        "scale_attn_weights",
        true,
        "attention without scaling is not supported",
    )?;
    let by_layer = "scores scaled by layer are not supported";
    require(config, "scale_attn_by_inverse_layer_idx", false, by_layer)?;
    let width = config.size("n_embd")?;
    let model_config = ModelConfig {
        width,
        heads: attention_heads(config, "n_head", width)?,
        intermediate_size: config.optional_size("n_inner")?.unwrap_or(4 * width),
        vocabulary: config.size("vocab_size")?,
        context: config.size("n_positions")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "activation_function", "gelu_new")?,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let embedding = weights.take("transformer.wte.weight", &[model_config.vocabulary, width])?;
    let positions = weights.take("transformer.wpe.weight", &[model_config.context, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layer", partition)? {
        let at = |name: &str| format!("transformer.h.{index}.{name}");
        let projections = LinearWeights::take_input_major(weights, &at("attn.c_attn"), width, 3 * width)?;
        let (query, key_value) = projections.split(width);
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take(weights, &at("ln_1"), width)?),
            query,
            key_value,
            output: LinearWeights::take_input_major(weights, &at("attn.c_proj"), width, width)?,
            feed_forward_norm: Some(NormWeights::take(weights, &at("ln_2"), width)?),
            up: LinearWeights::take_input_major(
                weights,
                &at("mlp.c_fc"),
                width,
                model_config.intermediate_size,
            )?,
            down: LinearWeights::take_input_major(
                weights,
                &at("mlp.c_proj"),
                model_config.intermediate_size,
                width,
            )?,
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
