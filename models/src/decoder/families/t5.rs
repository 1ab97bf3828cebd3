//! T5 (Raffel et al. 2020): an encoder for the prompt and a decoder for the answer, relative positions, RMS norms,
//! unscaled scores. The original uses `ReLU` and a head tied to the embedding; version 1.1 and FLAN use a gated
//! feed-forward and a separate head. In UMT5 (Chung et al. 2023), every layer has its own relative positions. The
//! encoder of `LongT5` (Guo et al. 2022) attends within a window.

use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::config_values::{eos_token_ids, epsilon, parse_activation, start_token};
use crate::decoder::weights::{
    CrossWeights, Decoder, Encoder, LayerWeights, LinearWeights, LocalAttention, ModelConfig, NormWeights,
    TokenInputs,
};
use crate::ops::{Activation, Heads, RelativeBias};
use crate::precision::Table;

/// Default prompt length if the configuration has no `n_positions`: T5's training length (section 3.1.2), tokens.
const DEFAULT_CONTEXT: usize = 512;
/// Maximum distance, which bounds the size of the table.
const MAX_DISTANCE: usize = 1 << 16;

pub(super) fn read(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read_with(checkpoint, Kind::First)
}

/// Reads UMT5.
pub(super) fn read_umt5(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read_with(checkpoint, Kind::ByLayer)
}

/// Reads `LongT5` with local attention.
pub(super) fn read_long(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    read_with(checkpoint, Kind::Long)
}

/// Reads T5 for a classifier, without the head.
pub(super) fn read_classifier(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    strip_base(checkpoint);
    read_layers(checkpoint, Kind::First, false)
}

/// Reads UMT5 for a classifier, without the head.
pub(super) fn read_umt5_classifier(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    strip_base(checkpoint);
    read_layers(checkpoint, Kind::ByLayer, false)
}

/// Removes the prefix of a classifier's tensors, which models that generate do not have.
fn strip_base(checkpoint: &mut Checkpoint) {
    let stripped = |name: &str| name.strip_prefix("transformer.").unwrap_or(name).to_owned();
    checkpoint.weights.rename(stripped);
}

/// Differences between the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The first layer has the relative positions of all layers.
    First,
    /// Every layer has its own relative positions.
    ByLayer,
    /// Like [`Self::First`]; the encoder attends within a window.
    Long,
}

/// Reads a model that generates.
fn read_with(checkpoint: &mut Checkpoint, kind: Kind) -> Result<Decoder, LoadError> {
    read_layers(checkpoint, kind, true)
}

/// Reads a model, with its head if it generates.
fn read_layers(checkpoint: &mut Checkpoint, kind: Kind, generates: bool) -> Result<Decoder, LoadError> {
    let by_layer = kind == Kind::ByLayer;
    // By default, answers begin with the padding token, as in T5's training.
    let start_token = start_token(checkpoint, checkpoint.config.optional("pad_token_id")?)?;
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let mut model_config = model_config(config)?;
    if kind == Kind::Long {
        model_config.local = Some(local_attention(config)?);
    }
    let windowed = model_config.local.is_some();
    let width = model_config.width;
    let encoder_layers = config.size("num_layers")?;
    let layers = config.optional("num_decoder_layers")?.unwrap_or(encoder_layers);
    let embedding = weights.take("shared.weight", &[model_config.vocabulary, width])?;
    let mut relative_bias = None;
    if !by_layer {
        let of_first = |side: &str| format!("{side}.block.0");
        let encoder = (of_first("encoder"), windowed);
        relative_bias = Some(buckets(config, &model_config, weights, encoder)?);
        let decoder = (of_first("decoder"), false);
        model_config.relative_bias = Some(buckets(config, &model_config, weights, decoder)?);
    }
    let mut layer = |name: &str, crosses: bool| {
        let own = (name.to_owned(), false);
        let relative_bias = by_layer.then(|| buckets(config, &model_config, weights, own));
        let local = windowed && !crosses;
        Ok::<_, LoadError>(LayerWeights {
            relative_bias: relative_bias.transpose()?,
            ..layer(weights, &model_config, name, (crosses, local))?
        })
    };
    let read = (0..encoder_layers).map(|index| layer(&format!("encoder.block.{index}"), false));
    let encoder_layers = read.collect::<Result<_, _>>()?;
    let read = (0..layers).map(|index| layer(&format!("decoder.block.{index}"), true));
    let layers = read.collect::<Result<_, _>>()?;
    let encoder = Encoder {
        context: config.optional("n_positions")?.unwrap_or(DEFAULT_CONTEXT),
        start_token,
        starts_with_last: false,
        relative_bias,
        inputs: TokenInputs::default(),
        layers: encoder_layers,
        final_norm: NormWeights::take_rms(weights, "encoder.final_layer_norm", width)?,
    };
    // Old versions of transformers saved the shared embedding twice, and an unused bias.
    weights.ignore_suffixes(&[
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "EncDecAttention.relative_attention_bias.weight",
    ]);
    let mut final_norm = NormWeights::take_rms(weights, "decoder.final_layer_norm", width)?;
    let (head, scale) = if generates {
        head(config, weights, &embedding, &model_config)?
    } else {
        (LinearWeights::shared(width, model_config.vocabulary), 1.0)
    };
    // Scales the norm, which is f32, instead of the head, which may have another type.
    final_norm.gamma.iter_mut().for_each(|gamma| *gamma *= scale);
    Ok(Decoder {
        final_norm,
        head_layer: None,
        head,
        encoder: Some(encoder),
        per_layer_embeddings: None,
        streams: None,
        positions: None,
        embedding_norm: None,
        weight_type: weights.weight_type(),
        embedding: Table::new(embedding, width),
        layers,
        model_config,
    })
}

/// Reads the configuration without the relative positions.
fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let (activation, gated) = feed_forward(config)?;
    let heads = config.size("num_heads")?;
    Ok(ModelConfig {
        width: config.size("d_model")?,
        heads: Heads {
            queries: heads,
            keys: heads,
            head_dim: config.size("d_kv")?,
            scale: 1.0,
        },
        intermediate_size: config.size("d_ff")?,
        vocabulary: config.size("vocab_size")?,
        context: usize::MAX,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-6)?,
        activation,
        gated,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

/// Reads `feed_forward_proj`: an activation, with the prefix `gated-` if gated. `gated-gelu` means the tanh
/// approximation, as version 1.1 was trained. As in transformers, `dense_act_fn` and `is_gated_act` override it.
pub(crate) fn feed_forward(config: &Config) -> Result<(Activation, bool), LoadError> {
    let key = "feed_forward_proj";
    let name = config.optional::<String>(key)?.unwrap_or_else(|| "relu".into());
    let (gated, named) = match name.strip_prefix("gated-") {
        Some("gelu") => (true, "gelu_new"),
        Some(name) => (true, name),
        None => (false, name.as_str()),
    };
    let gated = config.optional("is_gated_act")?.unwrap_or(gated);
    let stated = config.optional::<String>("dense_act_fn")?;
    let (key, named) = match &stated {
        Some(stated) => ("dense_act_fn", stated.as_str()),
        None => (key, named),
    };
    match parse_activation(named) {
        Some(activation) => Ok((activation, gated)),
        None => Err(config.invalid_value(
            key,
            "relu, gelu, gelu_new and silu are supported, in feed_forward_proj also with the prefix gated-",
        )),
    }
}

/// Reads the attention window of `LongT5`.
fn local_attention(config: &Config) -> Result<LocalAttention, LoadError> {
    let key = "encoder_attention_type";
    let kind = config.optional::<String>(key)?;
    if kind.is_some_and(|kind| kind != "local") {
        return Err(config.invalid_value(key, "only local is supported"));
    }
    Ok(LocalAttention {
        window: Some(config.optional_size("local_radius")?.unwrap_or(127)),
        rotary: None,
    })
}

/// Returns the name of the self-attention within a layer, which differs if it has a window.
const fn self_attention(local: bool) -> &'static str {
    if local {
        "LocalSelfAttention"
    } else {
        "SelfAttention"
    }
}

/// Expands the bias of the distance buckets of a layer into a table by distance; the layer is given by its name, and
/// whether its attention has a window.
fn buckets(
    config: &Config,
    model_config: &ModelConfig,
    weights: &mut Weights,
    (block, local): (String, bool),
) -> Result<RelativeBias, LoadError> {
    let (count_key, far_key) = (
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
    );
    let count = config.optional(count_key)?.unwrap_or(32);
    let max_distance = config.optional(far_key)?.unwrap_or(128);
    if count < 4 || count % 2 == 1 {
        return Err(config.invalid_value(count_key, "it must be even and at least 4"));
    }
    if max_distance <= count / 2 || max_distance > MAX_DISTANCE {
        let reason = format!(
            "it must be over {} (half of the buckets) and at most {MAX_DISTANCE}",
            count / 2
        );
        return Err(config.invalid_value(far_key, reason));
    }
    let bidirectional = block.starts_with("encoder");
    let attention = self_attention(local);
    let name = format!("{block}.layer.0.{attention}.relative_attention_bias.weight");
    let table = weights.take(&name, &[count, model_config.heads.queries])?;
    let bias = |head: usize, place: usize| {
        let distance = place.abs_diff(max_distance);
        let bucket = match (bidirectional, place > max_distance) {
            (true, later) => bucket(distance, count / 2, max_distance) + if later { count / 2 } else { 0 },
            // Later tokens are masked in a decoder.
            (false, true) => 0,
            (false, false) => bucket(distance, count, max_distance),
        };
        let value = table.get(bucket * model_config.heads.queries + head);
        value.copied().unwrap_or_default()
    };
    let width = 2 * max_distance + 1;
    let heads = 0..model_config.heads.queries;
    let places = heads.flat_map(|head| (0..width).map(move |place| (head, place)));
    Ok(RelativeBias {
        max_distance,
        values: places.map(|(head, place)| bias(head, place)).collect(),
    })
}

/// Returns the bucket of a distance, of `count`: each of the smaller distances has its own bucket, for half of the
/// buckets; the others have logarithmic size up to `max_distance`. Uses the precision and order of operations of
/// transformers, because boundaries depend on the last bit.
pub(crate) fn bucket(distance: usize, count: usize, max_distance: usize) -> usize {
    let exact = count / 2;
    if distance < exact {
        return distance;
    }
    let octaves = (max_distance as f64 / exact as f64).ln() as f32;
    let share = (distance as f32 / exact as f32).ln() / octaves;
    (exact + (share * (count - exact) as f32) as usize).min(count - 1)
}

/// Reads a layer of the encoder or the decoder; cross-attention is between the decoder's attention and feed-forward.
/// `local` states whether its attention has a window.
fn layer(
    weights: &mut Weights,
    model_config: &ModelConfig,
    name: &str,
    (crosses, local): (bool, bool),
) -> Result<LayerWeights, LoadError> {
    let (width, attention_width) = (model_config.width, model_config.heads.query_width());
    let mut attention = |name: String| -> Result<_, LoadError> {
        let mut take = |part: &str, inputs, outputs| {
            LinearWeights::take(weights, &format!("{name}.{part}"), inputs, outputs, false)
        };
        let query = take("q", width, attention_width)?;
        let key_value =
            take("k", width, attention_width)?.concat_outputs(&take("v", width, attention_width)?);
        Ok((query, key_value, take("o", attention_width, width)?))
    };
    let (query, key_value, output) = attention(format!("{name}.layer.0.{}", self_attention(local)))?;
    let cross = crosses.then(|| attention(format!("{name}.layer.1.EncDecAttention")));
    let cross = match cross.transpose()? {
        Some((query, key_value, output)) => Some(CrossWeights {
            norm: NormWeights::take_rms(weights, &format!("{name}.layer.1.layer_norm"), width)?,
            output_norm: None,
            query,
            key_value,
            output,
        }),
        None => None,
    };
    let last = format!("{name}.layer.{}", if crosses { 2 } else { 1 });
    let mut dense = |part: &str, inputs, outputs| {
        LinearWeights::take(
            weights,
            &format!("{last}.DenseReluDense.{part}"),
            inputs,
            outputs,
            false,
        )
    };
    let up = if model_config.gated {
        dense("wi_0", width, model_config.intermediate_size)?.concat_outputs(&dense(
            "wi_1",
            width,
            model_config.intermediate_size,
        )?)
    } else {
        dense("wi", width, model_config.intermediate_size)?
    };
    let down = dense("wo", model_config.intermediate_size, width)?;
    let layer = LayerWeights {
        local,
        attention_norm: Some(NormWeights::take_rms(
            weights,
            &format!("{name}.layer.0.layer_norm"),
            width,
        )?),
        query,
        key_value,
        output,
        feed_forward_norm: Some(NormWeights::take_rms(
            weights,
            &format!("{last}.layer_norm"),
            width,
        )?),
        up,
        down,
        cross,
        ..LayerWeights::default()
    };
    Ok(layer.stored_as(weights.weight_type()))
}

/// Reads the head, separate or tied to the embedding, and the scale of its input in the original T5.
///
/// Newer versions of transformers state the scale as `scale_decoder_outputs`, published checkpoints as
/// `tie_word_embeddings`. The presence of its weights shows whether there is a separate head.
fn head(
    config: &Config,
    weights: &mut Weights,
    embedding: &[f32],
    model_config: &ModelConfig,
) -> Result<(LinearWeights, f32), LoadError> {
    let tied = config.optional("tie_word_embeddings")?.unwrap_or(true);
    let written = config.optional("scale_decoder_outputs")?;
    let head = if weights.contains("lm_head.weight") || (!tied && written.is_none()) {
        LinearWeights::take(
            weights,
            "lm_head",
            model_config.width,
            model_config.vocabulary,
            false,
        )?
    } else {
        LinearWeights::tied(embedding, model_config.width)
    };
    let scale = if written.unwrap_or(tied) {
        1.0 / (model_config.width as f32).sqrt()
    } else {
        1.0
    };
    Ok((head, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides of every bucket boundary of published models, as computed by transformers 5.23.
    #[test]
    fn buckets_match_transformers() {
        let bidirectional = [
            (7, 7),
            (8, 8),
            (11, 8),
            (12, 9),
            (15, 9),
            (16, 10),
            (22, 10),
            (23, 11),
            (31, 11),
            (32, 12),
            (45, 12),
            (46, 13),
            (63, 13),
            (64, 14),
            (90, 14),
            (91, 15),
            (127, 15),
            (128, 15),
            (500, 15),
        ];
        for (distance, expected) in bidirectional {
            assert_eq!(bucket(distance, 16, 128), expected, "{distance}");
        }
        let one_way = [
            (15, 15),
            (16, 16),
            (18, 16),
            (19, 17),
            (20, 17),
            (21, 18),
            (32, 21),
            (46, 24),
            (64, 26),
            (90, 29),
            (112, 30),
            (113, 31),
            (128, 31),
            (500, 31),
        ];
        for (distance, expected) in one_way {
            assert_eq!(bucket(distance, 32, 128), expected, "{distance}");
        }
    }
}
