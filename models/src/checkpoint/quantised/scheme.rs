//! The trait of a way of storing quantised weights, and the names of a weight's tensors.

use std::fmt::Debug;

use safetensors::Dtype;

use super::stored::{Fault, Stored};
use crate::precision::WeightType;

/// The key of `config.json`.
pub(crate) const KEY: &str = "quantization_config";
/// A tensor's role, and the name that it has for a weight.
pub(in crate::checkpoint) type Part = (&'static str, String);

/// A way of storing quantised weights.
pub(in crate::checkpoint) trait Scheme: Debug + Send + Sync {
    /// The type of the weights in memory, unless another one is requested.
    fn weight_type(&self) -> WeightType;

    /// The tensors that can hold the weight `name`; none if weights of such a name are never quantised.
    fn tensors(&self, name: &str) -> Vec<Part>;

    /// Whether a tensor of this type that has the weight's own name holds codes.
    fn is_code(&self, dtype: Dtype) -> bool;

    /// Whether matrices that the model stores as `[inputs, outputs]` (GPT-2) are `[outputs, inputs]` once quantised.
    fn is_output_major(&self) -> bool {
        true
    }

    /// Decodes a weight of shape `shape`, row-major.
    ///
    /// # Errors
    /// [`Fault`] if the tensors do not hold such a weight.
    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault>;

    /// Whether a tensor of this name concerns activations only.
    fn is_unused(&self, _name: &str) -> bool {
        false
    }

    /// Whether programs of this scheme save a tensor of this name also where the model has none, with zeros.
    fn may_be_zeros(&self, _name: &str) -> bool {
        false
    }
}

/// Returns the name of a module's tensor `end` beside its tensor `weight`; `None` for a tensor of another name.
pub(super) fn beside(name: &str, end: &str) -> Option<String> {
    let module = name.strip_suffix("weight")?;
    (module.is_empty() || module.ends_with('.')).then(|| format!("{module}{end}"))
}

/// Returns a module's tensors beside its tensor `weight`, each named by its role; none beside a tensor of another name.
pub(super) fn all_beside(name: &str, roles: &[&'static str]) -> Vec<Part> {
    let roles = roles.iter();
    roles
        .filter_map(|role| Some((*role, beside(name, role)?)))
        .collect()
}

/// Returns the product of sizes.
pub(super) fn product(shape: &[usize]) -> Result<usize, Fault> {
    let product = shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    product.ok_or_else(|| Fault::Reason(format!("its shape {shape:?} is too large")))
}
