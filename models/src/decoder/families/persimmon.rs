//! Persimmon (Adept 2023): the layers of GPT-NeoX, one after the other, with a squared ReLU and query-key norms.

use kaskade_policy::plan::Partition;

use super::gpt_neox;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, epsilon, layers};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, HeadNorms, LayerWeights, ModelConfig, NormWeights, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let model_config = model_config(config)?;
    let (width, head_dim) = (model_config.width, model_config.heads.head_dim);
    let embedding = weights.take("model.embed_tokens.weight", &[model_config.vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", partition)? {
        let prefix = format!("model.layers.{index}");
        let layer = gpt_neox::layer(weights, &model_config, &prefix, ("self_attn", true))?;
        let mut norm =
            |name: &str| NormWeights::take(weights, &format!("{prefix}.self_attn.{name}"), head_dim);
        let head_norms = if model_config.query_key_norm == QueryKeyNorm::No {
            None
        } else {
            Some(HeadNorms {
                query: norm("q_layernorm")?,
                key: norm("k_layernorm")?,
                factors: None,
            })
        };
        blocks.push(LayerWeights { head_norms, ..layer });
    }
    let final_norm = NormWeights::take(weights, "model.final_layernorm", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let width = config.size("hidden_size")?;
    let heads = attention_heads(config, "num_attention_heads", width)?;
    let keys = RotaryKeys {
        theta: 25_000.0,
        partial: 0.5,
        ..RotaryKeys::LLAMA
    };
    let norms = config.optional("qk_layernorm")?.unwrap_or(true);
    Ok(ModelConfig {
        width,
        rotary: Some(rotary(config, heads.head_dim, keys)?.rotary),
        heads,
        intermediate_size: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: epsilon(config, "layer_norm_eps", 1e-5)?,
        activation: activation(config, "hidden_act", "relu2")?,
        query_key_norm: if norms {
            QueryKeyNorm::EachHead
        } else {
            QueryKeyNorm::No
        },
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}
