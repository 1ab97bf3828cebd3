//! GPT-1 (Radford et al. 2018): GPT-2 with post-norms.

use kaskade_policy::plan::Partition;

use super::opt::last_norm;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{attention_heads, eos_token_ids, epsilon, layers};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights, OutputNorms};
use crate::ops::Activation;
use crate::precision::Table;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let width = config.size("n_embd")?;
    let model_config = ModelConfig {
        width,
        heads: attention_heads(config, "n_head", width)?,
        intermediate_size: 4 * width,
        vocabulary: config.size("vocab_size")?,
        context: config.size("n_positions")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config)?,
        no_input_norms: true,
        output_norms: OutputNorms::Sums,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let inner = model_config.intermediate_size;
    let at = |name: &str| format!("transformer.{name}");
    let embedding = weights.take(&at("tokens_embed.weight"), &[model_config.vocabulary, width])?;
    let positions = weights.take(&at("positions_embed.weight"), &[model_config.context, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layer", partition)? {
        let at = |name: &str| at(&format!("h.{index}.{name}"));
        let mut linear = |name: &str, inputs, outputs| {
            LinearWeights::take_input_major(weights, &at(name), inputs, outputs)
        };
        let (query, key_value) = linear("attn.c_attn", width, 3 * width)?.split(width);
        let output = linear("attn.c_proj", width, width)?;
        let (up, down) = (
            linear("mlp.c_fc", width, inner)?,
            linear("mlp.c_proj", inner, width)?,
        );
        let layer = LayerWeights {
            query,
            key_value,
            output,
            attention_output_norm: Some(NormWeights::take(weights, &at("ln_1"), width)?),
            up,
            down,
            feed_forward_output_norm: Some(NormWeights::take(weights, &at("ln_2"), width)?),
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = last_norm(&mut blocks, partition, width);
    Ok(Decoder {
        positions: Some(Table::new(positions, width)),
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}

/// Reads `afn`, where `gelu` means the tanh approximation.
fn activation(config: &Config) -> Result<Activation, LoadError> {
    match config.optional::<String>("afn")?.as_deref() {
        None | Some("gelu") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some(_) => Err(config.invalid_value("afn", "gelu, relu and silu are supported")),
    }
}
