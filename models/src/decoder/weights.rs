//! A language model as its checkpoint has it: extents, and weights in the host's memory. Families fill it in.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::checkpoint::{LoadError, Weights};
use crate::ops::{Activation, Heads, RelativeBias, Rotary};

/// The extents of a decoder, and what its layers do.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Extent of a token's vector.
    pub width: usize,
    /// Its heads.
    pub heads: Heads,
    /// Extent of the feed-forward layer.
    pub intermediate_size: usize,
    /// Tokens it knows.
    pub vocabulary: usize,
    /// Most tokens of a request, of an encoder-decoder those of its answer; `usize::MAX` where positions are relative, for then only the
    /// cache is a bound.
    pub context: usize,
    /// What the norms add to the variance.
    pub epsilon: f32,
    /// The feed-forward layer's activation.
    pub activation: Activation,
    /// Whether the activation of one projection gates another.
    pub gated: bool,
    /// Whether attention and feed-forward layer read the same norm and are added together (GPT-J).
    pub parallel: bool,
    /// Rotary positions; absent: positions are learned or relative.
    pub rotary: Option<Rotary>,
    /// Positions relative to each other, by what scores gain.
    pub relative_bias: Option<RelativeBias>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
}

/// The weight `[inputs, outputs]` of a linear layer, row-major, and its bias, empty if it has none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinearWeights {
    /// The weight.
    pub weight: Vec<f32>,
    /// The bias.
    pub bias: Vec<f32>,
    /// Extent of what it takes.
    pub inputs: usize,
    /// Extent of what it gives.
    pub outputs: usize,
}

/// The weights of a norm; without `beta` it is one of root mean squares.
#[derive(Debug, Clone, PartialEq)]
pub struct NormWeights {
    /// What it multiplies by.
    pub gamma: Vec<f32>,
    /// What it adds.
    pub beta: Option<Vec<f32>>,
}

/// A layer's weights.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    /// The norm before the attention. What it gives is what ACT blocks hold.
    pub attention_norm: NormWeights,
    /// To the queries.
    pub query: LinearWeights,
    /// To keys and values, side by side.
    pub key_value: LinearWeights,
    /// From the heads back.
    pub output: LinearWeights,
    /// The norm before the feed-forward layer; absent where it is parallel.
    pub feed_forward_norm: Option<NormWeights>,
    /// Into the feed-forward layer; where gated, the gate and then the values.
    pub up: LinearWeights,
    /// Out of it.
    pub down: LinearWeights,
    /// Between attention and feed-forward layer, the attention to what an encoder made of the prompt.
    pub cross: Option<CrossWeights>,
}

/// The weights of a decoder layer's cross-attention.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossWeights {
    /// The norm before it.
    pub norm: NormWeights,
    /// To the queries.
    pub query: LinearWeights,
    /// From the encoder's output to keys and values, side by side; as wide as those of the layer's own attention.
    pub key_value: LinearWeights,
    /// From the heads back.
    pub output: LinearWeights,
}

/// An encoder: it reads a prompt as a whole. Its extents, activation and embedding are those of its decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Most tokens of a prompt.
    pub context: usize,
    /// The token that every answer begins with.
    pub start: u32,
    /// Its relative positions, in both directions.
    pub relative_bias: RelativeBias,
    /// Its layers, without cross-attention.
    pub layers: Vec<LayerWeights>,
    /// The norm of its output.
    pub final_norm: NormWeights,
}

/// A model and its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// Its extents.
    pub model_config: ModelConfig,
    /// A vector per token.
    pub embedding: Vec<f32>,
    /// A vector per position, where positions are learned; the first is that of the first token.
    pub positions: Option<Vec<f32>>,
    /// Its layers.
    pub layers: Vec<LayerWeights>,
    /// The last norm.
    pub final_norm: NormWeights,
    /// To a logit per token.
    pub head: LinearWeights,
    /// What reads the prompt, where the decoder does not.
    pub encoder: Option<Encoder>,
}

impl ModelConfig {
    /// Elements that an ACT entry takes per token and layer.
    pub fn act_width(&self) -> usize {
        self.width
    }

    /// Elements that keys and values take per token and layer.
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
    /// The linear layer `{name}.weight` as torch stores it, `[outputs, inputs]`, with `{name}.bias` if `bias`.
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

    /// The same of a weight that is stored `[inputs, outputs]`, as GPT-2 does.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub fn take_input_major(
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

    /// The head that shares its weight with the embedding `[outputs, inputs]`.
    pub fn tied(embedding: &[f32], inputs: usize) -> Self {
        Self {
            weight: crate::checkpoint::transposed(embedding, inputs),
            bias: Vec::new(),
            inputs,
            outputs: embedding.len() / inputs.max(1),
        }
    }

    /// Two over the same inputs as one.
    #[must_use]
    pub fn concat_outputs(self, other: &Self) -> Self {
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

    /// One as two, the first with `outputs` of the outputs.
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
    /// The layer norm `{name}.weight` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub fn take(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gamma: weights.take(&format!("{name}.weight"), &[width])?,
            beta: Some(weights.take(&format!("{name}.bias"), &[width])?),
        })
    }

    /// The norm of root mean squares `{name}.weight`.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub fn take_rms(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
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
    /// A decoder of these extents with weights drawn at random: for measurements, and for tests of what no checkpoint is
    /// needed for. Its norms shift where positions are learned, and its layers have biases there.
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

    /// The same with an encoder of so many layers for prompts of at most `context` tokens, drawn at random, and with cross-attention
    /// to it. Answers begin with the first token.
    #[must_use]
    pub fn with_random_encoder(mut self, layers: usize, context: usize, seed: u64) -> Self {
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
            start: 0,
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

    /// Most tokens of a prompt; a decoder's answer counts towards them too.
    pub fn longest_prompt(&self) -> usize {
        self.encoder
            .as_ref()
            .map_or(self.model_config.context, |encoder| encoder.context)
    }

    /// All layers, those of the encoder among them.
    pub fn depth(&self) -> usize {
        self.layers.len() + self.encoder.as_ref().map_or(0, |encoder| encoder.layers.len())
    }

    /// The vectors of tokens, the first of which has position `first`, under each other. Tokens beyond the vocabulary and
    /// positions beyond the context are the caller's to refuse; here they are zeros.
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
