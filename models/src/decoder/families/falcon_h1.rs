//! Falcon H1 (TII 2025): parallel attention and Mamba 2 mixer in every layer, with scale factors (muP multipliers) for
//! most projections.

use kaskade_policy::plan::Partition;

use super::bamba::hybrid_names;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::recurrent::mamba2::{Mamba2, Mamba2Keys, ResultNorm};
use crate::decoder::recurrent::{self, MixerConfig, RecurrentLayout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, LayerWeights, ModelConfig, RecurrentWeights};

/// Scale factors of a layer's projections.
struct Factors {
    attention_input: f32,
    keys: f32,
    attention_output: f32,
    recurrent_input: f32,
    recurrent_output: f32,
    /// Factors of the feed-forward's gate and output.
    feed_forward: [f32; 2],
}

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        embedding_scale: Some(factor(config, "embedding_multiplier")?),
        logit_scale: Some(factor(config, "lm_head_multiplier")?),
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let factors = factors(config)?;
    let layout = Layout {
        recurrent: Some(RecurrentLayout {
            layers: vec![true; config.size("num_hidden_layers")?],
            beside_attention: true,
            module: "mamba",
            mixer: MixerConfig::Mamba2(mixer(config, &model_config)?),
        }),
        ..hybrid_names(Layout::with_biases(config)?)
    };
    gated::read_adapted(
        checkpoint,
        partition,
        model_config,
        &layout,
        |layer, model_config| factors.apply(layer, model_config),
    )
}

fn mixer(config: &Config, model_config: &ModelConfig) -> Result<Mamba2, LoadError> {
    let inner = match config.optional_size("mamba_d_ssm")? {
        Some(inner) => inner,
        None => recurrent::expanded(config, "mamba_expand", model_config.width)?,
    };
    let factors = config.optional::<[f32; 5]>("ssm_multipliers")?;
    Ok(Mamba2 {
        output_bias: config.optional("projectors_bias")?.unwrap_or(false),
        norm: norm(config)?,
        factors: factors.unwrap_or([1.0; 5]),
        ..Mamba2::read(config, Mamba2Keys::HYBRID, inner, model_config.epsilon)?
    })
}

fn norm(config: &Config) -> Result<ResultNorm, LoadError> {
    if !config.optional("mamba_rms_norm")?.unwrap_or(false) {
        return Ok(ResultNorm::No);
    }
    let before = config.optional("mamba_norm_before_gate")?.unwrap_or(true);
    Ok(if before {
        ResultNorm::BeforeGates
    } else {
        ResultNorm::AfterGates
    })
}

fn factor(config: &Config, key: &str) -> Result<f32, LoadError> {
    Ok(config.optional(key)?.unwrap_or(1.0))
}

fn factors(config: &Config) -> Result<Factors, LoadError> {
    Ok(Factors {
        attention_input: factor(config, "attention_in_multiplier")?,
        keys: factor(config, "key_multiplier")?,
        attention_output: factor(config, "attention_out_multiplier")?,
        recurrent_input: factor(config, "ssm_in_multiplier")?,
        recurrent_output: factor(config, "ssm_out_multiplier")?,
        feed_forward: config.optional("mlp_multipliers")?.unwrap_or([1.0; 2]),
    })
}

impl Factors {
    /// Multiplies the weights by the factors.
    fn apply(&self, layer: LayerWeights, model_config: &ModelConfig) -> LayerWeights {
        let (keys, inner) = (model_config.heads.key_width(), model_config.intermediate_size);
        let [gates, down] = self.feed_forward;
        let of_keys = |output: usize| if output < keys { self.keys } else { 1.0 };
        let of_gates = |output: usize| if output < inner { gates } else { 1.0 };
        LayerWeights {
            query: layer.query.scaled(self.attention_input, |_| 1.0),
            key_value: layer.key_value.scaled(self.attention_input, of_keys),
            output: layer.output.scaled(1.0, |_| self.attention_output),
            up: layer.up.scaled(1.0, of_gates),
            down: layer.down.scaled(1.0, |_| down),
            recurrent: layer.recurrent.map(|recurrent| {
                let recurrent = recurrent.with_input_scaled(self.recurrent_input);
                RecurrentWeights {
                    output: recurrent.output.scaled(1.0, |_| self.recurrent_output),
                    ..recurrent
                }
            }),
            ..layer
        }
    }
}
