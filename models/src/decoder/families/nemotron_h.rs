//! Nemotron-H (NVIDIA 2025): each layer is a Mamba 2 mixer, an attention without positions, a feed-forward, or ungated
//! experts.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::config_values::{self, activation, eos_token_ids, epsilon};
use crate::decoder::experts::ExpertWeights;
use crate::decoder::gated;
use crate::decoder::recurrent::MixerConfig;
use crate::decoder::recurrent::mamba2::{Mamba2, Mamba2Keys};
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, LayerWeights, LinearWeights, ModelConfig, NormWeights};

/// Keys of the mixer's sizes.
const KEYS: Mamba2Keys = Mamba2Keys {
    heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    groups: "n_groups",
    state_size: "ssm_state_size",
    kernel: "conv_kernel",
    bias: "use_bias",
    convolution_bias: "use_conv_bias",
    activation: "mamba_hidden_act",
};

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Recurrence,
    Attention,
    FeedForward,
    Experts,
}

/// Reader of the layers' tensors.
struct Layers<'a> {
    config: &'a Config,
    weights: &'a mut Weights,
    model_config: ModelConfig,
    mixer: MixerConfig,
    /// Prefix of the base model's tensors.
    base: &'static str,
}

pub(in crate::decoder) fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    weights.ignore(|name| name.starts_with("mtp."));
    let parts = parts(config)?;
    if partition.of as usize > parts.len() {
        return Err(LoadError::TooManyPartitions {
            file: config.file().to_owned(),
            blocks: parts.len(),
            of: partition.of,
        });
    }
    let model_config = model_config(config, &parts)?;
    let (width, vocabulary) = (model_config.width, model_config.vocabulary);
    // The name in transformers 5, or in NVIDIA's files.
    let base = if weights.contains("backbone.norm_f.weight") {
        "backbone"
    } else {
        "model"
    };
    let embedding = weights.take(&format!("{base}.embeddings.weight"), &[vocabulary, width])?;
    let mut layers = Layers {
        config,
        mixer: MixerConfig::Mamba2(mixer(config, model_config.epsilon)?),
        weights,
        model_config,
        base,
    };
    let range = partition.layers(parts.len());
    let blocks = parts.iter().enumerate();
    let blocks = blocks.skip(range.start).take(range.len());
    let blocks = blocks.map(|(index, part)| layers.take(index, *part));
    let blocks = blocks.collect::<Result<Vec<LayerWeights>, _>>()?;
    let Layers {
        weights,
        model_config,
        ..
    } = layers;
    let final_norm = NormWeights::take_rms(weights, &format!("{base}.norm_f"), width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}

/// Returns the number of layers.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::decoder) fn layer_count(config: &Config) -> Result<usize, LoadError> {
    Ok(parts(config)?.len())
}

/// Reads the kinds of the layers: a list, or in older files one letter each.
fn parts(config: &Config) -> Result<Vec<Part>, LoadError> {
    let key = config.present_key(["layers_block_type", "layer_types"]);
    let pattern = "hybrid_override_pattern";
    let (key, names) = if let Some(names) = config.optional::<Vec<String>>(key)? {
        (key, names)
    } else {
        let letters = config.required::<String>(pattern)?;
        (pattern, letters.chars().map(String::from).collect())
    };
    let part = |name: &String| match name.as_str() {
        "linear_attention" | "mamba" | "M" => Ok(Part::Recurrence),
        "full_attention" | "attention" | "*" => Ok(Part::Attention),
        "mlp" | "-" => Ok(Part::FeedForward),
        "moe" | "E" => Ok(Part::Experts),
        _ => Err(config.invalid_value(key, format!("layers of type {name} are not supported"))),
    };
    names.iter().map(part).collect()
}

fn model_config(config: &Config, parts: &[Part]) -> Result<ModelConfig, LoadError> {
    let width = config.size("hidden_size")?;
    let routing = parts.contains(&Part::Experts).then(|| routing(config));
    if config.optional_size("sliding_window")?.is_some() {
        return Err(config.invalid_value("sliding_window", "a window is not supported"));
    }
    Ok(ModelConfig {
        width,
        heads: gated::heads(config, width)?,
        intermediate_size: config.size("intermediate_size")?,
        vocabulary: config.size("vocab_size")?,
        context: config.size("max_position_embeddings")?,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        activation: activation(config, "mlp_hidden_act", "relu2")?,
        routing: routing.transpose()?,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

fn routing(config: &Config) -> Result<Routing, LoadError> {
    if config.optional_size("moe_latent_size")?.is_some() {
        let reason = "experts that read a latent vector are not supported";
        return Err(config.invalid_value("moe_latent_size", reason));
    }
    deepseek::sigmoid_routing(config, config.size("n_routed_experts")?)
}

fn mixer(config: &Config, epsilon: f32) -> Result<Mamba2, LoadError> {
    let inner = config.size(KEYS.heads)? * config.size(KEYS.head_dim)?;
    let least = config.optional::<f32>("time_step_min")?.unwrap_or(0.001);
    Ok(Mamba2 {
        step_limits: [least, f32::INFINITY],
        ..Mamba2::read(config, KEYS, inner, epsilon)?
    })
}

impl Layers<'_> {
    fn linear(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<LinearWeights, LoadError> {
        LinearWeights::take(self.weights, name, inputs, outputs, bias)
    }

    fn take(&mut self, index: usize, part: Part) -> Result<LayerWeights, LoadError> {
        let name = format!("{}.layers.{index}", self.base);
        let norm = NormWeights::take_rms(self.weights, &format!("{name}.norm"), self.model_config.width)?;
        let mixer = format!("{name}.mixer");
        let layer = match part {
            Part::Recurrence => LayerWeights {
                recurrent: Some(self.mixer.take(self.weights, &mixer, &self.model_config)?),
                ..LayerWeights::default()
            },
            Part::Attention => self.attention(&mixer)?,
            Part::FeedForward => self.feed_forward(&mixer, self.model_config.intermediate_size)?,
            Part::Experts => {
                let inner = self.config.size("moe_shared_expert_intermediate_size")?;
                LayerWeights {
                    experts: Some(self.experts(&mixer)?),
                    ..self.feed_forward(&format!("{mixer}.shared_experts"), inner)?
                }
            }
        };
        let is_mixer = matches!(part, Part::Recurrence | Part::Attention);
        let (attention_norm, feed_forward_norm) = if is_mixer {
            (Some(norm), None)
        } else {
            (None, Some(norm))
        };
        let layer = LayerWeights {
            attention_norm,
            feed_forward_norm,
            ..layer
        };
        Ok(layer.stored_as(self.weights.weight_type()))
    }

    fn attention(&mut self, name: &str) -> Result<LayerWeights, LoadError> {
        let (width, heads) = (self.model_config.width, self.model_config.heads);
        config_values::require(
            self.config,
            "attention_bias",
            false,
            "biases of attentions are not supported",
        )?;
        let keys = self.linear(&format!("{name}.k_proj"), width, heads.key_width(), false)?;
        let values = self.linear(&format!("{name}.v_proj"), width, heads.key_width(), false)?;
        Ok(LayerWeights {
            query: self.linear(&format!("{name}.q_proj"), width, heads.query_width(), false)?,
            key_value: keys.concat_outputs(&values),
            output: self.linear(&format!("{name}.o_proj"), heads.query_width(), width, false)?,
            ..LayerWeights::default()
        })
    }

    fn feed_forward(&mut self, name: &str, inner: usize) -> Result<LayerWeights, LoadError> {
        let width = self.model_config.width;
        let bias = self.config.optional("mlp_bias")?.unwrap_or(false);
        Ok(LayerWeights {
            up: self.linear(&format!("{name}.up_proj"), width, inner, bias)?,
            down: self.linear(&format!("{name}.down_proj"), inner, width, bias)?,
            ..LayerWeights::default()
        })
    }

    fn experts(&mut self, name: &str) -> Result<ExpertWeights, LoadError> {
        let width = self.model_config.width;
        let count = self.config.size("n_routed_experts")?;
        let inner = self.config.size("moe_intermediate_size")?;
        let router = self.linear(&format!("{name}.gate"), width, count, false)?;
        let correction = self
            .weights
            .take(&format!("{name}.{}", deepseek::SCORED.name), &[count])?;
        let kind = self.weights.weight_type();
        let mut all = |part: &str, inputs: usize, outputs: usize| {
            let fused = format!("{name}.experts.{part}");
            if self.weights.contains(&fused) {
                return self
                    .weights
                    .take_each(&fused, &[count, outputs, inputs], |_, weight| {
                        LinearWeights::tied(&weight, inputs).stored_as(kind)
                    });
            }
            let each = (0..count).map(|expert| {
                let name = format!("{name}.experts.{expert}.{part}");
                Ok(LinearWeights::take(self.weights, &name, inputs, outputs, false)?.stored_as(kind))
            });
            each.collect()
        };
        let up: Vec<LinearWeights> = all("up_proj", width, inner)?;
        let down: Vec<LinearWeights> = all("down_proj", inner, width)?;
        Ok(ExpertWeights {
            router,
            correction,
            experts: up.into_iter().zip(down).map(|(up, down)| [up, down]).collect(),
            shared_gate: None,
            scales: Vec::new(),
            beside: None,
        })
    }
}
