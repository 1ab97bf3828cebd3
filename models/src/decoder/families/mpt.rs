//! MPT (`MosaicML` 2023): ALiBi, layer norms without bias, no biases.

use kaskade_policy::plan::Partition;
use serde::Deserialize;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::alibi::{alibi, mpt_slopes};
use crate::decoder::config_values::{attention_heads, eos_token_ids, epsilon, layers, require};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};
use crate::ops::{Activation, Heads};

/// Keys of `attn_config` that affect the computation.
#[derive(Deserialize, Default)]
struct Attention {
    alibi: Option<bool>,
    alibi_bias_max: Option<f64>,
    clip_qkv: Option<f32>,
    softmax_scale: Option<f32>,
    qk_ln: Option<bool>,
    prefix_lm: Option<bool>,
    attn_type: Option<String>,
}

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    require(config, "no_bias", true, "layers with biases are not supported")?;
    if config.optional::<serde_json::Value>("logit_scale")?.is_some() {
        return Err(config.invalid_value("logit_scale", "scaled logits are not supported"));
    }
    let key = "attn_config";
    let attention = config.optional::<Attention>(key)?.unwrap_or_default();
    let is_plain = attention.alibi.unwrap_or(true)
        && attention.clip_qkv.is_none_or(|clip| clip > 0.0)
        && !attention.qk_ln.unwrap_or(false)
        && !attention.prefix_lm.unwrap_or(false)
        && attention
            .attn_type
            .is_none_or(|kind| kind == "multihead_attention");
    if !is_plain {
        let reason = "multi-head attention with alibi is supported, with a positive clip_qkv, without qk_ln and prefix_lm";
        return Err(config.invalid_value(key, reason));
    }
    let width = config.size("d_model")?;
    let heads = attention_heads(config, "n_heads", width)?;
    let heads = Heads {
        scale: attention.softmax_scale.unwrap_or(heads.scale),
        ..heads
    };
    let context = config.optional_size("max_seq_len")?.unwrap_or(2048);
    let slopes = mpt_slopes(heads.queries, attention.alibi_bias_max.unwrap_or(8.0));
    let model_config = ModelConfig {
        width,
        relative_bias: Some(alibi(&slopes, context)),
        heads,
        clip: attention.clip_qkv,
        intermediate_size: 4 * width,
        vocabulary: config.size("vocab_size")?,
        context,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: Activation::Gelu,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let inner = model_config.intermediate_size;
    let embedding = weights.take("transformer.wte.weight", &[model_config.vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layers", partition)? {
        let at = |name: &str| format!("transformer.blocks.{index}.{name}");
        let fused = LinearWeights::take(weights, &at("attn.Wqkv"), width, 3 * width, false)?;
        let (query, key_value) = fused.split(width);
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take_unbiased(weights, &at("norm_1"), width)?),
            query,
            key_value,
            output: LinearWeights::take(weights, &at("attn.out_proj"), width, width, false)?,
            feed_forward_norm: Some(NormWeights::take_unbiased(weights, &at("norm_2"), width)?),
            up: LinearWeights::take(weights, &at("ffn.up_proj"), width, inner, false)?,
            down: LinearWeights::take(weights, &at("ffn.down_proj"), inner, width, false)?,
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = NormWeights::take_unbiased(weights, "transformer.norm_f", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}
