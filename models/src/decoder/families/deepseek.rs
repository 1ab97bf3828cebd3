//! `DeepSeek` V2 and V3 (`DeepSeek`-AI 2024): multi-head latent attention, and experts with shared ones. Version 2
//! selects experts by softmax; version 3 by sigmoid with a selection bias and expert groups, and so does
//! GLM-4.7-Flash. Mistral 4 (Mistral AI 2026) selects by softmax within groups, and scales queries beyond the training
//! context.

use kaskade_policy::plan::Partition;

use super::ministral;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{Correction, ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, Layout};
use crate::decoder::latent::LatentLayout;
use crate::decoder::rotary::{RotaryKeys, RotaryPositions, rotary};
use crate::decoder::routing::{ExpertGroups, Routing, Scoring};
use crate::decoder::weights::{Decoder, ModelConfig};
use crate::ops::Heads;

/// Selection bias of version 3.
pub(super) const SCORED: Correction = Correction {
    name: "gate.e_score_correction_bias",
    is_row: false,
};

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let count = config.size("n_routed_experts")?;
    let key = "topk_method";
    let method = config.optional::<String>(key)?;
    let groups = match method.as_deref().unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => ExpertGroups::read(config, count, 1)?,
        _ => return Err(config.invalid_value(key, "greedy and group_limited_greedy are supported")),
    };
    let routing = Routing {
        groups,
        factor: factor(config, 1.0)?,
        ..Routing::read(config, count, false)?
    };
    let sparse = sparse_layers(config, config.size("num_hidden_layers")?, 0)?;
    let latent = latent_layout(config, config.size("v_head_dim")?)?;
    let model_config = model_config(config, &latent, true)?;
    read(
        checkpoint,
        partition,
        (model_config, latent),
        routing,
        (None, sparse),
    )
}

pub(super) fn read_mistral(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let count = config.size("n_routed_experts")?;
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(true);
    let routing = Routing {
        groups: ExpertGroups::read(config, count, 2)?,
        factor: factor(config, 1.0)?,
        ..Routing::read(config, count, normalised)?
    };
    let latent = latent_layout(config, config.size("v_head_dim")?)?;
    // The configuration states the rotated dimensions as fraction of the whole head.
    let keys = RotaryKeys {
        partial: latent.rotated as f64 / latent.head_dim() as f64,
        ..RotaryKeys::LLAMA
    };
    let positions = rotary(config, latent.head_dim(), keys)?;
    let adjacent = config.optional("rope_interleave")?.unwrap_or(true);
    let model_config = ModelConfig {
        query_scaling: ministral::growth(config)?,
        ..positioned(config, &latent, positions, adjacent)?
    };
    let sparse = sparse_layers(config, config.size("num_hidden_layers")?, 0)?;
    read(
        checkpoint,
        partition,
        (model_config, latent),
        routing,
        (None, sparse),
    )
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    drop_further_layers(checkpoint)?;
    let config = &checkpoint.config;
    let routing = sigmoid_routing(config, config.size("n_routed_experts")?)?;
    let sparse = sparse_layers(config, config.size("num_hidden_layers")?, 0)?;
    read_scored(checkpoint, partition, routing, sparse)
}

/// Reads GLM-4.7-Flash, which lists the layers with experts.
pub(super) fn read_glm_lite(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    drop_further_layers(checkpoint)?;
    let config = &checkpoint.config;
    let routing = sigmoid_routing(config, config.size("n_routed_experts")?)?;
    let key = "mlp_layer_types";
    let sparse = match config.optional::<Vec<String>>(key)? {
        Some(_) => gated::layers_of_type(config, key, &["sparse"], &["dense"])?,
        None => sparse_layers(config, config.size("num_hidden_layers")?, 1)?,
    };
    read_scored(checkpoint, partition, routing, sparse)
}

fn read_scored(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    routing: Routing,
    sparse: Vec<bool>,
) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let latent = latent_layout(config, config.size("v_head_dim")?)?;
    let adjacent = config.optional("rope_interleave")?.unwrap_or(true);
    let model_config = model_config(config, &latent, adjacent)?;
    let experts = (Some(SCORED), sparse);
    read(checkpoint, partition, (model_config, latent), routing, experts)
}

fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    (base, latent): (ModelConfig, LatentLayout),
    routing: Routing,
    (correction, sparse): (Option<Correction>, Vec<bool>),
) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        routing: Some(routing),
        ..base
    };
    let bias = config.optional("mlp_bias")?.unwrap_or(false);
    let inner = config.size("moe_intermediate_size")?;
    let experts = ExpertLayout::counted(config, config.size("n_routed_experts")?, "moe_intermediate_size")?;
    let shared = config.optional::<usize>("n_shared_experts")?.unwrap_or(0);
    let layout = Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(false),
        feed_forward_bias: bias,
        latent: Some(latent),
        experts: Some(ExpertLayout {
            correction,
            shared: (shared > 0).then_some(SharedExpert {
                block: Some("mlp.shared_experts"),
                inner: shared * inner,
                bias,
                gate: None,
            }),
            layers: sparse,
            ..experts
        }),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads the sizes of latent vectors and of the parts of a head; value heads have `values` elements.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn latent_layout(config: &Config, values: usize) -> Result<LatentLayout, LoadError> {
    Ok(LatentLayout {
        query_rank: config.optional_size("q_lora_rank")?,
        key_value_rank: config.size("kv_lora_rank")?,
        rotated: config.size("qk_rope_head_dim")?,
        plain: config.size("qk_nope_head_dim")?,
        values,
    })
}

/// Reads the configuration of a model with latent attention; `adjacent` states whether rotary pairs are adjacent
/// elements.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn model_config(
    config: &Config,
    latent: &LatentLayout,
    adjacent: bool,
) -> Result<ModelConfig, LoadError> {
    let positions = rotary(config, latent.rotated, RotaryKeys::LLAMA)?;
    positioned(config, latent, positions, adjacent)
}

fn positioned(
    config: &Config,
    latent: &LatentLayout,
    positions: RotaryPositions,
    adjacent: bool,
) -> Result<ModelConfig, LoadError> {
    let count = config.size("num_attention_heads")?;
    let heads = Heads {
        queries: count,
        keys: count,
        head_dim: latent.head_dim(),
        scale: positions.score_scale / ((latent.plain + latent.rotated) as f32).sqrt(),
    };
    let base = gated::with_positions(config, heads, positions)?;
    Ok(if adjacent {
        base.with_adjacent_pairs()
    } else {
        base
    })
}

/// Returns experts with shared ones; without `first_k_dense_replace`, the first `dense` layers are dense.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn experts(config: &Config, dense: usize) -> Result<ExpertLayout, LoadError> {
    let inner = "moe_intermediate_size";
    let base = ExpertLayout::counted(config, config.size("n_routed_experts")?, inner)?;
    Ok(ExpertLayout {
        correction: Some(SCORED),
        shared: Some(SharedExpert {
            block: Some("mlp.shared_experts"),
            inner: base.inner * config.optional_size("n_shared_experts")?.unwrap_or(1),
            bias: false,
            gate: None,
        }),
        layers: sparse_layers(config, base.layers.len(), dense)?,
        ..base
    })
}

/// Returns routing by sigmoid, with a selection bias and expert groups.
pub(super) fn sigmoid_routing(config: &Config, count: usize) -> Result<Routing, LoadError> {
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(true);
    Ok(Routing {
        scoring: Scoring::Sigmoid,
        groups: ExpertGroups::read(config, count, 2)?,
        factor: factor(config, 1.0)?,
        ..Routing::read(config, count, normalised)?
    })
}

fn factor(config: &Config, absent: f32) -> Result<f32, LoadError> {
    let key = "routed_scaling_factor";
    let factor = config.optional::<f32>(key)?.unwrap_or(absent);
    if factor > 0.0 && factor.is_finite() {
        Ok(factor)
    } else {
        Err(config.invalid_value(key, "it must be positive"))
    }
}

/// Returns whether each of `count` layers has experts: those from `first_k_dense_replace` on.
pub(super) fn sparse_layers(config: &Config, count: usize, absent: usize) -> Result<Vec<bool>, LoadError> {
    let first = config
        .optional::<usize>("first_k_dense_replace")?
        .unwrap_or(absent);
    Ok((0..count).map(|layer| layer >= first).collect())
}

/// Drops the layers after the last one, which serve multi-token prediction (MTP) in training.
pub(super) fn drop_further_layers(checkpoint: &mut Checkpoint) -> Result<(), LoadError> {
    let layers = checkpoint.config.size("num_hidden_layers")?;
    let index = |name: &str| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        let (index, _) = name.strip_prefix("layers.")?.split_once('.')?;
        index.parse::<usize>().ok()
    };
    checkpoint
        .weights
        .ignore(|name| index(name).is_some_and(|index| index >= layers));
    Ok(())
}
