//! Configuration and weights of a language model in host memory. The architectures fill them in.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::checkpoint::{LoadError, Weights};
use crate::ops::{Activation, Heads, RelativeBias, Rotary};

/// Configuration of a decoder: everything that its layers compute.
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// Whether the feed-forward layer runs beside the attention.
    pub parallel: Parallel,
    /// Whether the heads of queries and keys are normalised (Qwen 3, Gemma 3).
    pub head_norms: bool,
    /// Whether the outputs of attention and feed-forward layer are normalised before they are added (Gemma).
    pub output_norms: bool,
    /// Rotary positions; `None` if positions are learned or relative.
    pub rotary: Option<Rotary>,
    /// Attention of the layers that see a window only; `None` if all layers see everything.
    pub local: Option<LocalAttention>,
    /// Soft cap of the attention's scores.
    pub score_softcap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_softcap: Option<f32>,
    /// Factor of the embeddings as the layers' input; `None` is 1.
    pub embedding_scale: Option<f32>,
    /// Relative positions.
    pub relative_bias: Option<RelativeBias>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
}

/// How the feed-forward layer follows the attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallel {
    /// After it, with a norm before it.
    #[default]
    No,
    /// Beside it, with the same normalised input (GPT-J).
    SharedNorm,
    /// Beside it, with a norm before it (GPT-NeoX).
    OwnNorm,
}

/// Attention of a layer that sees the last tokens only.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalAttention {
    /// Number of last tokens that a token sees, itself included.
    pub window: usize,
    /// Rotary positions of these layers, if they differ from those of the others (Gemma 3).
    pub rotary: Option<Rotary>,
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

/// Norms of the heads of queries and keys, as wide as a head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNorms {
    /// Of the queries.
    pub query: NormWeights,
    /// Of the keys.
    pub key: NormWeights,
}

/// Norms of the outputs of attention and feed-forward layer.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputNorms {
    /// Of the attention.
    pub attention: NormWeights,
    /// Of the feed-forward layer.
    pub feed_forward: NormWeights,
}

/// Weights of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    /// Whether the attention sees the window of [`ModelConfig::local`] only.
    pub local: bool,
    /// Norm before the attention. ACT blocks hold its output.
    pub attention_norm: NormWeights,
    /// Norms of queries and keys, before they are rotated.
    pub head_norms: Option<HeadNorms>,
    /// Norms of the outputs.
    pub output_norms: Option<OutputNorms>,
    /// Query projection.
    pub query: LinearWeights,
    /// Key and value projections, concatenated.
    pub key_value: LinearWeights,
    /// Output projection.
    pub output: LinearWeights,
    /// Norm before the feed-forward layer; `None` if it has the attention's input.
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

    /// Returns the rotary positions of a layer.
    pub(crate) fn rotary_of(&self, local: bool) -> Option<&Rotary> {
        let own = self.local.as_ref().filter(|_| local);
        own.and_then(|local| local.rotary.as_ref())
            .or(self.rotary.as_ref())
    }

    /// Returns the number of last tokens that a layer sees; `None` for all.
    pub(crate) fn window_of(&self, local: bool) -> Option<usize> {
        let own = self.local.as_ref().filter(|_| local);
        own.map(|local| local.window)
    }

    /// Applies the soft cap to logits, in place.
    pub(crate) fn cap_logits(&self, logits: &mut [f32]) {
        if let Some(cap) = self.logit_softcap {
            for logit in logits {
                *logit = cap * (*logit / cap).tanh();
            }
        }
    }

    fn has_learned_positions(&self) -> bool {
        self.rotary.is_none() && self.relative_bias.is_none()
    }
}

impl LayerWeights {
    /// Number of elements of all tensors.
    pub(crate) fn elements(&self) -> usize {
        let norms = [&self.attention_norm].into_iter().chain(&self.feed_forward_norm);
        let heads = self
            .head_norms
            .iter()
            .flat_map(|norms| [&norms.query, &norms.key]);
        let outputs = self.output_norms.iter();
        let outputs = outputs.flat_map(|norms| [&norms.attention, &norms.feed_forward]);
        let cross_norm = self.cross.iter().map(|cross| &cross.norm);
        let cross = self.cross.iter();
        let cross = cross.flat_map(|cross| [&cross.query, &cross.key_value, &cross.output]);
        let linears = [&self.query, &self.key_value, &self.output, &self.up, &self.down];
        let norms = norms.chain(heads).chain(outputs).chain(cross_norm);
        norms.map(NormWeights::elements).sum::<usize>()
            + linears
                .into_iter()
                .chain(cross)
                .map(LinearWeights::elements)
                .sum::<usize>()
    }

    /// Every second layer is local, from the first on.
    fn random(rng: &mut ChaCha8Rng, model_config: &ModelConfig, index: usize) -> Self {
        let (width, learned) = (model_config.width, model_config.has_learned_positions());
        let mut norm = |used: bool, width: usize| used.then(|| NormWeights::random(rng, width, !learned));
        let head_dim = model_config.heads.head_dim;
        let heads = [(); 2].map(|()| norm(model_config.head_norms, head_dim));
        let outputs = [(); 2].map(|()| norm(model_config.output_norms, width));
        let [query, key] = heads;
        let [attention, feed_forward] = outputs;
        Self {
            local: model_config.local.is_some() && index.is_multiple_of(2),
            head_norms: query.zip(key).map(|(query, key)| HeadNorms { query, key }),
            output_norms: attention
                .zip(feed_forward)
                .map(|(attention, feed_forward)| OutputNorms {
                    attention,
                    feed_forward,
                }),
            attention_norm: NormWeights::random(rng, width, !learned),
            query: LinearWeights::random(rng, width, model_config.heads.query_width(), learned),
            key_value: LinearWeights::random(rng, width, model_config.kv_width(), learned),
            output: LinearWeights::random(rng, model_config.heads.query_width(), width, learned),
            feed_forward_norm: (model_config.parallel != Parallel::SharedNorm)
                .then(|| NormWeights::random(rng, width, !learned)),
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
    /// Number of elements of weight and bias.
    pub(crate) fn elements(&self) -> usize {
        self.weight.len() + self.bias.len()
    }

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

    /// Reorders outputs that alternate between `parts` parts, `size` outputs at a time, so that each part is contiguous:
    /// GPT-NeoX stores query, key and value of a head side by side.
    #[must_use]
    pub(crate) fn by_part(self, size: usize, parts: usize) -> Self {
        let (size, parts) = (size.max(1), parts.max(1));
        let reorder = |row: &[f32]| -> Vec<f32> {
            let of = |part| row.chunks(size).skip(part).step_by(parts).flatten();
            (0..parts).flat_map(of).copied().collect()
        };
        let rows = self.weight.chunks(self.outputs.max(1));
        Self {
            weight: rows.flat_map(reorder).collect(),
            bias: reorder(&self.bias),
            ..self
        }
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
    /// Number of elements of factors and offsets.
    pub(crate) fn elements(&self) -> usize {
        self.gamma.len() + self.beta.as_ref().map_or(0, Vec::len)
    }

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

    /// Adds a constant to the factors: Gemma stores them minus 1.
    #[must_use]
    pub(crate) fn plus(mut self, offset: f32) -> Self {
        self.gamma.iter_mut().for_each(|gamma| *gamma += offset);
        self
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
            .map(|index| LayerWeights::random(rng, &model_config, index))
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
                .map(|index| LayerWeights::random(rng, model_config, index))
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
            if let Some(scale) = self.model_config.embedding_scale {
                for value in &mut vector {
                    *value *= scale;
                }
            }
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
