//! gpt-oss (`OpenAI` 2025): experts with biases and clamped gates, a sliding window in every second layer, and an
//! attention sink per head. The privacy filter (2026) of the same architecture labels tokens, with a window in both
//! directions.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::positive;
use crate::decoder::experts::{ExpertLayout, ExpertTensors};
use crate::decoder::gated::{self, Extra, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig};
use crate::ops::Activation;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |index| index.is_multiple_of(2))?;
    let (base, layout) = with_experts(config, ExpertTensors::Alternating)?;
    let model_config = ModelConfig { local, ..base };
    let layout = Layout {
        local_layers,
        ..layout
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_filter(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (base, layout) = with_experts(config, ExpertTensors::Biased)?;
    let window = Some(config.size("sliding_window")?);
    let model_config = ModelConfig {
        local: Some(LocalAttention { window, rotary: None }),
        bidirectional: true,
        ..base.with_adjacent_pairs()
    };
    let layout = Layout {
        local_layers: vec![true; config.size("num_hidden_layers")?],
        ..layout
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns configuration and layout without sliding windows.
fn with_experts(config: &Config, tensors: ExpertTensors) -> Result<(ModelConfig, Layout), LoadError> {
    let experts = ExpertLayout {
        router: "router",
        router_bias: true,
        tensors,
        ..ExpertLayout::everywhere(config, "intermediate_size")?
    };
    let activation = Activation::ClampedSilu {
        slope: positive(config, "swiglu_alpha")?.unwrap_or(1.702),
        limit: positive(config, "swiglu_limit")?.unwrap_or(7.0),
    };
    let keys = RotaryKeys {
        theta: 150_000.0,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        routing: Some(Routing::read(config, experts.count, true)?),
        ..gated::activated(config, activation, keys)?
    };
    let bias = config.optional("attention_bias")?.unwrap_or(true);
    let layout = Layout {
        qkv_bias: bias,
        output_bias: bias,
        extra: Extra::Sinks,
        experts: Some(experts),
        ..Layout::default()
    };
    Ok((model_config, layout))
}
