//! `MiniMax-M2` (`MiniMax` 2025): Mixtral with sigmoid routing, query-key norms over all heads, and rotary positions
//! over a part of a head.

use kaskade_policy::plan::Partition;

use super::deepseek;
use super::mixtral;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{Correction, ExpertLayout};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::{Routing, Scoring};
use crate::decoder::weights::{Decoder, ModelConfig, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    deepseek::drop_further_layers(checkpoint)?;
    let config = &checkpoint.config;
    let experts = ExpertLayout {
        correction: Some(Correction {
            name: "e_score_correction_bias",
            is_row: false,
        }),
        ..mixtral::experts(config)?
    };
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::AllHeads,
        routing: Some(Routing {
            scoring: Scoring::Sigmoid,
            ..Routing::read(config, experts.count, true)?
        }),
        ..gated::model_config(config, keys(config)?)?
    };
    let layout = Layout {
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns the rotary keys; published files state the number of rotated dimensions of a head instead of their
/// fraction.
fn keys(config: &Config) -> Result<RotaryKeys, LoadError> {
    let head_dim = config.size("head_dim")?;
    let rotated = config.optional_size("rotary_dim")?.unwrap_or(head_dim);
    if rotated > head_dim {
        return Err(config.invalid_value("rotary_dim", format!("it must be at most head_dim = {head_dim}")));
    }
    Ok(RotaryKeys {
        theta: 5e6,
        partial: rotated as f64 / head_dim as f64,
        ..RotaryKeys::LLAMA
    })
}
