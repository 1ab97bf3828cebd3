//! Youtu-LLM (Tencent 2025): the attention of `DeepSeek` V3 with dense feed-forwards.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::weights::Decoder;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let latent = deepseek::latent_layout(config, config.size("v_head_dim")?)?;
    let adjacent = config.optional("rope_interleave")?.unwrap_or(true);
    let model_config = deepseek::model_config(config, &latent, adjacent)?;
    let layout = Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(false),
        latent: Some(latent),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
