//! A language model in host memory: layers, embeddings and head. Architectures fill it in.

pub(crate) use super::experts::ExpertWeights;
pub(crate) use super::linear_weights::{LinearWeights, NormWeights};
pub(crate) use super::model_config::{
    LocalAttention, ModelConfig, OutputNorms, Parallel, QueryKeyNorm, QueryScaling,
};
pub(crate) use super::recurrent::RecurrentWeights;
pub(crate) use super::streams::{StreamProjections, StreamWeights};
pub(crate) use super::token_inputs::{PerLayerEmbeddings, PerLayerGate};
use crate::ops::{Activation, RelativeBias};
use crate::precision::{Table, WeightType};

/// Query-key norms, as wide as a head or as all heads ([`QueryKeyNorm`]).
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNorms {
    /// Norm of the queries.
    pub query: NormWeights,
    /// Norm of the keys.
    pub key: NormWeights,
    /// Weights to apply afterwards, if they differ between heads: for all queries; for all keys, with ones for the
    /// values.
    pub factors: Option<[Vec<f32>; 2]>,
}

/// Projection to a latent vector (`DeepSeek`).
#[derive(Debug, Clone, PartialEq)]
pub struct LatentWeights {
    /// The projection.
    pub projection: LinearWeights,
    /// Norm of the vector's first elements.
    pub norm: NormWeights,
}

/// Weights of a layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerWeights {
    /// Whether the layer has the attention of [`ModelConfig::local`].
    pub local: bool,
    /// Norm before attention; `None` without one. ACT blocks hold the attention's input.
    pub attention_norm: Option<NormWeights>,
    /// Query-key norms.
    pub head_norms: Option<HeadNorms>,
    /// Norm after attention.
    pub attention_output_norm: Option<NormWeights>,
    /// Norm after the feed-forward.
    pub feed_forward_output_norm: Option<NormWeights>,
    /// Projection to the latent vector that `query` reads; `None` if it reads the attention's input.
    pub query_latent: Option<LatentWeights>,
    /// Query projection; empty if the layer has no attention.
    pub query: LinearWeights,
    /// Projection to the latent vector that `key_value` reads; `None` if it reads the attention's input.
    pub key_value_latent: Option<LatentWeights>,
    /// Key and value projections, concatenated.
    pub key_value: LinearWeights,
    /// Attention sinks: one score per query head that takes part in the softmax without a value; empty without sinks.
    pub sinks: Vec<f32>,
    /// Relative position bias of this layer; `None`: that of [`ModelConfig::relative_bias`], if any.
    pub relative_bias: Option<RelativeBias>,
    /// Projection from the attention's input to the gates of its output; their sigmoid multiplies the output's
    /// elements.
    pub gate: Option<LinearWeights>,
    /// Norm before the output projection.
    pub attention_sub_norm: Option<NormWeights>,
    /// Output projection.
    pub output: LinearWeights,
    /// Recurrent mixer in place of attention, or parallel to it.
    pub recurrent: Option<RecurrentWeights>,
    /// Norm before the feed-forward; `None` if it shares the attention's input, or has no norm.
    pub feed_forward_norm: Option<NormWeights>,
    /// Up projection; if gated, the gate followed by the up projection. With experts, that of the shared expert;
    /// empty, like the down projection, if there is none.
    pub up: LinearWeights,
    /// Norm before the down projection.
    pub feed_forward_sub_norm: Option<NormWeights>,
    /// Down projection.
    pub down: LinearWeights,
    /// Activation of the feed-forward, if the layer has its own.
    pub activation: Option<Activation>,
    /// Threshold below which gates of the feed-forward become zero, in standard deviations above their mean.
    pub sparsity: Option<f32>,
    /// Experts of the layer.
    pub experts: Option<ExpertWeights>,
    /// Prediction and correction of the AltUp streams.
    pub streams: Option<StreamWeights>,
    /// Gate of the per-layer embedding.
    pub token_gate: Option<PerLayerGate>,
    /// Factor of the layer's output; `None` is 1.
    pub output_scale: Option<f32>,
    /// Whether the layer reuses the keys and values of the last previous layer that computes its own and has the same
    /// `local`; the projection is a copy of that layer's.
    pub reuses_kv: bool,
    /// Cross-attention to the encoder's output, between attention and feed-forward.
    pub cross: Option<CrossWeights>,
}

/// Cross-attention weights of a decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossWeights {
    /// Norm before cross-attention.
    pub norm: NormWeights,
    /// Norm after cross-attention, if there is one.
    pub output_norm: Option<NormWeights>,
    /// Query projection.
    pub query: LinearWeights,
    /// Key and value projections of the encoder's output, concatenated; as wide as those of the self-attention.
    pub key_value: LinearWeights,
    /// Output projection.
    pub output: LinearWeights,
}

/// Embedding of an encoder's tokens: the inputs of its layers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenInputs {
    /// One vector per token; `None` if the decoder's embedding is shared.
    pub embedding: Option<Table>,
    /// Norm of the sum of embedding and position.
    pub norm: Option<NormWeights>,
    /// One vector per position, from the first token on.
    pub positions: Option<Table>,
}

/// An encoder, which reads the whole prompt. Sizes and activation are those of its decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Maximum prompt length, tokens.
    pub context: usize,
    /// Start token of every answer.
    pub start_token: u32,
    /// Whether a classifier's decoder begins with the last token of the text instead of the start token.
    pub starts_with_last: bool,
    /// Bidirectional relative position bias; `None` if the inputs have positions.
    pub relative_bias: Option<RelativeBias>,
    /// Embedding of the prompt's tokens.
    pub inputs: TokenInputs,
    /// Layers, without cross-attention.
    pub layers: Vec<LayerWeights>,
    /// Norm of the output.
    pub final_norm: NormWeights,
}

impl Encoder {
    /// Returns whether the encoder can read prompts of any length: its positions are relative, and `context` is only
    /// its training length.
    pub(crate) fn reads_any_length(&self) -> bool {
        let by_layer = || self.layers.iter().any(|layer| layer.relative_bias.is_some());
        self.relative_bias.is_some() || by_layer()
    }
}

/// A language model with its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// Configuration of the model.
    pub model_config: ModelConfig,
    /// Type of the linear layers' weights after an engine has packed them.
    pub weight_type: WeightType,
    /// One vector per token.
    pub embedding: Table,
    /// Norm after the embedding (BLOOM).
    pub embedding_norm: Option<NormWeights>,
    /// One vector per position, from the first token on; `None` unless positions are learned.
    pub positions: Option<Table>,
    /// Decoder layers.
    pub layers: Vec<LayerWeights>,
    /// Final norm.
    pub final_norm: NormWeights,
    /// Layer before the projection to logits.
    pub head_layer: Option<HeadLayer>,
    /// Projection to one logit per token.
    pub head: LinearWeights,
    /// Encoder of the prompt; `None` for decoder-only models.
    pub encoder: Option<Encoder>,
    /// Per-layer embeddings, if there are any.
    pub per_layer_embeddings: Option<PerLayerEmbeddings>,
    /// Projections from and to AltUp streams, if there are any.
    pub streams: Option<StreamProjections>,
}

/// A layer between the final norm and the projection to logits (`ModernBERT`).
#[derive(Debug, Clone, PartialEq)]
pub struct HeadLayer {
    /// Linear layer, as wide as the hidden states.
    pub linear: LinearWeights,
    /// Activation after the linear layer.
    pub activation: Activation,
    /// Norm after the activation.
    pub norm: NormWeights,
}

impl HeadLayer {
    /// Returns the number of weights.
    pub(crate) fn elements(&self) -> usize {
        self.linear.elements() + self.norm.elements()
    }

    /// Returns the memory of the weights after packing, bytes.
    pub(crate) fn bytes(&self, kind: WeightType) -> usize {
        self.linear.bytes(kind) + size_of::<f32>() * self.norm.elements()
    }
}

impl LayerWeights {
    fn norms(&self) -> impl Iterator<Item = &NormWeights> {
        let norms = self.attention_norm.iter().chain(&self.feed_forward_norm);
        let heads = self.head_norms.iter();
        let heads = heads.flat_map(|norms| [&norms.query, &norms.key]);
        let outputs = self.attention_output_norm.iter();
        let outputs = outputs.chain(&self.feed_forward_output_norm);
        let outputs = outputs
            .chain(&self.attention_sub_norm)
            .chain(&self.feed_forward_sub_norm);
        let latents = self.latents().map(|latent| &latent.norm);
        let cross = self.cross.iter();
        let cross = cross.flat_map(|cross| std::iter::once(&cross.norm).chain(&cross.output_norm));
        let gate = self.token_gate.iter().map(|gate| &gate.norm);
        let streams = self.streams.iter().flat_map(StreamWeights::norms);
        let gate = gate.chain(streams);
        let gate = gate.chain(self.experts.iter().flat_map(ExpertWeights::norms));
        norms
            .chain(heads)
            .chain(outputs)
            .chain(latents)
            .chain(cross)
            .chain(gate)
    }

    fn latents(&self) -> impl Iterator<Item = &LatentWeights> {
        self.query_latent.iter().chain(&self.key_value_latent)
    }

    /// Returns the number of norm and attention weights that are always f32.
    fn exact(&self) -> usize {
        let factors = self.head_norms.iter().filter_map(|norms| norms.factors.as_ref());
        let factors = factors.flatten().map(Vec::len);
        let biases = self.relative_bias.iter().map(|bias| bias.values.len());
        self.norms().map(NormWeights::elements).sum::<usize>()
            + factors.chain(biases).sum::<usize>()
            + self.sinks.len()
            + self.streams.as_ref().map_or(0, StreamWeights::exact)
    }

    fn linears(&self) -> impl Iterator<Item = &LinearWeights> {
        let cross = self.cross.iter();
        let cross = cross.flat_map(|cross| [&cross.query, &cross.key_value, &cross.output]);
        let linears = [&self.query, &self.key_value, &self.output, &self.up, &self.down];
        let latents = self.latents().map(|latent| &latent.projection);
        let gate = self.token_gate.iter().flat_map(PerLayerGate::linears);
        linears
            .into_iter()
            .chain(&self.gate)
            .chain(latents)
            .chain(cross)
            .chain(gate)
            .chain(self.streams.iter().flat_map(StreamWeights::linears))
    }

    /// Encodes the weights of the linear layers as this type.
    #[must_use]
    pub(crate) fn stored_as(self, kind: WeightType) -> Self {
        let of = |linear: LinearWeights| linear.stored_as(kind);
        let latent = |latent: LatentWeights| LatentWeights {
            projection: of(latent.projection),
            ..latent
        };
        Self {
            query_latent: self.query_latent.map(latent),
            query: of(self.query),
            key_value_latent: self.key_value_latent.map(latent),
            key_value: of(self.key_value),
            gate: self.gate.map(of),
            output: of(self.output),
            recurrent: self.recurrent.map(|recurrent| recurrent.stored_as(kind)),
            up: of(self.up),
            down: of(self.down),
            experts: self.experts.map(|experts| experts.stored_as(kind)),
            token_gate: self.token_gate.map(|gate| gate.stored_as(kind)),
            streams: self.streams.map(|streams| streams.stored_as(kind)),
            cross: self.cross.map(|cross| CrossWeights {
                query: of(cross.query),
                key_value: of(cross.key_value),
                output: of(cross.output),
                norm: cross.norm,
                output_norm: cross.output_norm,
            }),
            ..self
        }
    }

    /// Returns the number of elements of all tensors.
    pub(crate) fn elements(&self) -> usize {
        self.exact()
            + self.linears().map(LinearWeights::elements).sum::<usize>()
            + self.recurrent.as_ref().map_or(0, RecurrentWeights::elements)
            + self.experts.as_ref().map_or(0, ExpertWeights::elements)
    }

    /// Returns the memory of all tensors if the linear layers have weights of this type, bytes.
    pub(crate) fn bytes(&self, kind: WeightType) -> usize {
        let experts = self.experts.as_ref();
        let experts = experts.map_or(0, |experts| experts.bytes(kind));
        let recurrent = self.recurrent.as_ref();
        let recurrent = recurrent.map_or(0, |recurrent| recurrent.bytes(kind));
        size_of::<f32>() * self.exact()
            + experts
            + recurrent
            + self.linears().map(|linear| linear.bytes(kind)).sum::<usize>()
    }

    /// Returns whether the layer has attention, and therefore a KV cache.
    pub(crate) fn has_attention(&self) -> bool {
        self.query.outputs > 0
    }

    /// Returns the number of elements of the recurrent state per sequence.
    pub(crate) fn state_elements(&self) -> usize {
        let recurrent = self.recurrent.as_ref();
        recurrent.map_or(0, |recurrent| recurrent.recurrence.state_elements())
    }
}

impl Decoder {
    /// Creates a decoder-only model without a head, which the registry adds.
    pub(super) fn without_head(
        model_config: ModelConfig,
        embedding: Vec<f32>,
        layers: Vec<LayerWeights>,
        final_norm: NormWeights,
    ) -> Self {
        Self {
            weight_type: WeightType::F32,
            embedding: Table::new(embedding, model_config.width),
            embedding_norm: None,
            positions: None,
            layers,
            final_norm,
            head_layer: None,
            head: LinearWeights::default(),
            encoder: None,
            per_layer_embeddings: None,
            streams: None,
            model_config,
        }
    }

    /// Returns the maximum prompt length, tokens; for a decoder, the answer counts towards it.
    pub(crate) fn longest_prompt(&self) -> usize {
        self.encoder
            .as_ref()
            .map_or(self.model_config.context, |encoder| encoder.context)
    }

    /// Returns the number of layers, including the encoder.
    pub fn depth(&self) -> usize {
        self.layers.len() + self.encoder.as_ref().map_or(0, |encoder| encoder.layers.len())
    }

    /// Returns the number of layers with attention, which have a KV cache.
    pub(crate) fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.has_attention()).count()
    }

    /// Returns the memory of a request's recurrent states, bytes.
    pub(crate) fn state_bytes(&self) -> u64 {
        let elements: usize = self.layers.iter().map(LayerWeights::state_elements).sum();
        (elements * size_of::<f32>()) as u64
    }

    /// Embeds tokens, the first of which has position `first`; returns one row each. The caller must reject tokens
    /// outside the vocabulary and positions outside the context; here they give zeros. `head` reads the embedding if
    /// it is stored as the head's weight.
    pub(crate) fn embed(&self, tokens: &[u32], first: usize, head: impl Fn(usize, &mut [f32])) -> Vec<f32> {
        let added = (self.positions.as_ref(), self.embedding_norm.as_ref());
        self.embed_with(tokens, first, (&self.embedding, added), head)
    }

    /// Embeds a prompt for the encoder with these inputs, like [`Decoder::embed`].
    pub(crate) fn embed_prompt(
        &self,
        tokens: &[u32],
        inputs: &TokenInputs,
        head: impl Fn(usize, &mut [f32]),
    ) -> Vec<f32> {
        let added = (inputs.positions.as_ref(), inputs.norm.as_ref());
        let embedding = inputs.embedding.as_ref().unwrap_or(&self.embedding);
        self.embed_with(tokens, 0, (embedding, added), head)
    }

    fn embed_with(
        &self,
        tokens: &[u32],
        first: usize,
        (embedding, (positions, norm)): (&Table, (Option<&Table>, Option<&NormWeights>)),
        head: impl Fn(usize, &mut [f32]),
    ) -> Vec<f32> {
        let width = self.model_config.width;
        let mut out = vec![0.0; tokens.len() * width];
        let vectors = out.chunks_exact_mut(width.max(1));
        for ((position, token), vector) in (first..).zip(tokens).zip(vectors) {
            if embedding.is_empty() {
                head(*token as usize, vector);
            } else {
                embedding.read_row(*token as usize, vector);
            }
            if let Some(scale) = self.model_config.embedding_scale {
                for value in &mut *vector {
                    *value *= scale;
                }
            }
            if let Some(positions) = positions {
                positions.add_row(position, vector);
            }
            if let Some(norm) = norm {
                norm.apply(vector, self.model_config.epsilon);
            }
        }
        out
    }

    /// Encodes embeddings and linear layers as a type, in which engines will pack the layers.
    #[must_use]
    pub fn stored_as(mut self, kind: WeightType) -> Self {
        self.weight_type = kind;
        self.embedding = self.embedding.stored_as(kind.of_embeddings());
        let table = |positions: Option<Table>| positions.map(|table| table.stored_as(kind.of_embeddings()));
        self.positions = table(self.positions);
        if let Some(encoder) = &mut self.encoder {
            encoder.inputs.positions = table(encoder.inputs.positions.take());
            encoder.inputs.embedding = table(encoder.inputs.embedding.take());
        }
        self.head = self.head.stored_as(kind.of_embeddings());
        self.head_layer = self.head_layer.map(|layer| HeadLayer {
            linear: layer.linear.stored_as(kind),
            ..layer
        });
        self.per_layer_embeddings = self.per_layer_embeddings.map(|layers| layers.stored_as(kind));
        self.streams = self.streams.map(|streams| streams.stored_as(kind));
        self.layers = self
            .layers
            .into_iter()
            .map(|layer| layer.stored_as(kind))
            .collect();
        self
    }
}
