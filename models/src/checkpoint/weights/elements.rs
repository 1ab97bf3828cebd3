//! Elements of tensors: type conversion, finiteness and transposition.

use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use crate::precision::WeightType;

/// Returns index and value of the first element that is infinite or NaN.
pub(super) fn first_not_finite(values: &[f32]) -> Option<(usize, f32)> {
    /// Number of elements per parallel task.
    const PART: usize = 1 << 16;
    /// Exponent bits of an f32; all are set in an infinite or NaN element.
    const EXPONENT: u32 = 0x7f80_0000;
    let largest = |part: &[f32]| {
        let exponents = part.iter().map(|value| value.to_bits() & EXPONENT);
        exponents.fold(0, u32::max)
    };
    let place = values
        .par_chunks(PART)
        .position_first(|part| largest(part) == EXPONENT)?;
    let mut rest = values.iter().enumerate().skip(place * PART);
    rest.find(|(_, value)| !value.is_finite())
        .map(|(index, value)| (index, *value))
}

/// Maps a tensor type to a weight type; `None` if the type does not hold plain weights.
pub(super) fn kind_of(dtype: Dtype) -> Option<WeightType> {
    match dtype {
        Dtype::F32 => Some(WeightType::F32),
        Dtype::F16 => Some(WeightType::F16),
        Dtype::BF16 => Some(WeightType::Bf16),
        _ => None,
    }
}

/// Returns the type that all matrices share; f32, which represents every type, if they differ.
pub(super) fn stored_type<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> WeightType {
    let mut kinds = tensors
        .filter(|info| info.shape.len() > 1)
        .filter_map(|info| kind_of(info.dtype));
    let first = kinds.next().unwrap_or_default();
    if kinds.all(|kind| kind == first) {
        first
    } else {
        WeightType::F32
    }
}

/// Rows that [`transposed`] processes together: 16 f32 fill a cache line of the result.
const BLOCK: usize = 16;

/// Transposes a row-major matrix with `columns` columns.
pub(crate) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let columns = columns.max(1);
    let rows = (values.len() / columns).max(1);
    let mut out = vec![0.0; values.len()];
    for (block, lines) in values.chunks(columns * BLOCK).enumerate() {
        for (column, target) in out.chunks_mut(rows).enumerate() {
            let column_of_block = lines.iter().skip(column).step_by(columns);
            for (slot, value) in target.iter_mut().skip(block * BLOCK).zip(column_of_block) {
                *slot = *value;
            }
        }
    }
    out
}
