//! Jamba (AI21 2024): Mamba 1 mixers, attention without positions in every n-th layer, and experts in others.

use kaskade_policy::plan::Partition;

use super::bamba::hybrid_names;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values;
use crate::decoder::experts::ExpertLayout;
use crate::decoder::gated::{self, Layout};
use crate::decoder::recurrent::mamba::{Mamba, MambaKeys, StepNorms};
use crate::decoder::recurrent::{MixerConfig, RecurrentLayout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = experts(config)?;
    let routing = experts.as_ref();
    let routing = routing.map(|experts| Routing::read(config, experts.count, false));
    let model_config = ModelConfig {
        rotary: None,
        routing: routing.transpose()?,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let attention = every(config, "attn_layer", [8, 4])?;
    let norms = StepNorms::Scaled(model_config.epsilon);
    let layout = Layout {
        experts,
        recurrent: Some(RecurrentLayout {
            layers: attention.iter().map(|attends| !attends).collect(),
            beside_attention: false,
            module: "mamba",
            mixer: MixerConfig::Mamba(Mamba::read(config, MambaKeys::HYBRID, norms)?),
        }),
        ..hybrid_names(Layout::default())
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns which layers are selected by `{key}_period` and `{key}_offset`.
fn every(config: &Config, key: &str, [period, offset]: [usize; 2]) -> Result<Vec<bool>, LoadError> {
    let period = config.optional_size(&format!("{key}_period"))?.unwrap_or(period);
    let offset = config
        .optional::<usize>(&format!("{key}_offset"))?
        .unwrap_or(offset);
    let layers = 0..config.size("num_hidden_layers")?;
    Ok(layers.map(|index| index % period.max(1) == offset).collect())
}

fn experts(config: &Config) -> Result<Option<ExpertLayout>, LoadError> {
    config_values::require(
        config,
        "mamba_inner_layernorms",
        true,
        "mixers without norms are not supported",
    )?;
    let count = config.present_key(["num_experts", "num_local_experts"]);
    if config.optional::<usize>(count)? == Some(1) {
        return Ok(None);
    }
    Ok(Some(ExpertLayout {
        block: "feed_forward",
        router: "router",
        layers: every(config, "expert_layer", [2, 1])?,
        ..ExpertLayout::everywhere(config, "intermediate_size")?
    }))
}
