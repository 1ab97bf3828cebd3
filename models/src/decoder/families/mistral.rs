//! Mistral (Jiang et al. 2023): Llama with a sliding window, if `sliding_window` is set.

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
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
