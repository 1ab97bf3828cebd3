//! Ministral and Ministral 3 (Mistral AI 2024, 2025), text only: Mistral with a sliding window in some layers; version
//! 3 scales queries beyond the training context.

use kaskade_policy::plan::Partition;
use serde::Deserialize;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, QueryScaling};

/// Keys of `rope_parameters` for the query scaling.
#[derive(Deserialize)]
struct Growth {
    llama_4_scaling_beta: Option<f32>,
    original_max_position_embeddings: Option<usize>,
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |_| true)?;
    let model_config = ModelConfig {
        local,
        query_scaling: growth(config)?,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    let layout = Layout {
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads the query scaling beyond the training context.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn growth(config: &Config) -> Result<Option<QueryScaling>, LoadError> {
    let key = config.present_key(["rope_parameters", "rope_scaling"]);
    let Some(stated) = config.optional::<Growth>(key)? else {
        return Ok(None);
    };
    match (
        stated.llama_4_scaling_beta,
        stated.original_max_position_embeddings,
    ) {
        (None, _) => Ok(None),
        (Some(rate), Some(context)) if rate.is_finite() && context > 0 => Ok(Some(QueryScaling {
            rate,
            context,
            from: 0,
            is_local: true,
        })),
        _ => {
            let reason = "`llama_4_scaling_beta` needs a positive `original_max_position_embeddings`";
            Err(config.invalid_value(key, reason))
        }
    }
}
