//! ERNIE 4.5 (Baidu 2025), text only: Llama with adjacent rotary pairs; variants have experts with shared ones.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{Correction, ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, ModelConfig};

const KEYS: RotaryKeys = RotaryKeys {
    theta: 500_000.0,
    ..RotaryKeys::LLAMA
};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = gated::model_config(config, KEYS)?.with_adjacent_pairs();
    gated::read(checkpoint, partition, model_config, &layout(config)?)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    // Layers for multi-token prediction (MTP).
    checkpoint.weights.ignore(|name| name.contains("mtp"));
    let config = &checkpoint.config;
    let experts = experts(config)?;
    let model_config = ModelConfig {
        routing: Some(Routing::by_key(config, "moe_k", experts.count, true)?),
        ..gated::model_config(config, KEYS)?.with_adjacent_pairs()
    };
    let layout = Layout {
        experts: Some(experts),
        ..layout(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads the experts, which are in every `moe_layer_interval`-th layer of a range.
fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    let base = ExpertLayout::counted(config, config.size("moe_num_experts")?, "moe_intermediate_size")?;
    let shared = config.optional::<usize>("moe_num_shared_experts")?.unwrap_or(2);
    let first = config.optional::<usize>("moe_layer_start_index")?.unwrap_or(1);
    let last = config.optional::<i64>("moe_layer_end_index")?.unwrap_or(-1);
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    let interval = config.optional_size("moe_layer_interval")?.unwrap_or(1);
    let layers = 0..base.layers.len();
    Ok(ExpertLayout {
        correction: Some(Correction {
            name: "moe_statics.e_score_correction_bias",
            is_row: true,
        }),
        shared: (shared > 0).then_some(SharedExpert {
            block: Some("mlp.shared_experts"),
            inner: shared * base.inner,
            bias: config.optional("use_bias")?.unwrap_or(false),
            gate: None,
        }),
        layers: layers
            .map(|index| (first..=last).contains(&index) && (index + 1).is_multiple_of(interval))
            .collect(),
        ..base
    })
}

fn layout(config: &Config) -> Result<Layout, LoadError> {
    let bias = config.optional("use_bias")?.unwrap_or(false);
    Ok(Layout {
        qkv_bias: bias,
        output_bias: bias,
        feed_forward_bias: bias,
        ..Layout::default()
    })
}
