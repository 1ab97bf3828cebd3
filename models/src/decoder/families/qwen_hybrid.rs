//! Qwen3-Next and Qwen 3.5 (Qwen 2025, 2026), text only: gated `DeltaNets`, with gated attention in every fourth
//! layer; dense or with experts.

use kaskade_policy::plan::Partition;

use super::qwen;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values;
use crate::decoder::experts::ExpertLayout;
use crate::decoder::gated::{self, Extra, Layout};
use crate::decoder::recurrent::delta_net::{DeltaNet, DeltaNetTensors};
use crate::decoder::recurrent::{MixerConfig, RecurrentLayout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, QueryKeyNorm};

/// One attention layer per this many layers.
const INTERVAL: usize = 4;

pub(super) fn read_next(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = match config.optional::<usize>("num_experts")? {
        Some(0) => None,
        _ => Some(qwen::with_shared_expert(config)?),
    };
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(true);
    read(
        checkpoint,
        partition,
        experts,
        normalised,
        DeltaNetTensors::ByKeyHead,
    )
}

pub(super) fn read_3_5(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    read(checkpoint, partition, None, true, DeltaNetTensors::Fused)
}

pub(super) fn read_3_5_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let experts = qwen::with_shared_expert(&checkpoint.config)?;
    read(checkpoint, partition, Some(experts), true, DeltaNetTensors::Fused)
}

fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    experts: Option<ExpertLayout>,
    normalised: bool,
    tensors: DeltaNetTensors,
) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    // Layers for multi-token prediction (MTP), and the vision encoder.
    checkpoint
        .weights
        .ignore(|name| name.starts_with("mtp.") || name.starts_with("model.visual."));
    let keys = RotaryKeys {
        partial: 0.25,
        ..RotaryKeys::default()
    };
    let inner = config.optional_size("intermediate_size")?.unwrap_or_default();
    let activation = config_values::activation(config, "hidden_act", "silu")?;
    let routing = experts.as_ref();
    let routing =
        routing.map(|experts| crate::decoder::routing::Routing::read(config, experts.count, normalised));
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        routing: routing.transpose()?,
        ..gated::sized(config, inner, activation, keys)?
    };
    let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
    let layout = Layout {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        norm_offset: 1.0,
        extra: Extra::OutputGate,
        experts,
        recurrent: Some(RecurrentLayout {
            layers: layers(config)?,
            beside_attention: false,
            module: "linear_attn",
            mixer: MixerConfig::DeltaNet(delta_net(config, &model_config, tensors)?),
        }),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns which layers are gated `DeltaNets`.
pub(super) fn layers(config: &Config) -> Result<Vec<bool>, LoadError> {
    if config.optional::<Vec<String>>("layer_types")?.is_some() {
        return gated::layers_of_type(config, "layer_types", &["linear_attention"], &["full_attention"]);
    }
    let interval = config
        .optional_size("full_attention_interval")?
        .unwrap_or(INTERVAL);
    let count = config.size("num_hidden_layers")?;
    Ok((1..=count)
        .map(|number| !number.is_multiple_of(interval))
        .collect())
}

/// Reads the sizes of the gated `DeltaNets`.
pub(super) fn delta_net(
    config: &Config,
    model_config: &ModelConfig,
    tensors: DeltaNetTensors,
) -> Result<DeltaNet, LoadError> {
    let mixer = DeltaNet {
        key_heads: config.size("linear_num_key_heads")?,
        value_heads: config.size("linear_num_value_heads")?,
        key_dim: config.size("linear_key_head_dim")?,
        value_dim: config.size("linear_value_head_dim")?,
        kernel: config.size("linear_conv_kernel_dim")?,
        activation: model_config.activation,
        tensors,
        beta_scale: 1.0,
    };
    if mixer.value_heads.is_multiple_of(mixer.key_heads) {
        Ok(mixer)
    } else {
        let reason = format!(
            "it must be a multiple of linear_num_key_heads = {}",
            mixer.key_heads
        );
        Err(config.invalid_value("linear_num_value_heads", reason))
    }
}
