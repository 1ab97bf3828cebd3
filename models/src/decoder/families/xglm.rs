//! XGLM (Lin et al. 2022): layers of OPT, scaled embeddings and sinusoidal positions.

use kaskade_policy::plan::Partition;

use super::bart::by_halves;
use super::opt;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, layers, require};
use crate::decoder::weights::{Decoder, ModelConfig, NormWeights};
use crate::precision::Table;

/// Number of unused rows at the beginning of the position table.
const OFFSET: usize = 2;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let crosses = "attention to an encoder is not supported";
    require(config, "add_cross_attention", false, crosses)?;
    let width = config.size("d_model")?;
    if !width.is_multiple_of(2) {
        return Err(config.invalid_value("d_model", "it must be even: half of a position are sines"));
    }
    let scaled = config.optional("scale_embedding")?.unwrap_or(true);
    let model_config = ModelConfig {
        width,
        heads: attention_heads(config, "attention_heads", width)?,
        intermediate_size: config.size("ffn_dim")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: 1e-5,
        activation: activation(config, "activation_function", "gelu")?,
        embedding_scale: scaled.then(|| (width as f32).sqrt()),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    weights.ignore_suffixes(&["embed_positions.weights"]);
    let mut positions = by_halves(OFFSET..OFFSET + model_config.context, width);
    // The row of the padding token's id is zero, even if it belongs to a position.
    let padding = config.optional::<usize>("pad_token_id")?.unwrap_or(1);
    if let Some(row) = padding
        .checked_sub(OFFSET)
        .and_then(|row| positions.chunks_mut(width).nth(row))
    {
        row.fill(0.0);
    }
    let embedding = weights.take("model.embed_tokens.weight", &[model_config.vocabulary, width])?;
    let blocks = layers(config, "num_layers", partition)?
        .map(|index| opt::layer(weights, &model_config, &format!("model.layers.{index}")))
        .collect::<Result<_, _>>()?;
    let final_norm = NormWeights::take(weights, "model.layer_norm", width)?;
    Ok(Decoder {
        positions: Some(Table::computed(positions, width)),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}
