//! OPT (Zhang et al. 2022), the sizes with norms before their layers: all but 350M.

use super::config_values::{activation, attention_heads, eos_token_ids, layers, require};
use super::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::precision::Table;
use crate::runtime::slice::Slice;

/// The position table begins with two unused rows.
const OFFSET: usize = 2;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let after = "models with norms after their layers (OPT-350M) are not supported; use another size";
    require(config, "do_layer_norm_before", true, after)?;
    require(
        config,
        "_remove_final_layer_norm",
        false,
        "a decoder without a final norm is not supported",
    )?;
    require(
        config,
        "enable_bias",
        true,
        "layers without biases are not supported",
    )?;
    require(
        config,
        "layer_norm_elementwise_affine",
        true,
        "norms without weights are not supported",
    )?;
    let width = config.size("hidden_size")?;
    if config.optional("word_embed_proj_dim")?.unwrap_or(width) != width {
        return Err(config.invalid_value(
            "word_embed_proj_dim",
            "only embeddings of the model's width are supported",
        ));
    }
    let model_config = ModelConfig {
        width,
        heads: attention_heads(config, "num_attention_heads", width)?,
        intermediate_size: config.size("ffn_dim")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: 1e-5,
        activation: activation(config, "activation_function", "relu")?,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let at = |name: &str| format!("model.decoder.{name}");
    let embedding = weights.take(&at("embed_tokens.weight"), &[model_config.vocabulary, width])?;
    let mut positions = weights.take(
        &at("embed_positions.weight"),
        &[model_config.context + OFFSET, width],
    )?;
    positions.drain(..OFFSET * width);
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", slice)? {
        let at = |name: &str| at(&format!("layers.{index}.{name}"));
        let mut square = |name: &str| LinearWeights::take(weights, &at(name), width, width, true);
        let query = square("self_attn.q_proj")?;
        let key = square("self_attn.k_proj")?;
        let value = square("self_attn.v_proj")?;
        let output = square("self_attn.out_proj")?;
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take(weights, &at("self_attn_layer_norm"), width)?),
            query,
            key_value: key.concat_outputs(&value),
            output,
            feed_forward_norm: Some(NormWeights::take(weights, &at("final_layer_norm"), width)?),
            up: LinearWeights::take(weights, &at("fc1"), width, model_config.intermediate_size, true)?,
            down: LinearWeights::take(weights, &at("fc2"), model_config.intermediate_size, width, true)?,
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = NormWeights::take(weights, &at("final_layer_norm"), width)?;
    Ok(Decoder {
        positions: Some(Table::new(positions, width)),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}
