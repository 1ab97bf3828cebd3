//! Values of four bits: E2M1 floats, two per byte.

use rayon::prelude::*;
use safetensors::Dtype;

use super::stored::{Fault, Named, exponential};

/// Values of E2M1: one sign bit, two exponent bits, one mantissa bit.
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Returns the values of codes, two per byte, the first in the lower half.
pub(super) fn values(codes: &[u8]) -> impl Iterator<Item = f32> {
    let value = |code: u8| E2M1.get(usize::from(code)).copied().unwrap_or_default();
    codes
        .iter()
        .flat_map(move |pair| [value(pair & 15), value(pair >> 4)])
}

/// Unpacks a matrix that is stored as U8 `[rows, columns / 2]`.
///
/// # Errors
/// [`Fault::Shape`] if the tensor holds another matrix.
pub(super) fn matrix(codes: Named<'_>, [rows, columns]: [usize; 2]) -> Result<Vec<f32>, Fault> {
    let codes = codes.of_type(Dtype::U8)?;
    match codes.shape() {
        [height, width] if *height == rows && width.checked_mul(2) == Some(columns) => {}
        [height, width] => return Err(Fault::Shape(vec![*height, width.saturating_mul(2)])),
        _ => return Err(codes.fault("should be a matrix")),
    }
    let mut unpacked = vec![0.0; codes.bytes().len() * 2];
    let lines = unpacked
        .par_chunks_mut(columns.max(1))
        .zip(codes.bytes().par_chunks((columns / 2).max(1)));
    lines.for_each(|(line, codes)| {
        for (slot, value) in line.iter_mut().zip(values(codes)) {
            *slot = value;
        }
    });
    Ok(unpacked)
}

/// Returns the scales of a weight: floats, or exponents of 8 bits.
///
/// # Errors
/// [`Fault::Reason`] for another type.
pub(super) fn scales(scale: Named<'_>) -> Result<Vec<f32>, Fault> {
    match scale.dtype() {
        Dtype::U8 => Ok(scale.bytes().iter().map(|byte| exponential(*byte)).collect()),
        _ => scale.numbers(),
    }
}

/// Returns the only element of a tensor.
///
/// # Errors
/// [`Fault::Reason`] if the tensor has another shape.
pub(super) fn single(tensor: Named<'_>) -> Result<f32, Fault> {
    match tensor.numbers()?.as_slice() {
        [value] => Ok(*value),
        _ => Err(tensor.fault("should have one element")),
    }
}
