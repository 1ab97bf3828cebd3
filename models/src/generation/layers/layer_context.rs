//! Inputs that all layers of a pass share.

use crate::decoder::weights::ModelConfig;
use crate::ops::Ops;

/// Context shared by all layers: operations, model configuration, position bias.
pub(crate) struct LayerContext<'a, M: Ops> {
    pub(crate) ops: &'a M,
    pub(crate) model_config: &'a ModelConfig,
    /// Relative position bias, if there is one and layers have none of their own.
    pub(crate) position_bias: Option<&'a M::Matrix>,
    /// Per-layer embeddings of the tokens for this layer, if there are any.
    pub(crate) token_input: Option<&'a M::Matrix>,
}

impl<M: Ops> Clone for LayerContext<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Ops> Copy for LayerContext<'_, M> {}
