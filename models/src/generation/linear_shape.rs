//! The shape of a linear layer in host memory.

use crate::precision::WeightType;

/// Size of a linear layer, and the type of its weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinearShape {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) kind: WeightType,
}
