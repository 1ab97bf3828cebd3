//! Qwen 2, 2.5 and 3 (Yang et al. 2024, 2025): version 2 has biases in the query, key and value projections, version 3
//! has query-key norms. Both have variants with experts.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, QueryKeyNorm};

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = windows(config)?;
    let model_config = ModelConfig {
        local,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        qkv_bias: true,
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    third(checkpoint, partition, None)
}

pub(super) fn read_3_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let experts = experts(&checkpoint.config)?;
    third(checkpoint, partition, Some(experts))
}

fn third(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    experts: Option<ExpertLayout>,
) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = windows(config)?;
    let routing = experts.as_ref().map(|experts| routing(config, experts));
    let model_config = ModelConfig {
        local,
        query_key_norm: QueryKeyNorm::EachHead,
        routing: routing.transpose()?,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
    let layout = Layout {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        local_layers,
        experts,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_2_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = windows(config)?;
    let experts = with_shared_expert(config)?;
    let model_config = ModelConfig {
        local,
        routing: Some(routing(config, &experts)?),
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        qkv_bias: config.optional("qkv_bias")?.unwrap_or(true),
        local_layers,
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns experts with a gated shared expert.
pub(super) fn with_shared_expert(config: &Config) -> Result<ExpertLayout, LoadError> {
    Ok(ExpertLayout {
        shared: Some(SharedExpert {
            block: Some("mlp.shared_expert"),
            inner: config.size("shared_expert_intermediate_size")?,
            bias: false,
            gate: Some("shared_expert_gate"),
        }),
        ..experts(config)?
    })
}

/// Reads the experts, which are in every `decoder_sparse_step`-th layer except those of `mlp_only_layers`.
fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    let layout = ExpertLayout::everywhere(config, "moe_intermediate_size")?;
    let step = config.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = config
        .optional::<Vec<usize>>("mlp_only_layers")?
        .unwrap_or_default();
    let layers = 0..layout.layers.len();
    Ok(ExpertLayout {
        layers: layers
            .map(|index| !dense.contains(&index) && (index + 1).is_multiple_of(step))
            .collect(),
        ..layout
    })
}

fn routing(config: &Config, experts: &ExpertLayout) -> Result<Routing, LoadError> {
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(false);
    Routing::read(config, experts.count, normalised)
}

/// Reads the sliding window, which applies from layer `max_window_layers` on, and only with `use_sliding_window`.
fn windows(config: &Config) -> Result<(Option<LocalAttention>, Vec<bool>), LoadError> {
    if !config.optional("use_sliding_window")?.unwrap_or(false) {
        return Ok((None, Vec::new()));
    }
    let first = config.optional::<usize>("max_window_layers")?.unwrap_or(28);
    gated::windows(config, |index| index >= first)
}
