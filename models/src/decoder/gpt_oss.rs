//! gpt-oss (`OpenAI` 2025): mixtures of experts with biases and clamped gates, every second layer with a window, and a sink per
//! head, which takes a part of the attention.

use super::experts::{ExpertLayout, ExpertTensors};
use super::gated::{self, Extra, Layout};
use super::rotary::RotaryKeys;
use super::routing::Routing;
use super::weights::{Decoder, ModelConfig};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::ops::Activation;
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |index| index.is_multiple_of(2))?;
    let experts = ExpertLayout {
        router: "router",
        router_bias: true,
        tensors: ExpertTensors::Alternating,
        ..ExpertLayout::everywhere(config, "intermediate_size")?
    };
    let activation = Activation::ClampedSilu {
        slope: positive(config, "swiglu_alpha", 1.702)?,
        limit: positive(config, "swiglu_limit", 7.0)?,
    };
    let keys = RotaryKeys {
        theta: 150_000.0,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        local,
        routing: Some(Routing::read(config, experts.count, true)?),
        ..gated::activated(config, activation, keys)?
    };
    let bias = config.optional("attention_bias")?.unwrap_or(true);
    let layout = Layout {
        qkv_bias: bias,
        output_bias: bias,
        extra: Extra::Sinks,
        local_layers,
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, slice, model_config, &layout)
}

fn positive(config: &Config, key: &str, absent: f32) -> Result<f32, LoadError> {
    let value = config.optional::<f32>(key)?.unwrap_or(absent);
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(config.invalid_value(key, "it must be positive"))
    }
}
