//! Phi-3, 3.5 and Phi-4-mini (Abdin et al. 2024): Llama with fused projections, and rotary positions over a part of a head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |_| true)?;
    let model_config = ModelConfig {
        local,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        fused_projections: Some("self_attn.qkv_proj"),
        up: &["mlp.gate_up_proj"],
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
