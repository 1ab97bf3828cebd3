//! Granite 3 and 4 (IBM 2024, 2025): Llama with multipliers for embeddings, scores, residuals and logits; variants
//! have experts, and Mamba 2 mixers instead of most attentions.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{epsilon, positive};
use crate::decoder::experts::{ExpertLayout, ExpertTensors, SharedExpert};
use crate::decoder::gated::{self, Layout};
use crate::decoder::recurrent::mamba2::{Mamba2, Mamba2Keys};
use crate::decoder::recurrent::{self, MixerConfig, RecurrentLayout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, ModelConfig};
use crate::ops::Heads;

/// Key of the shared expert's size.
const SHARED: &str = "shared_intermediate_size";
/// Key of the residual multiplier.
pub(super) const RESIDUALS: &str = "residual_multiplier";

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = model_config(config)?;
    gated::read(checkpoint, partition, model_config, &Layout::with_biases(config)?)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (model_config, layout) = with_experts(config, model_config(config)?, Layout::with_biases(config)?)?;
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Adds experts to all layers, with a shared expert if it has a size.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn with_experts(
    config: &Config,
    base: ModelConfig,
    layout: Layout,
) -> Result<(ModelConfig, Layout), LoadError> {
    let shared = config.optional::<usize>(SHARED)?.unwrap_or_default();
    let experts = if shared > 0 {
        hybrid_experts(config, config.size("num_local_experts")?)?
    } else {
        fused_experts(ExpertLayout::everywhere(config, "intermediate_size")?)
    };
    let model_config = ModelConfig {
        intermediate_size: if shared > 0 {
            shared
        } else {
            base.intermediate_size
        },
        routing: Some(Routing::read(config, experts.count, true)?),
        ..base
    };
    let layout = Layout {
        up: &["shared_mlp.input_linear"],
        down: "shared_mlp.output_linear",
        experts: Some(experts),
        ..layout
    };
    Ok((model_config, layout))
}

pub(super) fn read_hybrid(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let base = model_config(config)?;
    let count = config.optional::<usize>("num_local_experts")?.unwrap_or_default();
    let experts = (count > 0).then(|| hybrid_experts(config, count));
    let routing = (count > 0).then(|| Routing::read(config, count, true));
    let rotated = config.optional::<String>("position_embedding_type")?;
    let layers = recurrent_layers(config)?;
    let mixer = || -> Result<MixerConfig, LoadError> {
        let inner = recurrent::expanded(config, "mamba_expand", base.width)?;
        let epsilon = epsilon(config, "rms_norm_eps", 1e-6)?;
        let mixer = Mamba2::read(config, Mamba2Keys::HYBRID, inner, epsilon)?;
        Ok(MixerConfig::Mamba2(mixer))
    };
    let mixer = layers.contains(&true).then(mixer).transpose()?;
    let layout = Layout {
        up: &["shared_mlp.input_linear"],
        down: "shared_mlp.output_linear",
        experts: experts.transpose()?,
        recurrent: mixer.map(|mixer| RecurrentLayout {
            layers,
            beside_attention: false,
            module: "mamba",
            mixer,
        }),
        ..Layout::with_biases(config)?
    };
    let model_config = ModelConfig {
        rotary: base.rotary.filter(|_| rotated.as_deref() == Some("rope")),
        intermediate_size: config.size(SHARED)?,
        routing: routing.transpose()?,
        ..base
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns which layers have a Mamba 2 mixer; all of them if the configuration lists no types.
fn recurrent_layers(config: &Config) -> Result<Vec<bool>, LoadError> {
    let key = config.present_key(["layer_types", "layers_block_type"]);
    if config.optional::<Vec<String>>(key)?.is_none() {
        return Ok(vec![true; config.size("num_hidden_layers")?]);
    }
    let [recurrent, attention] = [["mamba", "linear_attention"], ["attention", "full_attention"]];
    gated::layers_of_type(config, key, &recurrent, &attention)
}

/// Returns experts with a shared one, which has the names of a dense feed-forward.
fn hybrid_experts(config: &Config, count: usize) -> Result<ExpertLayout, LoadError> {
    let shared = SharedExpert {
        block: None,
        inner: config.size(SHARED)?,
        bias: false,
        gate: None,
    };
    Ok(ExpertLayout {
        shared: Some(shared),
        ..fused_experts(ExpertLayout::counted(config, count, "intermediate_size")?)
    })
}

fn fused_experts(experts: ExpertLayout) -> ExpertLayout {
    ExpertLayout {
        block: "block_sparse_moe",
        router: "router.layer",
        tensors: ExpertTensors::Fused(["input_linear.weight", "output_linear.weight"]),
        ..experts
    }
}

pub(super) fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    let model_config = factors(config)?;
    let added = positive(config, RESIDUALS)?.unwrap_or(1.0);
    let embedded = positive(config, "embedding_multiplier")?.unwrap_or(1.0);
    Ok(scaled_residuals(model_config, embedded, added))
}

/// Reads the configuration without the multipliers of embeddings and residuals.
pub(super) fn factors(config: &Config) -> Result<ModelConfig, LoadError> {
    let base = gated::model_config(config, RotaryKeys::default())?;
    Ok(ModelConfig {
        heads: Heads {
            scale: positive(config, "attention_multiplier")?.unwrap_or(1.0),
            ..base.heads
        },
        logit_scale: positive(config, "logits_scaling")?.map(f32::recip),
        ..base
    })
}

/// Returns the configuration of a model with an embedding multiplier `embedded` and a residual multiplier `added`.
///
/// The layers compute on hidden states divided by `added`. Then only the embeddings are scaled. The norms undo the
/// division except for their epsilon, which is therefore divided by the square of `added`.
pub(super) fn scaled_residuals(base: ModelConfig, embedded: f32, added: f32) -> ModelConfig {
    ModelConfig {
        embedding_scale: Some(embedded / added),
        epsilon: base.epsilon / (added * added),
        ..base
    }
}
