//! Causal depthwise convolution of a recurrence, over the last few tokens.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::ops::activation::{Activate, Activation};

/// Values per task.
const CHUNK: usize = 1 << 14;

/// A causal depthwise convolution over tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalConvolution {
    /// Number of channels.
    pub channels: usize,
    /// Weights `[kernel, channels]`, the earliest token first.
    pub weights: Vec<f32>,
    /// One bias per channel, or empty.
    pub bias: Vec<f32>,
    /// Activation of the result.
    pub activation: Option<Activation>,
}

/// Computes a range of tokens: `inputs` begins with the earliest token in the window of the first.
struct Convolve<'a> {
    convolution: &'a CausalConvolution,
    inputs: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let CausalConvolution {
            weights,
            bias,
            activation,
            ..
        } = self.convolution;
        let channels = self.convolution.channels.max(1);
        for (token, out) in self.out.chunks_exact_mut(channels).enumerate() {
            if bias.is_empty() {
                out.fill(0.0);
            } else {
                out.copy_from_slice(bias);
            }
            let seen = self.inputs.get(token * channels..).unwrap_or_default();
            for (weights, inputs) in weights.chunks_exact(channels).zip(seen.chunks_exact(channels)) {
                for ((out, weight), input) in out.iter_mut().zip(weights).zip(inputs) {
                    *out += weight * input;
                }
            }
            if let Some(activation) = *activation {
                Activate {
                    values: out,
                    activation,
                }
                .with_simd(simd);
            }
        }
    }
}

impl CausalConvolution {
    /// Returns the kernel size, tokens.
    fn kernel(&self) -> usize {
        self.weights.len() / self.channels.max(1)
    }

    /// Returns the number of elements of a sequence's state: the inputs of the last `kernel - 1` tokens.
    pub(super) fn state_elements(&self) -> usize {
        self.kernel().saturating_sub(1) * self.channels
    }

    pub(super) fn parameters(&self) -> usize {
        self.weights.len() + self.bias.len()
    }

    /// Convolves the tokens of a sequence, one row of `inputs` each, and updates its state.
    pub(super) fn run(&self, inputs: &[f32], state: &mut [f32]) -> Vec<f32> {
        let channels = self.channels.max(1);
        let seen = [&*state, inputs].concat();
        let mut out = vec![0.0; inputs.len()];
        let tokens = (CHUNK / channels).max(1);
        let arch = Arch::new();
        let convolve = |(index, out): (usize, &mut [f32])| {
            let inputs = seen.get(index * tokens * channels..).unwrap_or_default();
            let convolution = self;
            arch.dispatch(Convolve {
                convolution,
                inputs,
                out,
            });
        };
        if out.len() <= CHUNK {
            convolve((0, &mut out));
        } else {
            out.par_chunks_mut(tokens * channels)
                .enumerate()
                .for_each(convolve);
        }
        state.copy_from_slice(seen.get(inputs.len()..).unwrap_or_default());
        out
    }
}
