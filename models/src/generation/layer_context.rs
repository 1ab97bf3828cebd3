//! What all layers of a pass share.

use crate::decoder::weights::ModelConfig;
use crate::ops::Ops;

/// Context shared by all layers: operations, model configuration, position bias.
pub(super) struct LayerContext<'a, M: Ops> {
    pub(super) ops: &'a M,
    pub(super) model_config: &'a ModelConfig,
    /// Position bias, if positions are relative and layers have none of their own.
    pub(super) position_bias: Option<&'a M::Matrix>,
    /// What the tokens bring for the layer, if they do.
    pub(super) token_input: Option<&'a M::Matrix>,
}

impl<M: Ops> Clone for LayerContext<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Ops> Copy for LayerContext<'_, M> {}
