//! Mixtral (Jiang et al. 2024): Mistral with experts.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{ExpertLayout, ExpertTensors};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |_| true)?;
    let experts = experts(config)?;
    let model_config = ModelConfig {
        local,
        routing: Some(Routing::read(config, experts.count, true)?),
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        local_layers,
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns experts in every layer, with the names of Mixtral.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    Ok(ExpertLayout {
        block: "block_sparse_moe",
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
        ..ExpertLayout::everywhere(config, "intermediate_size")?
    })
}
