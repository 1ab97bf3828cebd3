//! Hunyuan (Tencent 2025), dense and with experts: Llama with query-key norms after the rotation. Version 3 applies
//! them before it, and selects experts by sigmoid.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::positive;
use crate::decoder::experts::{Correction, ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, HeadNormLayout, HeadNormTensors, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::{Routing, Scoring};
use crate::decoder::weights::{Decoder, ModelConfig, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (model_config, layout) = (model_config(config)?, layout(config)?);
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let mut config = checkpoint.config.clone();
    let count = same_in_all_layers(&mut config, "num_experts")?;
    same_in_all_layers(&mut config, CHOSEN)?;
    let base = ExpertLayout::counted(&config, count, "intermediate_size")?;
    let experts = ExpertLayout {
        router: "gate.wg",
        shared: Some(SharedExpert {
            block: Some("mlp.shared_mlp"),
            inner: base.inner,
            bias: false,
            gate: None,
        }),
        ..base
    };
    let model_config = ModelConfig {
        routing: Some(Routing::by_key(&config, CHOSEN, count, true)?),
        ..model_config(&config)?
    };
    let layout = Layout {
        experts: Some(experts),
        ..layout(&config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    deepseek::drop_further_layers(checkpoint)?;
    let config = &checkpoint.config;
    let base = ExpertLayout::everywhere(config, "moe_intermediate_size")?;
    let key = "mlp_layer_types";
    let shared = config.optional_size("num_shared_experts")?.unwrap_or(1);
    let experts = ExpertLayout {
        router: "router.gate",
        correction: Some(Correction {
            name: "expert_bias",
            is_row: false,
        }),
        shared: Some(SharedExpert {
            block: Some("mlp.shared_mlp"),
            inner: base.inner * shared,
            bias: config.optional("mlp_bias")?.unwrap_or(false),
            gate: None,
        }),
        layers: match config.optional::<Vec<String>>(key)? {
            Some(_) => gated::layers_of_type(config, key, &["sparse"], &["dense"])?,
            None => (0..base.layers.len()).map(|layer| layer > 0).collect(),
        },
        ..base
    };
    let keys = RotaryKeys {
        theta: 11_158_840.0,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        routing: Some(Routing {
            scoring: Scoring::Sigmoid,
            factor: positive(config, "router_scaling_factor")?.unwrap_or(2.826),
            ..Routing::read(config, experts.count, true)?
        }),
        ..gated::model_config(config, keys)?
    };
    let layout = Layout {
        experts: Some(experts),
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Key of the number of experts per token.
const CHOSEN: &str = "moe_topk";

/// Reads a size that may be stated per layer, and replaces it by a single value.
fn same_in_all_layers(config: &mut Config, key: &str) -> Result<usize, LoadError> {
    if let Some(serde_json::Value::Array(sizes)) = config.keys().get(key).cloned() {
        let Some(first) = sizes
            .first()
            .filter(|first| sizes.iter().all(|size| size == *first))
        else {
            return Err(config.invalid_value(key, "it must be the same in all layers"));
        };
        config.set(key, first.clone());
    }
    config.size(key)
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    Ok(ModelConfig {
        query_key_norm: QueryKeyNorm::RotatedHead,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    })
}

fn layout(config: &Config) -> Result<Layout, LoadError> {
    Ok(Layout {
        head_norms: HeadNormLayout {
            names: ["self_attn.query_layernorm", "self_attn.key_layernorm"],
            tensors: HeadNormTensors::Norm,
        },
        feed_forward_bias: false,
        ..Layout::with_biases(config)?
    })
}
