//! EXAONE 4 (LG AI Research 2025): norms of the outputs and of the heads of queries and keys. With a window, the layers that see
//! everything have no positions.

use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::weights::{Decoder, LocalAttention, ModelConfig, OutputNorms, QueryKeyNorm};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    // Published files also have a pattern as text, beside the types of all layers.
    let listed = config.optional::<serde_json::Value>("layer_types")?.is_some();
    let pattern = if listed {
        None
    } else {
        config.optional_size("sliding_window_pattern")?
    };
    let pattern = pattern.unwrap_or(4);
    let (local, local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(pattern))?;
    let mut model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        no_input_norms: true,
        output_norms: OutputNorms::Outputs,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    if let Some(local) = local {
        let rotary = model_config.rotary.take();
        model_config.local = Some(LocalAttention { rotary, ..local });
    }
    let layout = Layout {
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, slice, model_config, &layout)
}
