//! Vectorised GELU for the CPU.
//!
//! burn's `flex` back end computes GELU one element at a time through `libm`, and everything but its matrix products
//! and attention on one thread. On other devices the work stays with burn.

use burn::tensor::{DType, Tensor, activation};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::device::is_host;

/// Elements per task: enough to outweigh the cost of a task, few enough for an even distribution.
const CHUNK: usize = 1 << 14;

/// GELU by the error function, `x / 2 * (1 + erf(x / sqrt(2)))`; on the CPU accurate to four units in the last place of
/// the larger of 1 and `|x|`.
pub(crate) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let device = x.device();
    if !is_host(&device) || x.dtype() != DType::F32 {
        return activation::gelu(x);
    }
    let mut data = x.into_data();
    if let Ok(values) = data.as_mut_slice::<f32>() {
        let arch = Arch::new();
        values
            .par_chunks_mut(CHUNK)
            .for_each(|values| arch.dispatch(Gelu(values)));
    }
    Tensor::from_data(data, &device)
}

/// Compiled once for each vector extension.
struct Gelu<'a>(&'a mut [f32]);

impl WithSimd for Gelu<'_> {
    type Output = ();

    #[expect(
        clippy::inline_always,
        reason = "only inlined code is compiled for the vector extension"
    )]
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for value in self.0 {
            *value = gelu_of(*value);
        }
    }
}

/// The complementary error function by Abramowitz and Stegun 7.1.26, without branches so that it is vectorised.
#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
pub(crate) fn gelu_of(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let polynomial =
        t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_8 + t * (-1.453_152 + t * 1.061_405_4))));
    let upper_tail = 0.5 * polynomial * exp_of_negative(z * z);
    x * if x >= 0.0 { 1.0 - upper_tail } else { upper_tail }
}

/// `exp(-y)` for `y >= 0`, by `2^n * exp(r)` with `|r| <= ln(2) / 2`.
#[inline(always)]
pub(crate) fn exp_of_negative(y: f32) -> f32 {
    /// Added to a small number, it leaves that number rounded to an integer in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    /// The bits of 1.0.
    const ONE: u32 = 0x3f80_0000;
    let x = -y.min(87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUNDING;
    let n = shifted - ROUNDING;
    // ln(2) in two parts, the first exact in few bits, to preserve the precision of r.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let exp_r = 1.0
        + r * (1.0
            + r * (1.0 / 2.0
                + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r / 5040.0))))));
    exp_r * f32::from_bits((shifted.to_bits() << 23).wrapping_add(ONE))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn gelu_matches_burn() {
        let device = Device::flex();
        let values: Vec<f32> = (-40_000..40_000).map(|step| step as f32 * 5e-4).collect();
        let x = Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), &device);
        let expected = activation::gelu(x.clone())
            .into_data()
            .try_into_vec::<f32>()
            .unwrap();
        let actual = gelu(x).into_data().try_into_vec::<f32>().unwrap();
        for ((x, actual), expected) in values.iter().zip(actual).zip(expected) {
            assert!(
                // Four units in the last place: the two error functions differ in their last polynomial term.
                (actual - expected).abs() <= 4.0 * f32::EPSILON * x.abs().max(1.0),
                "{x}: {actual} instead of {expected}"
            );
        }
    }

    #[test]
    fn gelu_propagates_nan_and_infinity() {
        assert!(gelu_of(f32::NAN).is_nan());
        assert!(gelu_of(f32::INFINITY).is_infinite());
        assert_eq!(gelu_of(0.0).to_bits(), 0);
        assert!(gelu_of(-1e30).abs() < 1.0 && gelu_of(f32::MAX).is_finite());
    }
}
