//! `OLMo`, `OLMo` 2 and 3 (Groeneveld et al. 2024; `OLMo` et al. 2025). Version 1 has norms without weights. From
//! version 2 on, output norms replace input norms, and query-key norms span all heads; version 3 adds sliding-window
//! layers. `OLMoE` (Muennighoff et al. 2024) has experts, input norms like Llama, and query-key norms.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::epsilon;
use crate::decoder::experts::ExpertLayout;
use crate::decoder::gated::{self, Layout, NormKind};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, OutputNorms, QueryKeyNorm};

/// One global layer per this many layers of version 3.
const PATTERN: usize = 4;

pub(super) fn read_1(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        clip: clip(config)?,
        epsilon: 1e-5,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        norms: NormKind::Plain,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = model_config(config, RotaryKeys::default())?;
    let layout = Layout::with_biases(config)?;
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(PATTERN))?;
    let of = |layer_type, scaled| RotaryKeys {
        layer_type: Some(layer_type),
        scaled,
        ..RotaryKeys::default()
    };
    let mut model_config = model_config(config, of("full_attention", true))?;
    let near = rotary(
        config,
        model_config.heads.head_dim,
        of("sliding_attention", false),
    )?;
    model_config.local = local.map(|local| LocalAttention {
        rotary: Some(near.rotary),
        ..local
    });
    let layout = Layout {
        local_layers,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = ExpertLayout::everywhere(config, "intermediate_size")?;
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(false);
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::AllHeads,
        clip: clip(config)?,
        epsilon: epsilon(config, "rms_norm_eps", 1e-5)?,
        routing: Some(Routing::read(config, experts.count, normalised)?),
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        experts: Some(experts),
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads `FlexOlmo` (Shi et al. 2025): the experts of `OLMoE` with the norms of version 2.
pub(super) fn read_flex(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = ExpertLayout::everywhere(config, "intermediate_size")?;
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(false);
    let keys = RotaryKeys {
        theta: 5e5,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        routing: Some(Routing::read(config, experts.count, normalised)?),
        ..model_config(config, keys)?
    };
    let layout = Layout {
        experts: Some(experts),
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads the clamp of queries, keys and values.
fn clip(config: &Config) -> Result<Option<f32>, LoadError> {
    let key = "clip_qkv";
    match config.optional::<f32>(key)? {
        Some(clip) if clip.is_nan() || clip <= 0.0 => Err(config.invalid_value(key, "it must be positive")),
        clip => Ok(clip),
    }
}

fn model_config(config: &Config, keys: RotaryKeys) -> Result<ModelConfig, LoadError> {
    Ok(ModelConfig {
        query_key_norm: QueryKeyNorm::AllHeads,
        no_input_norms: true,
        output_norms: OutputNorms::Outputs,
        ..gated::model_config(config, keys)?
    })
}
