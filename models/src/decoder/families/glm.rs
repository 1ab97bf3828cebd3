//! GLM-4 (GLM et al. 2024): adjacent rotary pairs over a part of a head. GLM-4-0414 also has output norms; GLM-4.5 has
//! experts.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::activation;
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, OutputNorms, QueryKeyNorm};

const KEYS: RotaryKeys = RotaryKeys {
    partial: 0.5,
    ..RotaryKeys::LLAMA
};

pub(super) fn read_1(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = gated::model_config(config, KEYS)?.with_adjacent_pairs();
    gated::read(checkpoint, partition, model_config, &layout(config)?)
}

pub(super) fn read_4(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        output_norms: OutputNorms::Outputs,
        ..gated::model_config(config, KEYS)?.with_adjacent_pairs()
    };
    let layout = Layout {
        norm_names: NormNames {
            attention: "input_layernorm",
            attention_output: "post_self_attn_layernorm",
            feed_forward: "post_attention_layernorm",
            feed_forward_output: "post_mlp_layernorm",
        },
        ..layout(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_4_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    deepseek::drop_further_layers(checkpoint)?;
    let config = &checkpoint.config;
    let experts = deepseek::experts(config, 1)?;
    let norms = config.optional("use_qk_norm")?.unwrap_or(false);
    let model_config = ModelConfig {
        query_key_norm: if norms {
            QueryKeyNorm::EachHead
        } else {
            QueryKeyNorm::No
        },
        routing: Some(deepseek::sigmoid_routing(config, experts.count)?),
        ..gated::model_config(config, KEYS)?
    };
    let layout = Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(false),
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads Solar Open (Upstage 2025): the experts of GLM-4.5 in every layer, and the attention of Llama.
pub(super) fn read_solar(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = deepseek::experts(config, 0)?;
    let keys = RotaryKeys {
        theta: 1e6,
        ..RotaryKeys::LLAMA
    };
    let size = config.size("moe_intermediate_size")?;
    let activation = activation(config, "hidden_act", "silu")?;
    let model_config = ModelConfig {
        routing: Some(deepseek::sigmoid_routing(config, experts.count)?),
        ..gated::sized(config, size, activation, keys)?
    };
    let layout = Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(false),
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

fn layout(config: &Config) -> Result<Layout, LoadError> {
    Ok(Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(true),
        up: &["mlp.gate_up_proj"],
        ..Layout::default()
    })
}
