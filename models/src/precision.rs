//! Weight types: the storage format of weights in memory and in files.

mod blocks;
mod codec;
mod embedding_table;
mod half_floats;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use blocks::{BLOCK, Q4_0_BYTES, Q8_0_BYTES, quantise_q4_0, quantise_q8_0};
pub(crate) use codec::{decode, encode};
pub use embedding_table::Table;
pub(crate) use half_floats::f16_to_f32;

/// Storage type of the weights of a model's linear layers, convolutions and embeddings. Norms, biases, activations and
/// accumulators are f32; only products with a quantised type round activations to 16 bits, in blocks of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum WeightType {
    /// 32-bit floating point.
    #[default]
    F32,
    /// The upper 16 bits of an f32: the same range, 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision, maximum 65,504.
    F16,
    /// GGML's `Q8_0`: blocks of 32 weights, 8 bits each, with a scale in f16.
    Q8_0,
    /// GGML's `Q4_0`: blocks of 32 weights, 4 bits each, with a scale in f16. Embeddings and the head of a language
    /// model then use [`WeightType::Q8_0`], because their error affects every token.
    Q4_0,
}

/// The name is not a weight type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a type of weights; use f32, bf16, f16, q8_0 or q4_0")]
pub struct UnknownWeightType(String);

impl WeightType {
    /// All types, from the largest to the smallest.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::Q8_0, Self::Q4_0];

    /// Returns the name in app.toml and in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Returns whether weights are stored in blocks with a shared scale.
    pub const fn is_quantised(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// Returns the size of `weights` weights, bytes; for a quantised type, the size of their whole blocks.
    pub const fn bytes(self, weights: usize) -> usize {
        match self {
            Self::F32 => 4 * weights,
            Self::Bf16 | Self::F16 => 2 * weights,
            Self::Q8_0 => weights / BLOCK * Q8_0_BYTES,
            Self::Q4_0 => weights / BLOCK * Q4_0_BYTES,
        }
    }

    /// Returns the type of the embeddings and the head of a language model whose layers have this type.
    #[must_use]
    pub(crate) const fn of_embeddings(self) -> Self {
        match self {
            Self::Q4_0 => Self::Q8_0,
            other => other,
        }
    }

    /// Returns this type if it can represent the rows of a matrix, `inputs` values each, else f32: the block size must
    /// divide `inputs`, and no value may become infinite.
    #[must_use]
    pub(crate) fn for_rows(self, inputs: usize, values: &[f32]) -> Self {
        let largest = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        // Rounding to the type may give infinity, so the checks apply to the rounded maximum.
        let fits = match self {
            Self::F32 => true,
            Self::Bf16 => half::bf16::from_f32(largest(values)).is_finite(),
            Self::F16 => half::f16::from_f32(largest(values)).is_finite(),
            Self::Q8_0 => {
                inputs.is_multiple_of(BLOCK) && half::f16::from_f32(largest(values) / 127.0).is_finite()
            }
            Self::Q4_0 => {
                inputs.is_multiple_of(BLOCK) && half::f16::from_f32(largest(values) / 8.0).is_finite()
            }
        };
        if fits { self } else { Self::F32 }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightType {
    type Err = UnknownWeightType;

    fn from_str(name: &str) -> Result<Self, UnknownWeightType> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownWeightType(name.to_owned()))
    }
}

impl TryFrom<String> for WeightType {
    type Error = UnknownWeightType;

    fn try_from(name: String) -> Result<Self, UnknownWeightType> {
        name.parse()
    }
}

impl From<WeightType> for String {
    fn from(kind: WeightType) -> Self {
        kind.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in WeightType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "int8".parse::<WeightType>().unwrap_err();
        assert!(error.to_string().contains("q8_0"), "{error}");
    }

    #[test]
    fn a_type_that_cannot_represent_a_matrix_gives_way_to_f32() {
        let of = |kind: WeightType, inputs, value: f32| kind.for_rows(inputs, &[0.5, -value]);
        assert_eq!(of(WeightType::Q8_0, 64, 1.0), WeightType::Q8_0);
        assert_eq!(of(WeightType::Q8_0, 48, 1.0), WeightType::F32);
        assert_eq!(of(WeightType::F16, 48, 65_504.0), WeightType::F16);
        assert_eq!(of(WeightType::F16, 48, 65_520.0), WeightType::F32);
        assert_eq!(of(WeightType::Q4_0, 32, 1e6), WeightType::F32);
        assert_eq!(of(WeightType::Bf16, 32, 1e38), WeightType::Bf16);
        assert_eq!(of(WeightType::Bf16, 32, f32::MAX), WeightType::F32);
    }

    #[test]
    fn sizes_are_those_of_ggml() {
        assert_eq!(
            WeightType::ALL.map(|kind| kind.bytes(64)),
            [256, 128, 128, 68, 36]
        );
    }
}
