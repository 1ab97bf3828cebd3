//! A language model in host memory: its layers, embeddings and head. The architectures fill them in.

pub(crate) use super::experts::ExpertWeights;
pub(crate) use super::linear_weights::{LinearWeights, NormWeights};
pub(crate) use super::model_config::{
    LocalAttention, ModelConfig, OutputNorms, Parallel, QueryGrowth, QueryKeyNorm,
};
pub(crate) use super::recurrent::RecurrentWeights;
pub(crate) use super::streams::{StreamProjections, StreamWeights};
pub(crate) use super::token_inputs::{TokenGate, TokenLayers};
use crate::ops::{Activation, RelativeBias};
use crate::precision::{Table, WeightType};

/// Norms of queries and keys, as wide as a head or as all heads ([`QueryKeyNorm`]).
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNorms {
    /// Of the queries.
    pub query: NormWeights,
    /// Of the keys.
    pub key: NormWeights,
    /// Factors that follow, if every head has its own: of all queries; of all keys, and ones for the values.
    pub factors: Option<[Vec<f32>; 2]>,
}

/// A projection to a latent vector that another projection reads (`DeepSeek`).
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
    /// Whether the attention sees the window of [`ModelConfig::local`] only.
    pub local: bool,
    /// Norm before the attention; `None` if it reads the hidden vectors themselves. ACT blocks hold the attention's input.
    pub attention_norm: Option<NormWeights>,
    /// Norms of queries and keys, before they are rotated.
    pub head_norms: Option<HeadNorms>,
    /// Norm of the attention's output.
    pub attention_output_norm: Option<NormWeights>,
    /// Norm of the feed-forward layer's output.
    pub feed_forward_output_norm: Option<NormWeights>,
    /// Latent vector that the query projection reads; `None` if it reads the attention's input.
    pub query_latent: Option<LatentWeights>,
    /// Query projection; empty if the layer has no attention.
    pub query: LinearWeights,
    /// Latent vector that the projections of keys and values read; `None` if they read the attention's input.
    pub key_value_latent: Option<LatentWeights>,
    /// Key and value projections, concatenated.
    pub key_value: LinearWeights,
    /// One score per query head that takes part in the softmax without a value; empty if there is none.
    pub sinks: Vec<f32>,
    /// Relative positions of this layer; `None`: those of [`ModelConfig::relative_bias`], if any.
    pub relative_bias: Option<RelativeBias>,
    /// Projection of the attention's input to the gates of its heads' elements; their sigmoid multiplies them.
    pub gate: Option<LinearWeights>,
    /// Norm of what the output projection reads.
    pub heads_norm: Option<NormWeights>,
    /// Output projection.
    pub output: LinearWeights,
    /// Recurrent mixer in place of the attention, or beside it.
    pub recurrent: Option<RecurrentWeights>,
    /// Norm before the feed-forward layer; `None` if it has the attention's input, or reads the hidden vectors themselves.
    pub feed_forward_norm: Option<NormWeights>,
    /// Up projection; if gated, the gate followed by the values. Empty, like the down projection, if the layer has only
    /// experts that are chosen; that of the shared expert if it has one.
    pub up: LinearWeights,
    /// Norm of what the down projection reads.
    pub inner_norm: Option<NormWeights>,
    /// Down projection.
    pub down: LinearWeights,
    /// Activation of the feed-forward layer, if the layer has its own.
    pub activation: Option<Activation>,
    /// Where the gates of the feed-forward layer are cut off, standard deviations above their mean: what is below is zero.
    pub sparsity: Option<f32>,
    /// Experts of which each token uses a few.
    pub experts: Option<ExpertWeights>,
    /// How the layer changes the streams beside the hidden vectors.
    pub streams: Option<StreamWeights>,
    /// How the layer reads what tokens bring for it.
    pub token_gate: Option<TokenGate>,
    /// Factor of the layer's output; `None` is 1.
    pub output_scale: Option<f32>,
    /// Whether keys and values are those of the last layer before it that computes its own and is local or not, as it is; the
    /// projection is a copy of that layer's.
    pub reuses_kv: bool,
    /// Cross-attention to the encoder's output, between attention and feed-forward layer.
    pub cross: Option<CrossWeights>,
}

/// Weights of a decoder layer's cross-attention.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossWeights {
    /// Norm before it.
    pub norm: NormWeights,
    /// Norm of its output, if there is one.
    pub output_norm: Option<NormWeights>,
    /// Query projection.
    pub query: LinearWeights,
    /// Projection of the encoder's output to keys and values, concatenated; as wide as those of the self-attention.
    pub key_value: LinearWeights,
    /// Output projection.
    pub output: LinearWeights,
}

/// How an encoder's tokens are embedded, and what is added to them before the layers read them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenInputs {
    /// One vector per token; `None` if they are those of the decoder.
    pub embedding: Option<Table>,
    /// Norm of the sum.
    pub norm: Option<NormWeights>,
    /// One vector per position, from the first token on.
    pub positions: Option<Table>,
}

/// An encoder: it reads the whole prompt. Sizes, activation and embedding are those of its decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Maximum tokens of a prompt.
    pub context: usize,
    /// First token of every answer.
    pub start_token: u32,
    /// Relative positions, in both directions; `None` if the inputs have positions.
    pub relative_bias: Option<RelativeBias>,
    /// What is added to its embedded tokens.
    pub inputs: TokenInputs,
    /// Layers, without cross-attention.
    pub layers: Vec<LayerWeights>,
    /// Norm of the output.
    pub final_norm: NormWeights,
}

impl Encoder {
    /// Whether it reads prompts of any length: its positions are distances, and `context` is that of its training.
    pub(crate) fn reads_any_length(&self) -> bool {
        let by_layer = || self.layers.iter().any(|layer| layer.relative_bias.is_some());
        self.relative_bias.is_some() || by_layer()
    }
}

/// A language model with its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// Its configuration.
    pub model_config: ModelConfig,
    /// Type of the linear layers' weights once an engine has prepared them.
    pub weight_type: WeightType,
    /// One vector per token.
    pub embedding: Table,
    /// Norm of the embedded tokens (BLOOM).
    pub embedding_norm: Option<NormWeights>,
    /// One vector per position, from the first token on; `None` unless positions are learned.
    pub positions: Option<Table>,
    /// Its layers.
    pub layers: Vec<LayerWeights>,
    /// Final norm.
    pub final_norm: NormWeights,
    /// Layer before the projection to logits.
    pub head_layer: Option<HeadLayer>,
    /// Projection to one logit per token.
    pub head: LinearWeights,
    /// Encoder of the prompt; `None` for decoder-only models.
    pub encoder: Option<Encoder>,
    /// What tokens bring for each layer, if they do.
    pub token_layers: Option<TokenLayers>,
    /// How streams beside the hidden vectors begin and end, if there are any.
    pub streams: Option<StreamProjections>,
}

/// A layer between the final norm and the projection to logits (`ModernBERT`).
#[derive(Debug, Clone, PartialEq)]
pub struct HeadLayer {
    /// Linear layer, as wide as the hidden vectors.
    pub linear: LinearWeights,
    /// Its activation.
    pub activation: Activation,
    /// Norm after it.
    pub norm: NormWeights,
}

impl HeadLayer {
    /// Number of its weights.
    pub(crate) fn elements(&self) -> usize {
        self.linear.elements() + self.norm.elements()
    }

    /// Memory of its weights once they are prepared, bytes.
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
        let outputs = outputs.chain(&self.heads_norm).chain(&self.inner_norm);
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

    /// Number of weights of norms and attention that are always f32.
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
        let gate = self.token_gate.iter().flat_map(TokenGate::linears);
        linears
            .into_iter()
            .chain(&self.gate)
            .chain(latents)
            .chain(cross)
            .chain(gate)
            .chain(self.streams.iter().flat_map(StreamWeights::linears))
    }

    /// Encodes the weights of the linear layers in a type.
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

    /// Number of elements of all tensors.
    pub(crate) fn elements(&self) -> usize {
        self.exact()
            + self.linears().map(LinearWeights::elements).sum::<usize>()
            + self.recurrent.as_ref().map_or(0, RecurrentWeights::elements)
            + self.experts.as_ref().map_or(0, ExpertWeights::elements)
    }

    /// Memory of all tensors if the linear layers have weights of this type, bytes.
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

    /// Whether the layer has an attention, whose tokens are cached.
    pub(crate) fn has_attention(&self) -> bool {
        self.query.outputs > 0
    }

    /// Number of elements of the state that the layer keeps of a sequence.
    pub(crate) fn state_elements(&self) -> usize {
        let recurrent = self.recurrent.as_ref();
        recurrent.map_or(0, |recurrent| recurrent.recurrence.state_elements())
    }
}

impl Decoder {
    /// A decoder-only model as an architecture reads it: the registry adds the head.
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
            token_layers: None,
            streams: None,
            model_config,
        }
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

    /// Number of layers with an attention, whose tokens are cached.
    pub(crate) fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.has_attention()).count()
    }

    /// Memory of the recurrent states of a request, bytes.
    pub(crate) fn state_bytes(&self) -> u64 {
        let elements: usize = self.layers.iter().map(LayerWeights::state_elements).sum();
        (elements * size_of::<f32>()) as u64
    }

    /// Embeds tokens, the first of which has position `first`: one row each. The caller must reject tokens beyond the
    /// vocabulary and positions beyond the context; here they are zeros. `head` reads the embedding if it is the head's
    /// weight.
    pub(crate) fn embed(&self, tokens: &[u32], first: usize, head: impl Fn(usize, &mut [f32])) -> Vec<f32> {
        let added = (self.positions.as_ref(), self.embedding_norm.as_ref());
        self.embed_with(tokens, first, (&self.embedding, added), head)
    }

    /// Embeds a prompt for the encoder whose inputs these are, as [`Decoder::embed`].
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

    /// Stores embeddings and linear layers in a type, and lets engines prepare the layers in it.
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
        self.token_layers = self.token_layers.map(|layers| layers.stored_as(kind));
        self.streams = self.streams.map(|streams| streams.stored_as(kind));
        self.layers = self
            .layers
            .into_iter()
            .map(|layer| layer.stored_as(kind))
            .collect();
        self
    }
}
