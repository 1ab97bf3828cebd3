//! Per-layer embeddings: inputs that each token adds in every layer, besides its embedding (Gemma 4).

use super::linear_weights::{LinearWeights, NormWeights};
use crate::precision::{Table, WeightType};

/// Gate of a layer's per-layer embedding: the hidden states gate the embedding, and its projection is added to them.
#[derive(Debug, Clone, PartialEq)]
pub struct PerLayerGate {
    /// Projection of the hidden states to the gate.
    pub gate: LinearWeights,
    /// Projection of the gated input to hidden states.
    pub projection: LinearWeights,
    /// Norm of the result.
    pub norm: NormWeights,
}

impl PerLayerGate {
    /// Returns the linear layers.
    pub(super) fn linears(&self) -> [&LinearWeights; 2] {
        [&self.gate, &self.projection]
    }

    /// Encodes the weights of the linear layers as this type.
    #[must_use]
    pub(super) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            gate: self.gate.stored_as(kind),
            projection: self.projection.stored_as(kind),
            ..self
        }
    }
}

/// Per-layer embeddings of all layers: a table row per token, plus a projection of the token's embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct PerLayerEmbeddings {
    /// Elements per layer.
    pub width: usize,
    /// One row per token, `[vocabulary, layers * width]`.
    pub table: Table,
    /// Factor of the table.
    pub table_scale: f32,
    /// Projection of the embedding, `[width, layers * width]`.
    pub projection: LinearWeights,
    /// Factor of the projection.
    pub projection_scale: f32,
    /// Norm of each layer's part of the projection.
    pub norm: NormWeights,
}

impl PerLayerEmbeddings {
    /// Returns the number of weights.
    pub(crate) fn elements(&self) -> usize {
        self.table.elements() + self.projection.elements() + self.norm.elements()
    }

    /// Returns the memory if the projection has weights of this type, bytes.
    pub(crate) fn bytes(&self, kind: WeightType) -> usize {
        self.table.bytes() + self.projection.bytes(kind) + size_of::<f32>() * self.norm.elements()
    }

    /// Encodes the projection as this type, and the table as the corresponding type of embeddings.
    #[must_use]
    pub(crate) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            table: self.table.stored_as(kind.of_embeddings()),
            projection: self.projection.stored_as(kind),
            ..self
        }
    }
}
