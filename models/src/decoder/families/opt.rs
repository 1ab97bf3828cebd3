//! OPT (Zhang et al. 2022). The 350M model has post-norms, and embeddings that are narrower than its layers: they are
//! projected to the model's width while loading, and so is the head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::config_values::{activation, attention_heads, eos_token_ids, layers, require};
use crate::decoder::head::LmHeadConfig;
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights, OutputNorms};
use crate::precision::Table;

/// The position table begins with two unused rows.
const OFFSET: usize = 2;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    require(
        config,
        "_remove_final_layer_norm",
        false,
        "a decoder without a final norm is not supported",
    )?;
    require(
        config,
        "enable_bias",
        true,
        "layers without biases are not supported",
    )?;
    require(
        config,
        "layer_norm_elementwise_affine",
        true,
        "norms without weights are not supported",
    )?;
    let width = config.size("hidden_size")?;
    let before = config.optional("do_layer_norm_before")?.unwrap_or(true);
    let narrow = config.optional_size("word_embed_proj_dim")?.unwrap_or(width);
    let model_config = ModelConfig {
        width,
        heads: attention_heads(config, "num_attention_heads", width)?,
        intermediate_size: config.size("ffn_dim")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: 1e-5,
        activation: activation(config, "activation_function", "relu")?,
        no_input_norms: !before,
        output_norms: if before {
            OutputNorms::No
        } else {
            OutputNorms::Sums
        },
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    };
    let at = |name: &str| format!("model.decoder.{name}");
    let mut embedding = weights.take(&at("embed_tokens.weight"), &[model_config.vocabulary, narrow])?;
    let mut head = LinearWeights::default();
    if narrow != width {
        (embedding, head) = projected(config, weights, embedding, [narrow, width], partition)?;
    }
    let positions = positions(weights, &at("embed_positions.weight"), &model_config)?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", partition)? {
        blocks.push(layer(weights, &model_config, &at(&format!("layers.{index}")))?);
    }
    let final_norm = if before {
        NormWeights::take(weights, &at("final_layer_norm"), width)?
    } else {
        last_norm(&mut blocks, partition, width)
    };
    Ok(Decoder {
        positions: Some(positions),
        head,
        ..Decoder::without_head(model_config, embedding, blocks, final_norm)
    })
}

/// Takes a table with one vector per position.
pub(super) fn positions(
    weights: &mut Weights,
    name: &str,
    model_config: &ModelConfig,
) -> Result<Table, LoadError> {
    let (width, context) = (model_config.width, model_config.context);
    let mut positions = weights.take(name, &[context + OFFSET, width])?;
    positions.drain(..OFFSET * width);
    Ok(Table::new(positions, width))
}

/// Takes the layer with this prefix; with post-norms if the configuration states it.
pub(super) fn layer(
    weights: &mut Weights,
    model_config: &ModelConfig,
    prefix: &str,
) -> Result<LayerWeights, LoadError> {
    let (width, inner) = (model_config.width, model_config.intermediate_size);
    let at = |name: &str| format!("{prefix}.{name}");
    let mut square = |name: &str| LinearWeights::take(weights, &at(name), width, width, true);
    let query = square("self_attn.q_proj")?;
    let key = square("self_attn.k_proj")?;
    let value = square("self_attn.v_proj")?;
    let output = square("self_attn.out_proj")?;
    let layer = LayerWeights {
        query,
        key_value: key.concat_outputs(&value),
        output,
        up: LinearWeights::take(weights, &at("fc1"), width, inner, true)?,
        down: LinearWeights::take(weights, &at("fc2"), inner, width, true)?,
        ..norms(weights, model_config, prefix)?
    };
    Ok(layer.stored_as(weights.weight_type()))
}

/// Takes the two norms of the layer `prefix` into a layer without other weights. `output_norms` states whether they
/// precede attention and feed-forward, or follow the residual sums.
pub(super) fn norms(
    weights: &mut Weights,
    model_config: &ModelConfig,
    prefix: &str,
) -> Result<LayerWeights, LoadError> {
    let mut norm =
        |name: &str| NormWeights::take(weights, &format!("{prefix}.{name}"), model_config.width).map(Some);
    let attention_norm = norm("self_attn_layer_norm")?;
    let feed_forward_norm = norm("final_layer_norm")?;
    Ok(if model_config.output_norms == OutputNorms::Sums {
        LayerWeights {
            attention_output_norm: attention_norm,
            feed_forward_output_norm: feed_forward_norm,
            ..LayerWeights::default()
        }
    } else {
        LayerWeights {
            attention_norm,
            feed_forward_norm,
            ..LayerWeights::default()
        }
    })
}

/// Takes the post-norm of the last layer, which serves as the final norm. Partitions without the last layer keep all
/// norms, because only the last partition has a final norm.
pub(super) fn last_norm(blocks: &mut [LayerWeights], partition: Partition, width: usize) -> NormWeights {
    let last = blocks.last_mut().filter(|_| partition.is_last());
    let norm = last.and_then(|layer| layer.feed_forward_output_norm.take());
    norm.unwrap_or_else(|| NormWeights::plain(width))
}

/// Projects embeddings of width `narrow` to the model's width, and takes the matching head; only the last partition
/// has one.
fn projected(
    config: &Config,
    weights: &mut Weights,
    embedding: Vec<f32>,
    [narrow, width]: [usize; 2],
    partition: Partition,
) -> Result<(Vec<f32>, LinearWeights), LoadError> {
    let inward = LinearWeights::take(weights, "model.decoder.project_in", narrow, width, false)?;
    let outward = LinearWeights::take(weights, "model.decoder.project_out", width, narrow, false)?;
    let mut head = LinearWeights::default();
    if partition.is_last() {
        let stored = LmHeadConfig::TIED.take(config, weights, &embedding, narrow)?;
        let stored = if stored.shared {
            LinearWeights::tied(&embedding, narrow)
        } else {
            stored
        };
        head = outward.then(stored);
    }
    Ok((inward.of_rows(embedding), head))
}
