//! GPT-2 (Radford et al. 2019).

use super::config_values::{activation, ends, epsilon, even_heads, layers, must_be};
use super::weights::{Decoder, Dense, LayerWeights, Scale, Spec};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    must_be(
        config,
        "scale_attn_weights",
        true,
        "attention without scaling is not served",
    )?;
    let by_layer = "scores scaled by layer are not served";
    must_be(config, "scale_attn_by_inverse_layer_idx", false, by_layer)?;
    must_be(
        config,
        "tie_word_embeddings",
        true,
        "only a head that shares the embedding is served",
    )?;
    let width = config.size("n_embd")?;
    let spec = Spec {
        width,
        heads: even_heads(config, "n_head", width)?,
        inner: config.optional_size("n_inner")?.unwrap_or(4 * width),
        vocabulary: config.size("vocab_size")?,
        context: config.size("n_positions")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "activation_function", "gelu_new")?,
        gated: false,
        parallel: false,
        rotary: None,
        relative: None,
        ends: ends(config)?,
    };
    // The published checkpoints leave the prefix out.
    let prefix = if weights.contains("wte.weight") {
        ""
    } else {
        "transformer."
    };
    let embedding = weights.take(&format!("{prefix}wte.weight"), &[spec.vocabulary, width])?;
    let positions = weights.take(&format!("{prefix}wpe.weight"), &[spec.context, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "n_layer", slice)? {
        let at = |name: &str| format!("{prefix}h.{index}.{name}");
        let projections = Dense::take_straight(weights, &at("attn.c_attn"), width, 3 * width)?;
        let (query, key_value) = projections.split(width);
        blocks.push(LayerWeights {
            attention_norm: Scale::take(weights, &at("ln_1"), width)?,
            query,
            key_value,
            output: Dense::take_straight(weights, &at("attn.c_proj"), width, width)?,
            feed_forward_norm: Some(Scale::take(weights, &at("ln_2"), width)?),
            up: Dense::take_straight(weights, &at("mlp.c_fc"), width, spec.inner)?,
            down: Dense::take_straight(weights, &at("mlp.c_proj"), spec.inner, width)?,
            cross: None,
        });
    }
    weights.drop_ending(&["lm_head.weight"]);
    Ok(Decoder {
        encoder: None,
        final_norm: Scale::take(weights, &format!("{prefix}ln_f"), width)?,
        head: Dense::tied(&embedding, width),
        positions: Some(positions),
        embedding,
        layers: blocks,
        spec,
    })
}
