//! Granite 3 and 4 dense (IBM 2024): Llama with factors of embeddings, scores, residuals and logits.

use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::weights::{Decoder, ModelConfig};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::ops::Heads;
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let factor = |key: &str| -> Result<Option<f32>, LoadError> {
        let factor = config.optional::<f32>(key)?;
        if factor.is_some_and(|factor| !factor.is_finite() || factor <= 0.0) {
            return Err(config.invalid_value(key, "it must be positive"));
        }
        Ok(factor)
    };
    let base = gated::model_config(config, RotaryKeys::default())?;
    // The layers compute on hidden vectors divided by the factor of what is added to them. Then the embeddings alone are
    // scaled, and the norms, which undo the division but for their epsilon, need that divided by its square.
    let added = factor("residual_multiplier")?.unwrap_or(1.0);
    let model_config = ModelConfig {
        heads: Heads {
            scale: factor("attention_multiplier")?.unwrap_or(1.0),
            ..base.heads
        },
        embedding_scale: Some(factor("embedding_multiplier")?.unwrap_or(1.0) / added),
        epsilon: base.epsilon / (added * added),
        logit_scale: factor("logits_scaling")?.map(f32::recip),
        ..base
    };
    gated::read(checkpoint, slice, model_config, &Layout::with_biases(config)?)
}
