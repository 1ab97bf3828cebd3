//! GPT-J (Wang and Komatsuzaki 2021): parallel attention and feed-forward, rotary positions over a part of a head.
//! `CodeGen` (Nijkamp et al. 2022) fuses its projections.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError, Weights};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, epsilon, layers};
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights, Parallel};
use crate::ops::Rotary;

/// Number of tensor-parallel parts in which `CodeGen` was trained, each with its queries, values and keys.
const PARTS: usize = 4;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    read_with(checkpoint, partition, separate)
}

pub(super) fn read_codegen(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let heads = checkpoint.config.size("n_head")?;
    if !heads.is_multiple_of(PARTS) {
        let reason = format!("it must be a multiple of {PARTS}, the parts of the projections");
        return Err(checkpoint.config.invalid_value("n_head", reason));
    }
    checkpoint.weights.ignore_suffixes(&[".attn.causal_mask"]);
    read_with(checkpoint, partition, in_parts)
}

/// Function that takes the queries, and the keys and values, of the layer with this prefix and width.
type Projections = fn(&mut Weights, &str, usize) -> Result<(LinearWeights, LinearWeights), LoadError>;

fn separate(
    weights: &mut Weights,
    prefix: &str,
    width: usize,
) -> Result<(LinearWeights, LinearWeights), LoadError> {
    let mut square =
        |name: &str| LinearWeights::take(weights, &format!("{prefix}.attn.{name}"), width, width, false);
    Ok((
        square("q_proj")?,
        square("k_proj")?.concat_outputs(&square("v_proj")?),
    ))
}

fn in_parts(
    weights: &mut Weights,
    prefix: &str,
    width: usize,
) -> Result<(LinearWeights, LinearWeights), LoadError> {
    let name = format!("{prefix}.attn.qkv_proj");
    let fused = LinearWeights::take(weights, &name, width, 3 * width, false)?;
    let (query, rest) = fused.by_part(width / PARTS, 3).split(width);
    let (value, key) = rest.split(width);
    Ok((query, key.concat_outputs(&value)))
}

fn read_with(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    projections: Projections,
) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let width = config.size("n_embd")?;
    let heads = attention_heads(config, "n_head", width)?;
    let turned = config.optional::<usize>("rotary_dim")?.unwrap_or(heads.head_dim);
    if turned > heads.head_dim || !turned.is_multiple_of(2) {
        let reason = format!("it must be even and at most the head size of {}", heads.head_dim);
        return Err(config.invalid_value("rotary_dim", reason));
    }
    let angle = |pair: usize| 1.0 / 10_000_f64.powf(2.0 * pair as f64 / turned as f64);
    let model_config = ModelConfig {
        width,
        heads,
        intermediate_size: config.optional_size("n_inner")?.unwrap_or(4 * width),
        vocabulary: config.size("vocab_size")?,
        context: config.size("n_positions")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "activation_function", "gelu_new")?,
        parallel: Parallel::SharedNorm,
        rotary: Some(Rotary {
            frequencies: (0..turned / 2).map(|pair| angle(pair) as f32).collect(),
            neighbours: true,
            scale: 1.0,
        }),
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let embedding = weights.take("transformer.wte.weight", &[model_config.vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layer", partition)? {
        let at = |name: &str| format!("transformer.h.{index}.{name}");
        let (query, key_value) = projections(weights, &format!("transformer.h.{index}"), width)?;
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take(weights, &at("ln_1"), width)?),
            query,
            key_value,
            output: LinearWeights::take(weights, &at("attn.out_proj"), width, width, false)?,
            up: LinearWeights::take(
                weights,
                &at("mlp.fc_in"),
                width,
                model_config.intermediate_size,
                true,
            )?,
            down: LinearWeights::take(
                weights,
                &at("mlp.fc_out"),
                model_config.intermediate_size,
                width,
                true,
            )?,
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = NormWeights::take(weights, "transformer.ln_f", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}
