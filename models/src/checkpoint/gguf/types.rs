//! Tensor types: the block formats of their rows.

use super::{blocks, super_blocks};
use crate::precision::{WeightType, decode};

/// A supported tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    Iq4Nl,
    Iq4Xs,
}

/// Supported types: number in the format, type, name, weights and bytes per block.
const READ: [(u32, TensorType, &str, usize, usize); 16] = [
    (0, TensorType::F32, "F32", 1, 4),
    (1, TensorType::F16, "F16", 1, 2),
    (30, TensorType::Bf16, "BF16", 1, 2),
    (2, TensorType::Q4_0, "Q4_0", 32, 18),
    (3, TensorType::Q4_1, "Q4_1", 32, 20),
    (6, TensorType::Q5_0, "Q5_0", 32, 22),
    (7, TensorType::Q5_1, "Q5_1", 32, 24),
    (8, TensorType::Q8_0, "Q8_0", 32, 34),
    (10, TensorType::Q2K, "Q2_K", 256, 84),
    (11, TensorType::Q3K, "Q3_K", 256, 110),
    (12, TensorType::Q4K, "Q4_K", 256, 144),
    (13, TensorType::Q5K, "Q5_K", 256, 176),
    (14, TensorType::Q6K, "Q6_K", 256, 210),
    (15, TensorType::Q8K, "Q8_K", 256, 292),
    (20, TensorType::Iq4Nl, "IQ4_NL", 32, 18),
    (23, TensorType::Iq4Xs, "IQ4_XS", 256, 136),
];

/// Unsupported types of the format.
const OTHERS: [(u32, &str); 18] = [
    (9, "Q8_1"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl TensorType {
    /// Returns the type with this number. The error names the type.
    pub(super) fn of(number: u32) -> Result<Self, String> {
        if let Some((_, kind, ..)) = READ.iter().find(|(id, ..)| *id == number) {
            return Ok(*kind);
        }
        let named = OTHERS.iter().find(|(id, _)| *id == number);
        let read: Vec<&str> = READ.iter().map(|(_, _, name, ..)| *name).collect();
        Err(match named {
            Some((_, name)) => format!("has the type {name}; {} are read", read.join(", ")),
            None => format!("has the unknown type {number}"),
        })
    }

    fn entry(self) -> (&'static str, usize, usize) {
        let found = READ.iter().find(|(_, kind, ..)| *kind == self);
        found.map_or(("F32", 1, 4), |(_, _, name, weights, bytes)| {
            (*name, *weights, *bytes)
        })
    }

    /// Returns the name of the type.
    pub(super) fn name(self) -> &'static str {
        self.entry().0
    }

    /// Returns the bytes of a row of `weights` weights; `None` if the block size does not divide it, or it is too
    /// long.
    pub(super) fn row_bytes(self, weights: usize) -> Option<usize> {
        let (_, each, bytes) = self.entry();
        weights
            .is_multiple_of(each)
            .then(|| (weights / each).checked_mul(bytes))
            .flatten()
    }

    /// Returns the weight type that holds these weights without loss; `None` if there is none.
    pub(super) fn weight_type(self) -> Option<WeightType> {
        match self {
            Self::F32 => Some(WeightType::F32),
            Self::F16 => Some(WeightType::F16),
            Self::Bf16 => Some(WeightType::Bf16),
            Self::Q8_0 => Some(WeightType::Q8_0),
            Self::Q4_0 => Some(WeightType::Q4_0),
            _ => None,
        }
    }

    /// Decodes `out.len()` weights from whole blocks.
    pub(super) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => decode(bytes, WeightType::F32, out),
            Self::F16 => decode(bytes, WeightType::F16, out),
            Self::Bf16 => decode(bytes, WeightType::Bf16, out),
            Self::Q8_0 => decode(bytes, WeightType::Q8_0, out),
            Self::Q4_0 => decode(bytes, WeightType::Q4_0, out),
            Self::Q4_1 => each(bytes, out, blocks::q4_1),
            Self::Q5_0 => each(bytes, out, blocks::q5_0),
            Self::Q5_1 => each(bytes, out, blocks::q5_1),
            Self::Iq4Nl => each(bytes, out, blocks::iq4_nl),
            Self::Q2K => each(bytes, out, super_blocks::q2_k),
            Self::Q3K => each(bytes, out, super_blocks::q3_k),
            Self::Q4K => each(bytes, out, super_blocks::q4_k),
            Self::Q5K => each(bytes, out, super_blocks::q5_k),
            Self::Q6K => each(bytes, out, super_blocks::q6_k),
            Self::Q8K => each(bytes, out, super_blocks::q8_k),
            Self::Iq4Xs => each(bytes, out, super_blocks::iq4_xs),
        }
    }
}

/// Decodes block by block.
fn each<const BYTES: usize, const WEIGHTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES]) -> [f32; WEIGHTS],
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<WEIGHTS>().0) {
        *out = decode(block);
    }
}
