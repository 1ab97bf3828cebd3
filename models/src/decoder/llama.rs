//! Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024).

use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::weights::Decoder;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = gated::model_config(config, RotaryKeys::default())?;
    let layout = Layout::with_biases(config)?;
    gated::read(checkpoint, slice, model_config, &layout)
}
