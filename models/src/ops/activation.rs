//! Activation functions, and their CPU kernel.

use pulp::{Simd, WithSimd};

use super::elementwise::{
    QUICK_GELU, clamp_of, gelu_of, gelu_tanh_of, hard_sigmoid_of, relu_of, relu6_of, sigmoid_of, xielu_of,
};

/// Activation function of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// Rectified linear unit.
    #[default]
    Relu,
    /// GELU with the error function.
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// ReLU6: rectified linear unit, at most 6.
    Relu6,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// GELU in its sigmoid approximation: `x / (1 + exp(-1.702 x))`.
    QuickGelu,
    /// Piecewise linear sigmoid: `relu6(x + 3) / 6` (Howard et al. 2019, section 5.2).
    HardSigmoid,
    /// `x` times [`Activation::HardSigmoid`] of `x`.
    HardSwish,
    /// Square of the rectified linear unit.
    SquaredRelu,
    /// xIELU (Huang and Schlag 2024): a parabola above zero, an integrated ELU below.
    Xielu {
        /// Coefficient above zero.
        above: f32,
        /// Coefficient below zero.
        below: f32,
        /// Slope at zero.
        slope: f32,
    },
    /// `x / (1 + exp(-slope * x))`, with `x` clamped to at most a limit. A gated layer multiplies it by 1 plus its
    /// second half, clamped to the limit in magnitude (gpt-oss).
    ClampedSilu {
        /// Factor in the exponent.
        slope: f32,
        /// Maximum of `x`, and maximum magnitude of the second half.
        limit: f32,
    },
    /// Clamps to this magnitude.
    Clamp(f32),
}

/// Applies an activation function to values on the CPU.
pub(super) struct Activate<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) activation: Activation,
}

impl WithSimd for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let values = self.values.iter_mut();
        match self.activation {
            Activation::Relu => values.for_each(|value| *value = relu_of(*value)),
            Activation::Gelu => values.for_each(|value| *value = gelu_of(*value)),
            Activation::GeluTanh => values.for_each(|value| *value = gelu_tanh_of(*value)),
            Activation::Silu => values.for_each(|value| *value *= sigmoid_of(*value)),
            Activation::Tanh => values.for_each(|value| *value = value.tanh()),
            Activation::Relu6 => values.for_each(|value| *value = relu6_of(*value)),
            Activation::Sigmoid => values.for_each(|value| *value = sigmoid_of(*value)),
            Activation::QuickGelu => values.for_each(|value| *value *= sigmoid_of(QUICK_GELU * *value)),
            Activation::HardSigmoid => values.for_each(|value| *value = hard_sigmoid_of(*value)),
            Activation::HardSwish => values.for_each(|value| *value *= hard_sigmoid_of(*value)),
            Activation::SquaredRelu => values.for_each(|value| {
                let positive = relu_of(*value);
                *value = positive * positive;
            }),
            Activation::Xielu { above, below, slope } => {
                values.for_each(|value| *value = xielu_of(*value, above, below, slope));
            }
            Activation::ClampedSilu { slope, limit } => values.for_each(|value| {
                let least = if *value > limit { limit } else { *value };
                *value = least * sigmoid_of(slope * least);
            }),
            Activation::Clamp(limit) => values.for_each(|value| *value = clamp_of(*value, limit)),
        }
    }
}

/// Gated activation: for each row of `rows`, multiplies the activation of its first half by its second half, and
/// writes the result to a row of `out`, which is `width` wide.
pub(super) struct Gate<'a> {
    pub(super) rows: &'a [f32],
    pub(super) out: &'a mut [f32],
    pub(super) activation: Activation,
    pub(super) width: usize,
}

impl WithSimd for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (width, activation) = (self.width.max(1), self.activation);
        let rows = self.rows.chunks_exact(2 * width);
        for (out, row) in self.out.chunks_exact_mut(width).zip(rows) {
            let (first, second) = row.split_at(width);
            out.copy_from_slice(first);
            let values = &mut *out;
            Activate { values, activation }.with_simd(simd);
            let factors = out.iter_mut().zip(second);
            if let Activation::ClampedSilu { limit, .. } = activation {
                factors.for_each(|(value, factor)| *value *= clamp_of(*factor, limit) + 1.0);
            } else {
                factors.for_each(|(value, factor)| *value *= factor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ops;
    use super::super::cpu::Cpu;
    use super::*;

    fn activated(values: Vec<f32>, activation: Activation, gated: bool) -> Vec<f32> {
        let width = values.len();
        Cpu.activate(Cpu.upload(values, width), activation, gated).values
    }

    #[test]
    fn activations_match_their_definitions() {
        let values: Vec<f32> = (-80..80).map(|step| step as f32 / 8.0).collect();
        let of = |activation, expected: &dyn Fn(f64) -> f64| {
            for (x, actual) in values.iter().zip(activated(values.clone(), activation, false)) {
                let expected = expected(f64::from(*x));
                assert!((f64::from(actual) - expected).abs() < 1e-5, "{activation:?}({x})");
            }
        };
        of(Activation::Relu, &|x| x.max(0.0));
        of(Activation::Silu, &|x| x / (1.0 + (-x).exp()));
        of(Activation::GeluTanh, &|x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        });
        of(Activation::Relu6, &|x| x.clamp(0.0, 6.0));
        of(Activation::Sigmoid, &|x| 1.0 / (1.0 + (-x).exp()));
        of(Activation::QuickGelu, &|x| x / (1.0 + (-1.702 * x).exp()));
        of(Activation::HardSigmoid, &|x| (x + 3.0).clamp(0.0, 6.0) / 6.0);
        of(Activation::HardSwish, &|x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0);
        of(Activation::SquaredRelu, &|x| x.max(0.0).powi(2));
        of(Activation::Clamp(2.5), &|x| x.clamp(-2.5, 2.5));
        let (above, below, slope) = (0.7, 1.3, 0.5);
        let xielu = Activation::Xielu { above, below, slope };
        of(xielu, &|x| {
            let curved = if x > 0.0 {
                0.7 * x * x
            } else {
                (x.exp_m1() - x) * 1.3
            };
            curved + 0.5 * x
        });
        let clamped = Activation::ClampedSilu {
            slope: 1.7,
            limit: 3.0,
        };
        of(clamped, &|x| x.min(3.0) / (1.0 + (-1.7 * x.min(3.0)).exp()));
        assert_eq!(
            activated(vec![-1.0, 2.0, 3.0, 4.0], Activation::Relu, true),
            [0.0, 8.0]
        );
        let first = 3.0 / (1.0 + (-5.1_f32).exp());
        for (second, factor) in [(-9.0, -2.0), (2.0, 3.0), (5.0, 4.0)] {
            let gated = activated(vec![4.0, second], clamped, true);
            assert!((gated[0] - first * factor).abs() < 1e-5, "{second}: {gated:?}");
        }
    }

    #[test]
    fn activations_keep_not_a_number() {
        for activation in [
            Activation::Relu,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::Silu,
            Activation::Tanh,
            Activation::Relu6,
            Activation::Sigmoid,
            Activation::QuickGelu,
            Activation::HardSigmoid,
            Activation::HardSwish,
            Activation::SquaredRelu,
            Activation::Xielu {
                above: 1.0,
                below: 1.0,
                slope: 0.5,
            },
            Activation::ClampedSilu {
                slope: 1.7,
                limit: 7.0,
            },
            Activation::Clamp(8.0),
        ] {
            // More values than a SIMD vector holds, to test vector code too.
            let values = activated(vec![f32::NAN; 67], activation, false);
            assert!(values.iter().all(|value| value.is_nan()), "{activation:?}");
        }
    }
}
