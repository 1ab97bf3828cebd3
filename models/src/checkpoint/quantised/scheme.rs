//! The trait of quantisation schemes, and helpers for tensor names.

use std::fmt::Debug;

use safetensors::Dtype;

use super::stored::{Fault, Stored};
use crate::precision::WeightType;

/// Key of the quantisation settings in `config.json`.
pub(crate) const KEY: &str = "quantization_config";
/// Role of a tensor, with its name for a given weight.
pub(in crate::checkpoint) type Part = (&'static str, String);

/// A quantisation scheme.
pub(in crate::checkpoint) trait Scheme: Debug + Send + Sync {
    /// Returns the type of the weights in memory, unless another type is requested.
    fn weight_type(&self) -> WeightType;

    /// Returns the tensors that can hold the weight `name`; empty if weights of this name are never quantised.
    fn tensors(&self, name: &str) -> Vec<Part>;

    /// Returns whether a tensor with the weight's own name holds codes, by its type.
    fn is_code(&self, dtype: Dtype) -> bool;

    /// Returns whether matrices that the model stores as `[inputs, outputs]` (GPT-2) are `[outputs, inputs]` when
    /// quantised.
    fn is_output_major(&self) -> bool {
        true
    }

    /// Decodes a weight of shape `shape`, row-major.
    ///
    /// # Errors
    /// [`Fault`] if the tensors do not hold a weight of this shape.
    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault>;

    /// Returns whether a tensor of this name concerns only activations.
    fn is_unused(&self, _name: &str) -> bool {
        false
    }

    /// Returns whether writers of this scheme may save a tensor of this name as zeros although the model has none.
    fn may_be_zeros(&self, _name: &str) -> bool {
        false
    }
}

/// Returns the name of a module's tensor `end`, given that of its `weight`; `None` for other tensors.
pub(super) fn beside(name: &str, end: &str) -> Option<String> {
    let module = name.strip_suffix("weight")?;
    (module.is_empty() || module.ends_with('.')).then(|| format!("{module}{end}"))
}

/// Returns the names of a module's tensors by role, given that of its `weight`; empty for other tensors.
pub(super) fn all_beside(name: &str, roles: &[&'static str]) -> Vec<Part> {
    let roles = roles.iter();
    roles
        .filter_map(|role| Some((*role, beside(name, role)?)))
        .collect()
}

/// Returns the product of sizes; fails on overflow.
pub(super) fn product(shape: &[usize]) -> Result<usize, Fault> {
    let product = shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    product.ok_or_else(|| Fault::Reason(format!("its shape {shape:?} is too large")))
}
