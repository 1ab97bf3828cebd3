//! `GPTBigCode`: `StarCoder` and `SantaCoder` (Li et al. 2023; Ben Allal et al. 2023): GPT-2 with multi-query
//! attention.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, epsilon, layers, require};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};
use crate::ops::Heads;
use crate::precision::Table;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let model_config = model_config(config)?;
    let (width, inner, heads) = (
        model_config.width,
        model_config.intermediate_size,
        model_config.heads,
    );
    let embedding = weights.take("transformer.wte.weight", &[model_config.vocabulary, width])?;
    let positions = weights.take("transformer.wpe.weight", &[model_config.context, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layer", partition)? {
        let at = |name: &str| format!("transformer.h.{index}.{name}");
        let mut linear =
            |name: &str, inputs, outputs| LinearWeights::take(weights, &at(name), inputs, outputs, true);
        let fused = linear("attn.c_attn", width, width + 2 * heads.key_width())?;
        // With a single KV head, all queries come first; otherwise query, key and value of each head are adjacent.
        let fused = if heads.keys == 1 {
            fused
        } else {
            fused.by_part(heads.head_dim, 3)
        };
        let (query, key_value) = fused.split(width);
        let output = linear("attn.c_proj", width, width)?;
        let (up, down) = (
            linear("mlp.c_fc", width, inner)?,
            linear("mlp.c_proj", inner, width)?,
        );
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take(weights, &at("ln_1"), width)?),
            query,
            key_value,
            output,
            feed_forward_norm: Some(NormWeights::take(weights, &at("ln_2"), width)?),
            up,
            down,
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

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let cross = "cross-attention is not supported";
    require(config, "add_cross_attention", false, cross)?;
    let width = config.size("n_embd")?;
    let heads = attention_heads(config, "n_head", width)?;
    let scaled = config.optional("scale_attn_weights")?.unwrap_or(true);
    let shared = config.optional("multi_query")?.unwrap_or(true);
    Ok(ModelConfig {
        width,
        heads: Heads {
            keys: if shared { 1 } else { heads.queries },
            scale: if scaled { heads.scale } else { 1.0 },
            ..heads
        },
        intermediate_size: config.optional_size("n_inner")?.unwrap_or(4 * width),
        vocabulary: config.size("vocab_size")?,
        context: config.size("n_positions")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "activation_function", "gelu_pytorch_tanh")?,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}
