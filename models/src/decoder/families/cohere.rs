//! Command R (Cohere 2024), and its version 2 with Command R7B and A: parallel attention and feed-forward after one
//! layer norm without bias, scaled logits. Command R+ has query-key norms. In version 2, sliding-window layers have
//! rotary positions, the others none.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::epsilon;
use crate::decoder::gated::{self, HeadNormLayout, HeadNormTensors, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, Parallel, QueryKeyNorm};

pub(super) fn read_1(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let norms = config.optional("use_qk_norm")?.unwrap_or(false);
    let model_config = ModelConfig {
        query_key_norm: if norms {
            QueryKeyNorm::EachHead
        } else {
            QueryKeyNorm::No
        },
        ..model_config(config)?
    };
    let base = layout(config, Vec::new())?;
    let layout = Layout {
        head_norms: HeadNormLayout {
            tensors: HeadNormTensors::Rows,
            ..base.head_norms
        },
        ..base
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let pattern = config.optional_size("sliding_window_pattern")?.unwrap_or(4);
    let (local, local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(pattern))?;
    let base = model_config(config)?;
    let model_config = ModelConfig {
        local: local.map(|local| LocalAttention {
            rotary: base.rotary.clone(),
            ..local
        }),
        rotary: None,
        ..base
    };
    gated::read(
        checkpoint,
        partition,
        model_config,
        &layout(config, local_layers)?,
    )
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let base = gated::model_config(config, RotaryKeys::default())?;
    Ok(ModelConfig {
        epsilon: epsilon(config, "layer_norm_eps", 1e-5)?,
        parallel: Parallel::SharedNorm,
        logit_scale: Some(config.optional("logit_scale")?.unwrap_or(0.0625)),
        ..base.with_adjacent_pairs()
    })
}

fn layout(config: &Config, local_layers: Vec<bool>) -> Result<Layout, LoadError> {
    Ok(Layout {
        norms: NormKind::Unbiased,
        local_layers,
        ..Layout::with_biases(config)?
    })
}
