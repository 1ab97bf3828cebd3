//! Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024), and the Code World Model (Meta 2025), most of whose
//! layers have a sliding window.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = gated::model_config(config, RotaryKeys::default())?;
    let layout = Layout::with_biases(config)?;
    gated::read(checkpoint, partition, model_config, &layout)
}

/// One global layer per this many layers of the Code World Model.
const PATTERN: usize = 4;

pub(super) fn read_world(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |index| !index.is_multiple_of(PATTERN))?;
    let keys = RotaryKeys {
        theta: 1e6,
        ..RotaryKeys::default()
    };
    let model_config = ModelConfig {
        local,
        ..gated::model_config(config, keys)?
    };
    let layout = Layout {
        local_layers,
        feed_forward_bias: config.optional("mlp_bias")?.unwrap_or(false),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
