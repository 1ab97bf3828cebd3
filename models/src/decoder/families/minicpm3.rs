//! `MiniCPM3` (Hu et al. 2024): the attention of `DeepSeek` V2, and multipliers for embeddings, residuals and logits.

use kaskade_policy::plan::Partition;

use super::deepseek;
use super::granite::scaled_residuals;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::positive;
use crate::decoder::gated::{self, Layout};
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (width, depth) = (config.size("hidden_size")?, config.size("num_hidden_layers")?);
    let values = match config.optional_size("v_head_dim")? {
        Some(values) => values,
        None => width / config.size("num_attention_heads")?,
    };
    let latent = deepseek::latent_layout(config, values)?;
    // Without a depth scale, residuals are not scaled.
    let whole = (depth as f32).sqrt();
    let added = positive(config, "scale_depth")?.unwrap_or(whole) / whole;
    let narrow = positive(config, "dim_model_base")?;
    let model_config = ModelConfig {
        logit_scale: narrow.map(|narrow| narrow / width as f32),
        ..deepseek::model_config(config, &latent, false)?
    };
    let embedded = positive(config, "scale_emb")?.unwrap_or(12.0);
    let layout = Layout {
        latent: Some(latent),
        ..Layout::with_biases(config)?
    };
    gated::read(
        checkpoint,
        partition,
        scaled_residuals(model_config, embedded, added),
        &layout,
    )
}
