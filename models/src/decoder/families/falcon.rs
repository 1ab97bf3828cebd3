//! Falcon (Almazrouei et al. 2023), with parallel attention and feed-forward. 7B has a single KV head, the new
//! architecture of 40B, 180B and 11B one per query group. The RW models follow BLOOM: sequential attention and
//! feed-forward, and ALiBi.

use half::bf16;
use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::alibi::{alibi, bloom_slopes};
use crate::decoder::config_values::{activation, eos_token_ids, epsilon, layers};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights, Parallel};
use crate::ops::Heads;

/// Default context if the configuration has no `max_position_embeddings`, tokens.
const DEFAULT_CONTEXT: usize = 2048;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let model_config = model_config(config)?;
    let heads = &model_config.heads;
    let (width, inner) = (model_config.width, model_config.intermediate_size);
    let bias = config.optional("bias")?.unwrap_or(false);
    let embedding = weights.take(
        "transformer.word_embeddings.weight",
        &[model_config.vocabulary, width],
    )?;
    let mut blocks = Vec::new();
    for index in layers(
        config,
        config.present_key(["num_hidden_layers", "n_layer"]),
        partition,
    )? {
        let at = |name: &str| format!("transformer.h.{index}.{name}");
        let fused = heads.query_width() + 2 * heads.key_width();
        let fused = LinearWeights::take(weights, &at("self_attention.query_key_value"), width, fused, bias)?;
        // Each group has several queries, one key and one value.
        let (query, key_value) = fused
            .by_group(heads.head_dim, heads.queries / heads.keys)
            .split(heads.query_width());
        let (first, second) = match model_config.parallel {
            Parallel::OwnNorm => ("ln_attn", Some("ln_mlp")),
            Parallel::SharedNorm => ("input_layernorm", None),
            Parallel::No => ("input_layernorm", Some("post_attention_layernorm")),
        };
        let second = second.map(|name| NormWeights::take(weights, &at(name), width));
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take(weights, &at(first), width)?),
            query,
            key_value,
            output: LinearWeights::take(weights, &at("self_attention.dense"), width, width, bias)?,
            feed_forward_norm: second.transpose()?,
            up: LinearWeights::take(weights, &at("mlp.dense_h_to_4h"), width, inner, bias)?,
            down: LinearWeights::take(weights, &at("mlp.dense_4h_to_h"), inner, width, bias)?,
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = NormWeights::take(weights, "transformer.ln_f", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let flag = |key: &str, absent: bool| Ok::<_, LoadError>(config.optional(key)?.unwrap_or(absent));
    let width = config.size(config.present_key(["hidden_size", "n_embed"]))?;
    let queries = config.size(config.present_key(["num_attention_heads", "n_head"]))?;
    let is_new = flag("new_decoder_architecture", false)?;
    let keys = match (is_new, flag("multi_query", true)?) {
        (true, _) => config.optional_size("num_kv_heads")?.unwrap_or(queries),
        (false, true) => 1,
        (false, false) => queries,
    };
    if !width.is_multiple_of(2 * queries) || !queries.is_multiple_of(keys) {
        let reason = format!("{queries} heads must be of even size in a width of {width}, in {keys} groups");
        return Err(config.invalid_value("num_attention_heads", reason));
    }
    let head_dim = width / queries;
    let norms = config.optional::<usize>("num_ln_in_parallel_attn")?;
    let parallel = match (is_new, flag("parallel_attn", true)?) {
        (true, _) if norms.unwrap_or(2) == 2 => Parallel::OwnNorm,
        (_, true) => Parallel::SharedNorm,
        (true, false) => {
            let reason = "the new architecture has attention and feed-forward layer side by side";
            return Err(config.invalid_value("parallel_attn", reason));
        }
        (false, false) => Parallel::No,
    };
    let scale = 1.0 / (head_dim as f32).sqrt();
    let context = config.optional_size("max_position_embeddings")?;
    let context = context.unwrap_or(DEFAULT_CONTEXT);
    let (mut positions, mut relative_bias) = (None, None);
    if flag("alibi", false)? {
        // Biases are scaled like scores, and slopes are rounded as in training.
        let slopes = bloom_slopes(queries).into_iter();
        let slopes: Vec<f32> = slopes
            .map(|slope| bf16::from_f32(slope).to_f32() * scale)
            .collect();
        relative_bias = Some(alibi(&slopes, context));
    } else {
        positions = Some(rotary(config, head_dim, RotaryKeys::default())?.rotary);
    }
    Ok(ModelConfig {
        width,
        heads: Heads {
            queries,
            keys,
            head_dim,
            scale,
        },
        intermediate_size: config.optional_size("ffn_hidden_size")?.unwrap_or(4 * width),
        vocabulary: config.size("vocab_size")?,
        context,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "activation", "gelu")?,
        parallel,
        rotary: positions,
        relative_bias,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}
