//! Epilogue of a convolution, computed in the same pass.

use super::{Activation, Ops};

/// Operations on the result of a convolution: first the sum, then the activation.
#[derive(Debug)]
pub struct Epilogue<'a, M> {
    /// Matrix to add to the result, of the same shape.
    pub residual: Option<&'a M>,
    /// Activation to apply to the sum.
    pub activation: Option<Activation>,
}

impl<M> Clone for Epilogue<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Epilogue<'_, M> {}

impl<M> Default for Epilogue<'_, M> {
    fn default() -> Self {
        Self {
            residual: None,
            activation: None,
        }
    }
}

impl<M> From<Activation> for Epilogue<'_, M> {
    fn from(activation: Activation) -> Self {
        Self {
            residual: None,
            activation: Some(activation),
        }
    }
}

impl<M> Epilogue<'_, M> {
    /// Applies the epilogue to a finished result.
    pub(crate) fn apply<O: Ops<Matrix = M>>(&self, ops: &O, mut rows: M) -> M {
        if let Some(residual) = self.residual {
            ops.add(&mut rows, residual);
        }
        match self.activation {
            Some(activation) => ops.activate(rows, activation, false),
            None => rows,
        }
    }
}
