//! Gemma, Gemma 2 and 3 (Gemma Team 2024, 2025), text only: scaled embeddings. From version 2 on, norms before and
//! after attention and feed-forward, and alternating sliding-window and global layers. Version 2 soft-caps scores and
//! logits; version 3 has query-key norms, and separate rotary positions in local layers.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{activation, require};
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, OutputNorms, QueryKeyNorm};
use crate::ops::{Activation, Heads, Rotary};

/// Key that enables bidirectional attention.
const BOTH_DIRECTIONS: &str = "use_bidirectional_attention";
/// Rotary keys of global layers in version 3.
pub(super) const GLOBAL: RotaryKeys = RotaryKeys {
    theta: 1e6,
    layer_type: Some("full_attention"),
    ..RotaryKeys::LLAMA
};

pub(super) fn read_1(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let base = gated::model_config(config, RotaryKeys::default())?;
    let model_config = ModelConfig {
        activation: hidden_activation(config)?,
        embedding_scale: Some((base.width as f32).sqrt()),
        ..base
    };
    let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
    let layout = Layout {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        norm_offset: 1.0,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (model_config, layout) = version_2(&checkpoint.config)?;
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads `VaultGemma` (Sinha et al. 2025): version 2 without output norms.
pub(super) fn read_vault(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (base, layout) = version_2(&checkpoint.config)?;
    let model_config = ModelConfig {
        output_norms: OutputNorms::No,
        ..base
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns configuration and layout of version 2.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn version_2(config: &Config) -> Result<(ModelConfig, Layout), LoadError> {
    let (local, local_layers) = gated::windows(config, |index| index.is_multiple_of(2))?;
    let model_config = ModelConfig {
        local,
        ..model_config(config, RotaryKeys::default())?
    };
    let biased = Layout::with_biases(config)?;
    let layout = Layout {
        qkv_bias: biased.qkv_bias,
        output_bias: biased.output_bias,
        ..layout(local_layers)
    };
    Ok((model_config, layout))
}

/// Returns whether a version 3 model has bidirectional attention.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub(in crate::decoder) fn is_encoder(config: &Config) -> Result<bool, LoadError> {
    Ok(config.optional(BOTH_DIRECTIONS)?.unwrap_or(false))
}

/// Positions and attention windows of version 3.
pub(crate) struct Positions {
    /// Sliding window of local layers, tokens; `None` if no layer is local.
    pub(crate) window: Option<usize>,
    /// Whether each layer is local.
    pub(crate) local_layers: Vec<bool>,
    /// Rotary positions of global layers.
    pub(crate) global: Rotary,
    /// Rotary positions of local layers.
    pub(crate) near: Rotary,
}

/// Reads the positions of version 3.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(crate) fn positions_3(config: &Config, head_dim: usize) -> Result<Positions, LoadError> {
    // Older files state a pattern: one global layer per this many layers.
    let pattern = config.optional_size("sliding_window_pattern")?.unwrap_or(6);
    let (local, local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(pattern))?;
    let near = RotaryKeys {
        theta_key: "rope_local_base_freq",
        layer_type: Some("sliding_attention"),
        scaled: false,
        ..RotaryKeys::default()
    };
    Ok(Positions {
        window: local.and_then(|local| local.window),
        local_layers,
        global: rotary(config, head_dim, GLOBAL)?.rotary,
        near: rotary(config, head_dim, near)?.rotary,
    })
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let both = "attention to later tokens is supported by the base model alone";
    require(config, BOTH_DIRECTIONS, false, both)?;
    let mut model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        ..model_config(config, GLOBAL)?
    };
    let Positions {
        window,
        local_layers,
        near,
        ..
    } = positions_3(config, model_config.heads.head_dim)?;
    model_config.local = window.map(|window| LocalAttention {
        window: Some(window),
        rotary: Some(near),
    });
    gated::read(checkpoint, partition, model_config, &layout(local_layers))
}

fn model_config(config: &Config, keys: RotaryKeys) -> Result<ModelConfig, LoadError> {
    let base = gated::model_config(config, keys)?;
    let cap = |key: &str| config.optional::<f32>(key);
    let scalar = config.optional::<f32>("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(ModelConfig {
        heads: Heads {
            scale: 1.0 / scalar.sqrt(),
            ..base.heads
        },
        activation: hidden_activation(config)?,
        output_norms: OutputNorms::Outputs,
        score_softcap: cap("attn_logit_softcapping")?,
        logit_softcap: cap("final_logit_softcapping")?,
        embedding_scale: Some((base.width as f32).sqrt()),
        ..base
    })
}

/// Reads the activation, whose key differs in old files.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(crate) fn hidden_activation(config: &Config) -> Result<Activation, LoadError> {
    let key = if config.optional::<String>("hidden_activation")?.is_some() {
        "hidden_activation"
    } else {
        "hidden_act"
    };
    match activation(config, key, "gelu_pytorch_tanh")? {
        // In the first files, `gelu` means the tanh approximation, with which the models were trained.
        Activation::Gelu => Ok(Activation::GeluTanh),
        activation => Ok(activation),
    }
}

/// Returns the layout of versions 2 and 3.
fn layout(local_layers: Vec<bool>) -> Layout {
    let base = Layout::default();
    Layout {
        norm_offset: 1.0,
        norm_names: NormNames {
            feed_forward: "pre_feedforward_layernorm",
            ..base.norm_names
        },
        local_layers,
        ..base
    }
}
