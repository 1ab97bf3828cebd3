//! The shape of a linear layer in host memory.

use crate::precision::WeightType;

/// Size of a linear layer, and the type of its weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearShape {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) kind: WeightType,
}
