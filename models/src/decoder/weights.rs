//! Configuration and weights of a language model in host memory. The architectures fill them in.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::checkpoint::{LoadError, Weights};
use crate::ops::{Activation, Heads, RelativeBias, Rotary};

/// Configuration of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Size of a hidden vector.
    pub width: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Size of the feed-forward layer.
    pub intermediate_size: usize,
    /// Vocabulary size, tokens.
    pub vocabulary: usize,
    /// Maximum tokens of a request; of an encoder-decoder those of its answer. `usize::MAX` with relative positions,
    /// because then only the cache is a limit.
    pub context: usize,
    /// Added to the variance by the norms.
    pub epsilon: f32,
    /// The feed-forward layer's activation.
    pub activation: Activation,
    /// Whether the feed-forward layer is gated.
    pub gated: bool,
    /// Whether attention and feed-forward layer have the same input and their outputs are added (GPT-J).
    pub parallel: bool,
    /// Rotary positions; `None` if positions are learned or relative.
    pub rotary: Option<Rotary>,
    /// Relative positions.
    pub relative_bias: Option<RelativeBias>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
}

/// Weight `[inputs, outputs]` of a linear layer, row-major, and its bias, empty if it has none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinearWeights {
    /// The weight.
    pub weight: Vec<f32>,
    /// The bias.
    pub bias: Vec<f32>,
    /// Input size.
    pub inputs: usize,
    /// Output size.
    pub outputs: usize,
}

/// Weights of a norm; an RMS norm without `beta`.
#[derive(Debug, Clone, PartialEq)]
pub struct NormWeights {
    /// The factors.
    pub gamma: Vec<f32>,
    /// The offsets.
    pub beta: Option<Vec<f32>>,
}

/// Weights of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    /// Norm before the attention. ACT blocks hold its output.
    pub attention_norm: NormWeights,
    /// Query projection.
    pub query: LinearWeights,
    /// Key and value projections, concatenated.
    pub key_value: LinearWeights,
    /// Output projection.
    pub output: LinearWeights,
    /// Norm before the feed-forward layer; `None` if it is parallel.
    pub feed_forward_norm: Option<NormWeights>,
    /// Up projection; if gated, the gate followed by the values.
    pub up: LinearWeights,
    /// Down projection.
    pub down: LinearWeights,
    /// Cross-attention to the encoder's output, between attention and feed-forward layer.
    pub cross: Option<CrossWeights>,
}

/// Weights of a decoder layer's cross-attention.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossWeights {
    /// Norm before it.
    pub norm: NormWeights,
    /// Query projection.
    pub query: LinearWeights,
    /// Projection of the encoder's output to keys and values, concatenated; as wide as those of the self-attention.
    pub key_value: LinearWeights,
    /// Output projection.
    pub output: LinearWeights,
}

/// An encoder: it reads the whole prompt. Sizes, activation and embedding are those of its decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Maximum tokens of a prompt.
    pub context: usize,
    /// First token of every answer.
    pub start_token: u32,
    /// Relative positions, in both directions.
    pub relative_bias: RelativeBias,
    /// Layers, without cross-attention.
    pub layers: Vec<LayerWeights>,
    /// Norm of the output.
    pub final_norm: NormWeights,
}

/// A language model with its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// Its configuration.
    pub model_config: ModelConfig,
    /// One vector per token.
    pub embedding: Vec<f32>,
    /// One vector per position, from the first token on; `None` unless positions are learned.
    pub positions: Option<Vec<f32>>,
    /// Its layers.
    pub layers: Vec<LayerWeights>,
    /// Final norm.
    pub final_norm: NormWeights,
    /// Projection to one logit per token.
    pub head: LinearWeights,
    /// Encoder of the prompt; `None` for decoder-only models.
    pub encoder: Option<Encoder>,
}

impl ModelConfig {
    /// Elements of an ACT entry per token and layer.
    pub(crate) fn act_width(&self) -> usize {
        self.width
    }

    /// Elements of keys and values per token and layer.
    pub fn kv_width(&self) -> usize {
        2 * self.heads.key_width()
    }

    fn has_learned_positions(&self) -> bool {
        self.rotary.is_none() && self.relative_bias.is_none()
    }
}

impl LayerWeights {
    fn random(rng: &mut ChaCha8Rng, model_config: &ModelConfig) -> Self {
        let (width, learned) = (model_config.width, model_config.has_learned_positions());
        Self {
            attention_norm: NormWeights::random(rng, width, !learned),
            query: LinearWeights::random(rng, width, model_config.heads.query_width(), learned),
            key_value: LinearWeights::random(rng, width, model_config.kv_width(), learned),
            output: LinearWeights::random(rng, model_config.heads.query_width(), width, learned),
            feed_forward_norm: (!model_config.parallel).then(|| NormWeights::random(rng, width, !learned)),
            up: LinearWeights::random(
                rng,
                width,
                model_config.intermediate_size * if model_config.gated { 2 } else { 1 },
                learned,
            ),
            down: LinearWeights::random(rng, model_config.intermediate_size, width, learned),
            cross: None,
        }
    }
}

impl LinearWeights {
    /// Takes the linear layer `{name}.weight` as torch stores it, `[outputs, inputs]`, with `{name}.bias` if `bias`.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub fn take(
        weights: &mut Weights,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            weight: weights.take_transposed(&format!("{name}.weight"), inputs, outputs)?,
            bias: bias_of(weights, name, outputs, bias)?,
            inputs,
            outputs,
        })
    }

    /// Takes a linear layer with bias whose weight is stored as `[inputs, outputs]`, as in GPT-2.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub(crate) fn take_input_major(
        weights: &mut Weights,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            weight: weights.take(&format!("{name}.weight"), &[inputs, outputs])?,
            bias: bias_of(weights, name, outputs, true)?,
            inputs,
            outputs,
        })
    }

    /// Returns a head that shares its weight with the embedding `[outputs, inputs]`.
    pub fn tied(embedding: &[f32], inputs: usize) -> Self {
        Self {
            weight: crate::checkpoint::transposed(embedding, inputs),
            bias: Vec::new(),
            inputs,
            outputs: embedding.len() / inputs.max(1),
        }
    }

    /// Concatenates the outputs of two layers with the same inputs.
    #[must_use]
    pub(crate) fn concat_outputs(self, other: &Self) -> Self {
        let (left, right) = (self.outputs.max(1), other.outputs.max(1));
        let rows = self.weight.chunks(left).zip(other.weight.chunks(right));
        Self {
            weight: rows
                .flat_map(|(left, right)| left.iter().chain(right))
                .copied()
                .collect(),
            bias: [self.bias, other.bias.clone()].concat(),
            inputs: self.inputs,
            outputs: self.outputs + other.outputs,
        }
    }

    /// Splits a layer in two; the first has `outputs` of the outputs.
    pub fn split(self, outputs: usize) -> (Self, Self) {
        let rows = || self.weight.chunks(self.outputs.max(1));
        let part = |range: std::ops::Range<usize>| Self {
            weight: rows()
                .flat_map(|row| row.get(range.clone()).unwrap_or_default())
                .copied()
                .collect(),
            bias: self.bias.get(range.clone()).unwrap_or_default().to_vec(),
            inputs: self.inputs,
            outputs: range.len(),
        };
        (part(0..outputs), part(outputs..self.outputs))
    }

    fn random(rng: &mut ChaCha8Rng, inputs: usize, outputs: usize, biased: bool) -> Self {
        let deviation = (3.0 / inputs as f32).sqrt();
        let mut draw = |count: usize, scale: f32| {
            (0..count)
                .map(|_| rng.random_range(-1.0..1.0_f32) * scale)
                .collect()
        };
        Self {
            weight: draw(inputs * outputs, deviation),
            bias: if biased { draw(outputs, 0.1) } else { Vec::new() },
            inputs,
            outputs,
        }
    }
}

fn bias_of(weights: &mut Weights, name: &str, outputs: usize, bias: bool) -> Result<Vec<f32>, LoadError> {
    if bias {
        weights.take(&format!("{name}.bias"), &[outputs])
    } else {
        Ok(Vec::new())
    }
}

impl NormWeights {
    /// Takes the layer norm `{name}.weight` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub fn take(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gamma: weights.take(&format!("{name}.weight"), &[width])?,
            beta: Some(weights.take(&format!("{name}.bias"), &[width])?),
        })
    }

    /// Takes the RMS norm `{name}.weight`.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub(crate) fn take_rms(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gamma: weights.take(&format!("{name}.weight"), &[width])?,
            beta: None,
        })
    }

    fn random(rng: &mut ChaCha8Rng, width: usize, rms: bool) -> Self {
        let mut draw = |around: f32| (0..width).map(|_| around + rng.random_range(-0.1..0.1)).collect();
        Self {
            gamma: draw(1.0),
            beta: (!rms).then(|| draw(0.0)),
        }
    }
}

impl Decoder {
    /// Builds a decoder with random weights, for measurements and for tests without a checkpoint. With learned
    /// positions its norms have offsets and its layers biases.
    pub fn random(model_config: ModelConfig, layers: usize, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (width, learned) = (model_config.width, model_config.has_learned_positions());
        let layers = (0..layers)
            .map(|_| LayerWeights::random(rng, &model_config))
            .collect();
        Self {
            embedding: LinearWeights::random(rng, width, model_config.vocabulary, false).weight,
            positions: learned.then(|| LinearWeights::random(rng, width, model_config.context, false).weight),
            layers,
            final_norm: NormWeights::random(rng, width, !learned),
            head: LinearWeights::random(rng, width, model_config.vocabulary, false),
            encoder: None,
            model_config,
        }
    }

    /// Adds an encoder of `layers` layers for prompts of at most `context` tokens, and cross-attention, with random
    /// weights. Answers begin with token 0.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_random_encoder(mut self, layers: usize, context: usize, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let (model_config, max_distance) = (&self.model_config, 8);
        let (width, rms) = (model_config.width, !model_config.has_learned_positions());
        for layer in &mut self.layers {
            layer.cross = Some(CrossWeights {
                norm: NormWeights::random(rng, width, rms),
                query: LinearWeights::random(rng, width, model_config.heads.query_width(), !rms),
                key_value: LinearWeights::random(rng, width, model_config.kv_width(), !rms),
                output: LinearWeights::random(rng, model_config.heads.query_width(), width, !rms),
            });
        }
        self.encoder = Some(Encoder {
            context,
            start_token: 0,
            relative_bias: RelativeBias {
                max_distance,
                values: LinearWeights::random(rng, 2 * max_distance + 1, model_config.heads.queries, false)
                    .weight,
            },
            layers: (0..layers)
                .map(|_| LayerWeights::random(rng, model_config))
                .collect(),
            final_norm: NormWeights::random(rng, width, rms),
        });
        self
    }

    /// Maximum tokens of a prompt; of a decoder, its answer counts too.
    pub(crate) fn longest_prompt(&self) -> usize {
        self.encoder
            .as_ref()
            .map_or(self.model_config.context, |encoder| encoder.context)
    }

    /// Number of layers, those of the encoder included.
    pub fn depth(&self) -> usize {
        self.layers.len() + self.encoder.as_ref().map_or(0, |encoder| encoder.layers.len())
    }

    /// Embeds tokens, the first of which has position `first`: one row each. The caller must reject tokens beyond the
    /// vocabulary and positions beyond the context; here they are zeros.
    pub(crate) fn embed(&self, tokens: &[u32], first: usize) -> Vec<f32> {
        let width = self.model_config.width;
        let row = |table: &[f32], index: usize| -> Vec<f32> {
            table
                .get(index * width..(index + 1) * width)
                .map_or_else(|| vec![0.0; width], <[f32]>::to_vec)
        };
        let mut out = Vec::with_capacity(tokens.len() * width);
        for (position, token) in (first..).zip(tokens) {
            let mut vector = row(&self.embedding, *token as usize);
            if let Some(positions) = &self.positions {
                for (value, shift) in vector.iter_mut().zip(row(positions, position)) {
                    *value += shift;
                }
            }
            out.extend(vector);
        }
        out
    }
}
