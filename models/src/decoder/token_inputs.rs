//! What tokens bring for each layer, beside the hidden vectors that all layers change (Gemma 4).

use super::linear_weights::{LinearWeights, NormWeights};
use crate::precision::{Table, WeightType};

/// How a layer reads what every token brings for it: gated by the layer's hidden vectors, it is added to them.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenGate {
    /// Projection of the hidden vectors to the gate.
    pub gate: LinearWeights,
    /// Projection of the gated input to hidden vectors.
    pub projection: LinearWeights,
    /// Norm of the result.
    pub norm: NormWeights,
}

impl TokenGate {
    /// The linear layers.
    pub(super) fn linears(&self) -> [&LinearWeights; 2] {
        [&self.gate, &self.projection]
    }

    /// Encodes the weights of the linear layers in a type.
    #[must_use]
    pub(super) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            gate: self.gate.stored_as(kind),
            projection: self.projection.stored_as(kind),
            ..self
        }
    }
}

/// What every token brings for all layers: its row of a table, and a projection of its embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLayers {
    /// Elements for a layer.
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

impl TokenLayers {
    /// Number of weights.
    pub(crate) fn elements(&self) -> usize {
        self.table.elements() + self.projection.elements() + self.norm.elements()
    }

    /// Memory if the projection has weights of this type, bytes.
    pub(crate) fn bytes(&self, kind: WeightType) -> usize {
        self.table.bytes() + self.projection.bytes(kind) + size_of::<f32>() * self.norm.elements()
    }

    /// Encodes the weights of the projection in a type, those of the table in that of embeddings.
    #[must_use]
    pub(crate) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            table: self.table.stored_as(kind.of_embeddings()),
            projection: self.projection.stored_as(kind),
            ..self
        }
    }
}
