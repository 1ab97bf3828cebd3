//! Branch-free elementary functions, which vectorise when inlined into kernels.

/// GELU with the error function, `x / 2 * (1 + erf(x / sqrt(2)))`, accurate to four units in the last place of the
/// larger of 1 and `|x|`. The complementary error function follows Abramowitz and Stegun 7.1.26.
#[inline(always)]
pub(crate) fn gelu_of(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let polynomial =
        t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_8 + t * (-1.453_152 + t * 1.061_405_4))));
    let upper_tail = 0.5 * polynomial * exp_of_negative(z * z);
    x * if x >= 0.0 { 1.0 - upper_tail } else { upper_tail }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid_of(x: f32) -> f32 {
    let small = exp_of_negative(x.abs());
    (if x >= 0.0 { 1.0 } else { small }) / (1.0 + small)
}

/// GELU in its tanh approximation: `x / 2 (1 + tanh(u))` equals `x` times the sigmoid of `2u`.
#[inline(always)]
pub(crate) fn gelu_tanh_of(x: f32) -> f32 {
    let u = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    x * sigmoid_of(2.0 * u)
}

/// Factor of the sigmoid's input in the sigmoid approximation of GELU.
pub(crate) const QUICK_GELU: f32 = 1.702;

/// Rectified linear unit; propagates NaN.
#[inline(always)]
pub(crate) fn relu_of(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Clamps to this magnitude; propagates NaN.
#[inline(always)]
pub(crate) fn clamp_of(x: f32, limit: f32) -> f32 {
    if x > limit {
        limit
    } else if x < -limit {
        -limit
    } else {
        x
    }
}

/// xIELU with its coefficients above and below zero, and its slope at zero.
#[inline(always)]
pub(crate) fn xielu_of(x: f32, above: f32, below: f32, slope: f32) -> f32 {
    /// Values between this and zero are not integrated, as in transformers.
    const NEAREST: f32 = -1e-6;
    let exponent = if x > NEAREST { NEAREST } else { x };
    let curved = if x > 0.0 {
        above * x * x
    } else {
        (exp_of_negative(-exponent) - 1.0 - x) * below
    };
    curved + slope * x
}

/// ReLU6; propagates NaN.
#[inline(always)]
pub(crate) fn relu6_of(x: f32) -> f32 {
    let x = relu_of(x);
    if x > 6.0 { 6.0 } else { x }
}

/// Piecewise linear sigmoid, `relu6(x + 3) / 6`; propagates NaN.
#[inline(always)]
pub(crate) fn hard_sigmoid_of(x: f32) -> f32 {
    relu6_of(x + 3.0) / 6.0
}

/// `exp(-y)` for `y >= 0`, NaN for NaN, by `2^n * exp(r)` with `|r| <= ln(2) / 2`.
#[inline(always)]
pub(crate) fn exp_of_negative(y: f32) -> f32 {
    /// Adding this to a small number rounds the number to an integer in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    /// The bits of 1.0.
    const ONE: u32 = 0x3f80_0000;
    // `f32::min` would turn NaN into 87.
    let x = if y > 87.0 { -87.0 } else { -y };
    let shifted = x * std::f32::consts::LOG2_E + ROUNDING;
    let n = shifted - ROUNDING;
    // ln(2) is split in two parts, the first exact in few bits, to preserve the precision of r.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let exp_r = 1.0
        + r * (1.0
            + r * (1.0 / 2.0
                + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r / 5040.0))))));
    exp_r * f32::from_bits((shifted.to_bits() << 23).wrapping_add(ONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error function by a series of positive terms, with f64 precision.
    fn erf(z: f64) -> f64 {
        let (mut term, mut sum) = (z, z);
        for n in 1..400 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-z * z).exp() * sum
    }

    #[test]
    fn gelu_matches_its_definition() {
        for step in -40_000..40_000 {
            let x = step as f32 * 2e-4;
            let wide = f64::from(x);
            let expected = wide / 2.0 * (1.0 + erf(wide / std::f64::consts::SQRT_2));
            let difference = (f64::from(gelu_of(x)) - expected).abs();
            assert!(
                difference <= 4.0 * f64::from(f32::EPSILON) * wide.abs().max(1.0),
                "{x}: {difference}"
            );
        }
    }

    #[test]
    fn not_a_number_stays_so() {
        for of in [
            gelu_of,
            gelu_tanh_of,
            sigmoid_of,
            relu_of,
            relu6_of,
            hard_sigmoid_of,
            exp_of_negative,
        ] {
            assert!(of(f32::NAN).is_nan());
        }
        assert!(clamp_of(f32::NAN, 2.0).is_nan() && xielu_of(f32::NAN, 1.0, 1.0, 0.5).is_nan());
    }

    #[test]
    fn gelu_propagates_nan_and_infinity() {
        assert!(gelu_of(f32::NAN).is_nan());
        assert!(gelu_of(f32::INFINITY).is_infinite());
        assert_eq!(gelu_of(0.0).to_bits(), 0);
        assert!(gelu_of(-1e30).abs() < 1.0 && gelu_of(f32::MAX).is_finite());
    }
}
