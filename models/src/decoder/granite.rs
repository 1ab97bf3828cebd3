//! Granite 3 and 4 (IBM 2024): Llama with factors of embeddings, scores, residuals and logits, also with mixtures of experts.

use super::experts::{ExpertLayout, ExpertTensors};
use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::routing::Routing;
use super::weights::{Decoder, ModelConfig};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::ops::Heads;
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = model_config(config)?;
    gated::read(checkpoint, slice, model_config, &Layout::with_biases(config)?)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = ExpertLayout {
        block: "block_sparse_moe",
        router: "router.layer",
        tensors: ExpertTensors::Fused(["input_linear.weight", "output_linear.weight"]),
        ..ExpertLayout::everywhere(config, "intermediate_size")?
    };
    let model_config = ModelConfig {
        routing: Some(Routing::read(config, experts.count, true)?),
        ..model_config(config)?
    };
    let layout = Layout {
        experts: Some(experts),
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, slice, model_config, &layout)
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
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
    Ok(ModelConfig {
        heads: Heads {
            scale: factor("attention_multiplier")?.unwrap_or(1.0),
            ..base.heads
        },
        embedding_scale: Some(factor("embedding_multiplier")?.unwrap_or(1.0) / added),
        epsilon: base.epsilon / (added * added),
        logit_scale: factor("logits_scaling")?.map(f32::recip),
        ..base
    })
}
