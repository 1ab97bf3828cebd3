//! LFM2 (Liquid AI 2025): gated short convolutions, and attention in some layers; variants have experts. LFM3 has
//! sliding-window layers, head gates, and output norms.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{activation, epsilon};
use crate::decoder::experts::{Correction, ExpertLayout, ExpertTensors};
use crate::decoder::gated::{self, Extra, HeadNormLayout, HeadNormTensors, Layout, NormNames};
use crate::decoder::recurrent::{MixerConfig, RecurrentLayout};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::routing::{Routing, Scoring};
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, OutputNorms, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = model_config(config, feed_forward_size(config)?)?;
    gated::read(checkpoint, partition, model_config, &layout(config)?)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let experts = experts(config)?;
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(true);
    let model_config = ModelConfig {
        routing: Some(Routing {
            scoring: Scoring::Sigmoid,
            factor: config.optional("routed_scaling_factor")?.unwrap_or(1.0),
            ..Routing::read(config, experts.count, normalised)?
        }),
        ..model_config(config, config.size("intermediate_size")?)?
    };
    let layout = Layout {
        experts: Some(experts),
        ..layout(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Length of the default layer pattern of LFM3: in each period the first layer has a sliding window (except in the
/// first period), the third has full attention, and the others are convolutions.
const PERIOD: usize = 4;

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let count = config.size("num_hidden_layers")?;
    let key = "layer_types";
    let (local_layers, convolved): (Vec<bool>, Vec<bool>) = match config.optional::<Vec<String>>(key)? {
        Some(_) => (
            gated::layers_of_type(config, key, &["sliding_attention"], &["full_attention", "conv"])?,
            gated::layers_of_type(config, key, &["conv"], &["full_attention", "sliding_attention"])?,
        ),
        None => (
            (0..count).map(|index| index > 0 && index % PERIOD == 0).collect(),
            (0..count).map(|index| index == 0 || index % 2 == 1).collect(),
        ),
    };
    // Without this key, the class uses positions that differ from those of other families.
    config.required::<serde_json::Value>("rope_parameters")?;
    let size = config.size("intermediate_size")?;
    let of = |layer_type, theta| RotaryKeys {
        layer_type: Some(layer_type),
        theta,
        ..RotaryKeys::default()
    };
    let base = model_config_by(config, size, of("full_attention", 1e6))?;
    let near = rotary(config, base.heads.head_dim, of("sliding_attention", 1e4))?;
    let local = LocalAttention {
        window: Some(config.optional_size("sliding_window")?.unwrap_or(256)),
        rotary: Some(near.rotary),
    };
    let normed = config.optional("use_sandwich_norm")?.unwrap_or(true);
    let model_config = ModelConfig {
        local: local_layers.contains(&true).then_some(local),
        output_norms: if normed {
            OutputNorms::Outputs
        } else {
            OutputNorms::No
        },
        ..base
    };
    let bias = config.optional("attention_bias")?.unwrap_or(false);
    let gated = config.optional("use_attention_gate")?.unwrap_or(true);
    let layout = Layout {
        qkv_bias: bias,
        output_bias: bias,
        extra: if gated { Extra::HeadGate } else { Extra::No },
        up: &["feed_forward.w1", "feed_forward.w3"],
        down: "feed_forward.w2",
        norm_names: NormNames {
            attention: "operator_norm",
            attention_output: "post_operator_norm",
            feed_forward: "ffn_norm",
            feed_forward_output: "post_ffn_norm",
        },
        final_norm: "model.embedding_norm",
        local_layers,
        recurrent: Some(convolutions(config, convolved, 7)?),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns the short convolutions of these layers; `kernel` is the default kernel size.
fn convolutions(config: &Config, layers: Vec<bool>, kernel: usize) -> Result<RecurrentLayout, LoadError> {
    Ok(RecurrentLayout {
        layers,
        beside_attention: false,
        module: "conv",
        mixer: MixerConfig::ShortConvolution {
            kernel: config.optional_size("conv_L_cache")?.unwrap_or(kernel),
            bias: config.optional("conv_bias")?.unwrap_or(false),
        },
    })
}

fn model_config(config: &Config, intermediate_size: usize) -> Result<ModelConfig, LoadError> {
    let keys = RotaryKeys {
        theta: 1_000_000.0,
        ..RotaryKeys::default()
    };
    model_config_by(config, intermediate_size, keys)
}

fn model_config_by(
    config: &Config,
    intermediate_size: usize,
    keys: RotaryKeys,
) -> Result<ModelConfig, LoadError> {
    // Key in files of Liquid AI.
    crate::decoder::config_values::require(
        config,
        "tie_embedding",
        true,
        "set `tie_word_embeddings` instead",
    )?;
    let activation = activation(config, "hidden_act", "silu")?;
    Ok(ModelConfig {
        epsilon: epsilon(config, "norm_eps", 1e-5)?,
        query_key_norm: QueryKeyNorm::EachHead,
        ..gated::sized(config, intermediate_size, activation, keys)?
    })
}

/// Returns the size of the feed-forward, which the configuration states before adjustment.
fn feed_forward_size(config: &Config) -> Result<usize, LoadError> {
    let stated = config.size(config.present_key(["block_ff_dim", "intermediate_size"]))?;
    if !config.optional("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(stated);
    }
    let adjusted = 2 * stated / 3;
    let factor = config.optional::<f64>("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = config.optional_size("block_multiple_of")?.unwrap_or(256);
    Ok(((factor * adjusted as f64) as usize).next_multiple_of(multiple))
}

fn layout(config: &Config) -> Result<Layout, LoadError> {
    let count = config.size("num_hidden_layers")?;
    let layers = if config.optional::<Vec<String>>("layer_types")?.is_some() {
        gated::layers_of_type(config, "layer_types", &["conv"], &["full_attention"])?
    } else {
        let attention = config.optional::<Vec<usize>>("full_attn_idxs")?;
        let attention = attention.unwrap_or_else(|| (0..count).collect());
        (0..count).map(|index| !attention.contains(&index)).collect()
    };
    Ok(Layout {
        output: "self_attn.out_proj",
        up: &["feed_forward.w1", "feed_forward.w3"],
        down: "feed_forward.w2",
        norm_names: NormNames {
            attention: "operator_norm",
            feed_forward: "ffn_norm",
            ..Layout::default().norm_names
        },
        head_norms: HeadNormLayout {
            names: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
            tensors: HeadNormTensors::Norm,
        },
        final_norm: "model.embedding_norm",
        recurrent: Some(convolutions(config, layers, 3)?),
        ..Layout::default()
    })
}

fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    let layout = ExpertLayout::everywhere(config, "moe_intermediate_size")?;
    let dense = config.optional::<usize>("num_dense_layers")?.unwrap_or(2);
    let has_bias = config.optional("use_expert_bias")?.unwrap_or(true);
    let correction = Correction {
        name: "expert_bias",
        is_row: false,
    };
    Ok(ExpertLayout {
        block: "feed_forward",
        correction: has_bias.then_some(correction),
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
        layers: (0..layout.layers.len()).map(|index| index >= dense).collect(),
        ..layout
    })
}
