//! Helium (Kyutai 2025): Llama with adjacent rotary pairs.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::epsilon;
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let keys = RotaryKeys {
        theta: 1e5,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        epsilon: epsilon(config, "rms_norm_eps", 1e-8)?,
        ..gated::model_config(config, keys)?.with_adjacent_pairs()
    };
    let layout = Layout {
        output_bias: false,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
