//! DBRX (Databricks 2024): experts with Llama's attention and layer norms without bias.

use kaskade_policy::plan::Partition;
use serde_json::Value;

use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, layers, positive};
use crate::decoder::experts::ExpertWeights;
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};
use crate::ops::Heads;

/// Epsilon of torch's layer norms.
const EPSILON: f32 = 1e-5;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let experts = config.nested("ffn_config")?;
    let model_config = model_config(config, &experts)?;
    let (width, count) = (model_config.width, experts.size("moe_num_experts")?);
    let embedding = weights.take("transformer.wte.weight", &[model_config.vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layers", partition)? {
        blocks.push(layer(weights, &model_config, count, index)?);
    }
    let final_norm = NormWeights::take_unbiased(weights, "transformer.norm_f", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

fn model_config(config: &Config, experts: &Config) -> Result<ModelConfig, LoadError> {
    let attention = config.nested("attn_config")?;
    let width = config.size("d_model")?;
    let equal = attention_heads(config, "n_heads", width)?;
    let keys = attention.optional_size("kv_n_heads")?.unwrap_or(1);
    if !equal.queries.is_multiple_of(keys) {
        let reason = format!("it must divide n_heads = {}", equal.queries);
        return Err(attention.invalid_value("kv_n_heads", reason));
    }
    // transformers writes the base of the rotary positions to `rope_parameters`, published files to `attn_config`.
    let stated = if config.keys().get("rope_parameters").is_some_and(Value::is_object) {
        config
    } else {
        &attention
    };
    let positions = rotary(stated, equal.head_dim, RotaryKeys::LLAMA)?;
    let key = "moe_normalize_expert_weights";
    let normalised = match experts.keys().get(key) {
        None => true,
        Some(Value::Null) => false,
        Some(norm) if norm.as_f64() == Some(1.0) => true,
        Some(_) => return Err(experts.invalid_value(key, "1 and null are supported")),
    };
    let count = experts.size("moe_num_experts")?;
    let stated_keys = experts.with_defaults(&[("moe_top_k", 1.into())]);
    let function = experts.section("ffn_act_fn", &[])?;
    Ok(ModelConfig {
        width,
        heads: Heads { keys, ..equal },
        intermediate_size: experts.size("ffn_hidden_size")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_seq_len")?,
        epsilon: EPSILON,
        activation: activation(&function, "name", "silu")?,
        gated: true,
        routing: Some(Routing::by_key(&stated_keys, "moe_top_k", count, normalised)?),
        clip: positive(&attention, "clip_qkv")?,
        rotary: Some(positions.rotary),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

fn layer(
    weights: &mut Weights,
    model_config: &ModelConfig,
    count: usize,
    index: usize,
) -> Result<LayerWeights, LoadError> {
    let (width, heads) = (model_config.width, model_config.heads);
    let at = |name: &str| format!("transformer.blocks.{index}.{name}");
    let fused = width + 2 * heads.key_width();
    let fused = LinearWeights::take(weights, &at("norm_attn_norm.attn.Wqkv"), width, fused, false)?;
    let (query, key_value) = fused.split(width);
    let layer = LayerWeights {
        attention_norm: Some(NormWeights::take_unbiased(
            weights,
            &at("norm_attn_norm.norm_1"),
            width,
        )?),
        query,
        key_value,
        output: LinearWeights::take(weights, &at("norm_attn_norm.attn.out_proj"), width, width, false)?,
        feed_forward_norm: Some(NormWeights::take_unbiased(
            weights,
            &at("norm_attn_norm.norm_2"),
            width,
        )?),
        experts: Some(ExpertWeights {
            router: LinearWeights::take(weights, &at("ffn.router.layer"), width, count, false)?,
            experts: experts(weights, &at("ffn.experts.mlp"), model_config, count)?,
            ..ExpertWeights::default()
        }),
        ..LayerWeights::default()
    };
    Ok(layer.stored_as(weights.weight_type()))
}

/// Takes the experts, whose rows follow each other in three matrices with rows of the model's width.
fn experts(
    weights: &mut Weights,
    name: &str,
    model_config: &ModelConfig,
    count: usize,
) -> Result<Vec<[LinearWeights; 2]>, LoadError> {
    let (width, inner) = (model_config.width, model_config.intermediate_size);
    let kind = weights.weight_type();
    let mut take = |part: &str| weights.take(&format!("{name}.{part}"), &[count * inner, width]);
    let [gates, values, downs] = [take("w1")?, take("v1")?, take("w2")?];
    let size = (inner * width).max(1);
    let parts = gates
        .chunks(size)
        .zip(values.chunks(size))
        .zip(downs.chunks(size));
    let experts = parts.map(|((gate, value), down)| {
        let up = LinearWeights::tied(gate, width).concat_outputs(&LinearWeights::tied(value, width));
        let down = LinearWeights::input_major(down.to_vec(), Vec::new(), inner);
        [up, down].map(|linear| linear.stored_as(kind))
    });
    Ok(experts.collect())
}
