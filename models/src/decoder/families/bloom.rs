//! BLOOM (`BigScience` 2022): ALiBi, a norm after the embedding, fused projections with biases.

use kaskade_policy::plan::Partition;

use super::gpt_neox;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::alibi::{alibi, bloom_slopes};
use crate::decoder::config_values::{attention_heads, eos_token_ids, epsilon, layers, require};
use crate::decoder::weights::{Decoder, ModelConfig, NormWeights};
use crate::ops::Activation;

/// Default context if the configuration has no `seq_length`: the training length, tokens.
const DEFAULT_CONTEXT: usize = 2048;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let after = "residual connections after the norms are not supported";
    require(config, "apply_residual_connection_post_layernorm", false, after)?;
    let width = config.size(config.present_key(["hidden_size", "n_embed"]))?;
    let context = config.optional_size("seq_length")?.unwrap_or(DEFAULT_CONTEXT);
    let heads_key = config.present_key(["n_head", "num_attention_heads"]);
    let heads = attention_heads(config, heads_key, width)?;
    let model_config = ModelConfig {
        width,
        relative_bias: Some(alibi(&bloom_slopes(heads.queries), context)),
        heads,
        intermediate_size: 4 * width,
        vocabulary: config.size("vocab_size")?,
        context,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: Activation::GeluTanh,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let embedding = weights.take(
        "transformer.word_embeddings.weight",
        &[model_config.vocabulary, width],
    )?;
    let embedding_norm = NormWeights::take(weights, "transformer.word_embeddings_layernorm", width)?;
    let mut blocks = Vec::new();
    for index in layers(
        config,
        config.present_key(["n_layer", "num_hidden_layers"]),
        partition,
    )? {
        let prefix = format!("transformer.h.{index}");
        blocks.push(gpt_neox::layer(
            weights,
            &model_config,
            &prefix,
            ("self_attention", true),
        )?);
    }
    let final_norm = NormWeights::take(weights, "transformer.ln_f", width)?;
    Ok(Decoder {
        embedding_norm: Some(embedding_norm),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}
