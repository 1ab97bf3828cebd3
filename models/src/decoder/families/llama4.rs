//! Llama 4 (Meta 2025), text only: layers with rotary positions have chunked attention; the others have no positions,
//! full attention, and scaled queries. The inputs of experts are scaled by their routing factors; one expert is
//! shared.

use kaskade_policy::plan::Partition;
use serde_json::Value;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{ExpertLayout, ExpertTensors, SharedExpert};
use crate::decoder::gated::{self, HeadNormLayout, HeadNormTensors, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::{Routing, Scoring};
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, QueryKeyNorm, QueryScaling};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let keys = RotaryKeys {
        theta: 5e5,
        ..RotaryKeys::LLAMA
    };
    let base = gated::model_config(config, keys)?.with_adjacent_pairs();
    let experts = experts(config)?;
    let routing = Routing {
        scoring: Scoring::Sigmoid,
        scales_inputs: true,
        ..Routing::read(config, experts.count, false)?
    };
    let is_normalised = config.optional("use_qk_norm")?.unwrap_or(true);
    let model_config = ModelConfig {
        intermediate_size: config.size("intermediate_size_mlp")?,
        local: Some(LocalAttention {
            window: None,
            rotary: base.rotary,
        }),
        rotary: None,
        chunk: config.optional_size("attention_chunk_size")?,
        query_scaling: growth(config)?,
        query_key_norm: if is_normalised {
            QueryKeyNorm::RotatedHead
        } else {
            QueryKeyNorm::No
        },
        routing: Some(routing),
        ..base
    };
    let layout = Layout {
        up: &["feed_forward.gate_proj", "feed_forward.up_proj"],
        down: "feed_forward.down_proj",
        experts: Some(experts),
        head_norms: HeadNormLayout {
            names: ["", ""],
            tensors: HeadNormTensors::Local,
        },
        local_layers: rotated_layers(config, model_config.chunk.is_some())?,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    let base = ExpertLayout::everywhere(config, "intermediate_size")?;
    let step = config.optional_size("interleave_moe_layer_step")?.unwrap_or(1);
    let listed = config.optional::<Vec<usize>>("moe_layers")?;
    let has_experts = |layer: usize| match &listed {
        Some(listed) => listed.contains(&layer),
        None => (layer + 1).is_multiple_of(step),
    };
    Ok(ExpertLayout {
        block: "feed_forward",
        router: "router",
        tensors: ExpertTensors::ByInput(["gate_proj", "up_proj", "down_proj"]),
        shared: Some(SharedExpert {
            block: Some("feed_forward.shared_expert"),
            inner: base.inner,
            bias: false,
            gate: None,
        }),
        layers: (0..base.layers.len()).map(has_experts).collect(),
        ..base
    })
}

/// Returns which layers have rotary positions: those with chunked attention, if there is any.
fn rotated_layers(config: &Config, chunked: bool) -> Result<Vec<bool>, LoadError> {
    let rotated = gated::rotated_layers(config)?;
    let key = "layer_types";
    let Some(types) = config.optional::<Vec<String>>(key)? else {
        return Ok(rotated);
    };
    let expected = rotated.iter().map(|rotated| {
        if *rotated && chunked {
            "chunked_attention"
        } else {
            "full_attention"
        }
    });
    if types.iter().map(String::as_str).eq(expected) {
        Ok(rotated)
    } else {
        let reason = "layers with rotary positions must have chunked_attention, the others full_attention";
        Err(config.invalid_value(key, reason))
    }
}

/// Returns the query scaling of layers without positions.
fn growth(config: &Config) -> Result<Option<QueryScaling>, LoadError> {
    let key = "attn_temperature_tuning";
    // Published files have a number instead of a boolean.
    let is_tuned = match config.optional::<Value>(key)? {
        None => true,
        Some(Value::Bool(tuned)) => tuned,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(_) => return Err(config.invalid_value(key, "it must be true or false")),
    };
    if !is_tuned {
        return Ok(None);
    }
    Ok(Some(QueryScaling {
        rate: config.optional("attn_scale")?.unwrap_or(0.1),
        context: config.optional_size("floor_scale")?.unwrap_or(8192),
        from: 1,
        is_local: false,
    }))
}
