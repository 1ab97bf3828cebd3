//! `BioGPT` (Luo et al. 2022): layers of OPT, scaled embeddings and learned positions.

use kaskade_policy::plan::Partition;

use super::opt;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, layers};
use crate::decoder::weights::{Decoder, ModelConfig, NormWeights};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let width = config.size("hidden_size")?;
    let scaled = config.optional("scale_embedding")?.unwrap_or(true);
    let model_config = ModelConfig {
        width,
        heads: attention_heads(config, "num_attention_heads", width)?,
        intermediate_size: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: 1e-5,
        activation: activation(config, "hidden_act", "gelu")?,
        embedding_scale: scaled.then(|| (width as f32).sqrt()),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let embedding = weights.take("biogpt.embed_tokens.weight", &[model_config.vocabulary, width])?;
    let positions = opt::positions(weights, "biogpt.embed_positions.weight", &model_config)?;
    let blocks = layers(config, "num_hidden_layers", partition)?
        .map(|index| opt::layer(weights, &model_config, &format!("biogpt.layers.{index}")))
        .collect::<Result<_, _>>()?;
    let final_norm = NormWeights::take(weights, "biogpt.layer_norm", width)?;
    Ok(Decoder {
        positions: Some(positions),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}
