//! `MiMo` V2 Flash (Xiaomi 2025): global layers, and local ones with twice as many key heads and attention sinks;
//! value heads that are smaller than key heads, and experts.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{epsilon, positive};
use crate::decoder::experts::ExpertLayout;
use crate::decoder::gated::{self, Extra, Layout};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, LayerWeights, LocalAttention, ModelConfig};
use crate::ops::Heads;

/// One global layer per this many layers, besides the first one.
const PATTERN: usize = 6;
/// Window of the local layers, tokens.
const WINDOW: usize = 129;

const GLOBAL: RotaryKeys = RotaryKeys {
    theta: 5e6,
    partial: 0.334,
    layer_type: Some("full_attention"),
    ..RotaryKeys::LLAMA
};

const LOCAL: RotaryKeys = RotaryKeys {
    theta_key: "swa_rope_theta",
    theta: 1e4,
    layer_type: Some("sliding_attention"),
    ..GLOBAL
};

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let prediction = |name: &str| name.starts_with("model.mtp.");
    checkpoint.weights.ignore(prediction);
    let config = &checkpoint.config;
    let base = gated::model_config(config, GLOBAL)?;
    let heads = base.heads;
    let near = Heads {
        keys: 2 * heads.keys,
        ..heads
    };
    let stated = config
        .optional_size("swa_num_key_value_heads")?
        .unwrap_or(near.keys);
    if stated != near.keys || !near.queries.is_multiple_of(near.keys) {
        let reason = format!(
            "it must be {}, twice the key heads of global layers, and divide the query heads",
            near.keys
        );
        return Err(config.invalid_value("swa_num_key_value_heads", reason));
    }
    let value_dim = config.optional_size("v_head_dim")?.unwrap_or(heads.head_dim);
    if value_dim > heads.head_dim {
        return Err(config.invalid_value("v_head_dim", "it must be at most head_dim"));
    }
    let local_layers = local_layers(config)?;
    let experts = experts(config)?;
    let model_config = ModelConfig {
        local_heads: Some(near),
        local: Some(LocalAttention {
            window: Some(window(config)?),
            rotary: Some(rotary(config, heads.head_dim, LOCAL)?.rotary),
        }),
        routing: Some(deepseek::sigmoid_routing(config, experts.count)?),
        epsilon: epsilon(config, "rms_norm_eps", 1e-5)?,
        ..base
    };
    let layout = Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(false),
        extra: Extra::LocalSinks,
        value_dim: Some(value_dim),
        local_layers,
        experts: Some(experts),
        ..Layout::default()
    };
    // The factor of the values.
    let scale = positive(config, "attention_value_scale")?.unwrap_or(1.0);
    gated::read_adapted(checkpoint, partition, model_config, &layout, |layer, _| {
        LayerWeights {
            output: layer.output.scaled(scale, |_| 1.0),
            ..layer
        }
    })
}

/// Reads the window; published files state it without the token itself.
fn window(config: &Config) -> Result<usize, LoadError> {
    match config.optional_size("sliding_window_size")? {
        Some(earlier) => Ok(earlier + 1),
        None => Ok(config.optional_size("sliding_window")?.unwrap_or(WINDOW)),
    }
}

/// Returns which layers are local; published files mark them by 1.
fn local_layers(config: &Config) -> Result<Vec<bool>, LoadError> {
    if config.optional::<Vec<String>>("layer_types")?.is_some() {
        return gated::layers_of_type(config, "layer_types", &["sliding_attention"], &["full_attention"]);
    }
    let marked = marked_layers(config, "hybrid_layer_pattern")?;
    let pattern = |layer: usize| layer != 0 && !(layer + 1).is_multiple_of(PATTERN);
    let count = config.size("num_hidden_layers")?;
    Ok(marked.unwrap_or_else(|| (0..count).map(pattern).collect()))
}

/// Returns which layers a list marks by 1, if the configuration has it.
fn marked_layers(config: &Config, key: &str) -> Result<Option<Vec<bool>>, LoadError> {
    let count = config.size("num_hidden_layers")?;
    match config.optional::<Vec<u8>>(key)? {
        Some(marks) if marks.len() != count => {
            Err(config.invalid_value(key, format!("it must have an entry for all {count} layers")))
        }
        marks => Ok(marks.map(|marks| marks.into_iter().map(|mark| mark != 0).collect())),
    }
}

/// Returns the experts, which are in all layers but the first unless the configuration says otherwise.
fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    let base = ExpertLayout {
        shared: None,
        ..deepseek::experts(config, 1)?
    };
    let key = "mlp_layer_types";
    let layers = if config.optional::<Vec<String>>(key)?.is_some() {
        gated::layers_of_type(config, key, &["sparse"], &["dense"])?
    } else {
        marked_layers(config, "moe_layer_freq")?.unwrap_or(base.layers)
    };
    Ok(ExpertLayout { layers, ..base })
}
