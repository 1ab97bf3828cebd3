//! The selective state space model of Mamba (Gu and Dao 2023): every channel has a state. Each token decays the state
//! with input-dependent factors, adds the product of its value and its input vector (B), and reads the state with its
//! output vector (C).

use pulp::{Arch, Simd, WithSimd};

use super::heads::{Heads, softplus};
use crate::ops::elementwise::exp_of_negative;

/// Maximum channels that are computed together.
const BLOCK: usize = 64;

/// A selective state space model. Convolved rows hold one value per channel; gate rows are `[steps | input vector |
/// output vector]`, with one step per channel, before its activation.
#[derive(Debug, Clone, PartialEq)]
pub struct Selective {
    /// Number of channels.
    pub channels: usize,
    /// Size of an input or output vector.
    pub state_size: usize,
    /// Number of elements that the steps are projected from.
    pub rank: usize,
    /// RMS norm weights for those elements, for input vectors and for output vectors (Jamba), if there are any.
    pub norms: Option<[Vec<f32>; 3]>,
    /// Epsilon of the norms.
    pub epsilon: f32,
    /// Decay rates, `[channels, state_size]`, negative.
    pub rates: Vec<f32>,
    /// Skip connection: factor per channel of the values that are added to the result.
    pub skip: Vec<f32>,
}

/// A block of channels of a sequence.
struct Block<'a> {
    space: &'a Selective,
    first: usize,
    convolved: &'a [f32],
    gates: &'a [f32],
    state: &'a mut [f32],
}

impl Selective {
    /// Returns the channels per block, which divide the number of channels.
    fn block(&self) -> usize {
        let mut block = BLOCK;
        while !self.channels.is_multiple_of(block) {
            block /= 2;
        }
        block
    }

    /// Returns the dimensions of the blocks, which are computed like heads.
    pub(super) fn heads(&self) -> Heads {
        let block = self.block();
        Heads {
            count: self.channels / block,
            state: block * self.state_size,
            size: block,
        }
    }

    /// Returns the width of a gate row.
    pub(super) fn gates(&self) -> usize {
        self.channels + 2 * self.state_size
    }

    pub(super) fn parameters(&self) -> usize {
        let norms = self.norms.iter().flatten().map(Vec::len);
        self.rates.len() + self.skip.len() + norms.sum::<usize>()
    }

    /// Returns the inputs of the step projection, `[tokens, rank]`: the first elements of the rows `selected`, which
    /// are projected from the convolved rows.
    pub(crate) fn step_inputs(&self, selected: &[f32]) -> Vec<f32> {
        let mut inputs = Vec::with_capacity(selected.len());
        for row in selected.chunks_exact((self.rank + 2 * self.state_size).max(1)) {
            self.push(&mut inputs, row, 0, 0, self.rank);
        }
        inputs
    }

    /// Returns gate rows: the projected steps, then the rest of the rows `selected`.
    pub(crate) fn with_steps(&self, steps: &[f32], selected: &[f32]) -> Vec<f32> {
        let rows = selected.chunks_exact((self.rank + 2 * self.state_size).max(1));
        let mut gates = Vec::with_capacity(rows.len() * self.gates());
        for (steps, row) in steps.chunks_exact(self.channels.max(1)).zip(rows) {
            gates.extend_from_slice(steps);
            for part in 0..2 {
                self.push(
                    &mut gates,
                    row,
                    part + 1,
                    self.rank + part * self.state_size,
                    self.state_size,
                );
            }
        }
        gates
    }

    /// Appends a part of a row, normalised by the norm at index `norm` if there is one.
    fn push(&self, rows: &mut Vec<f32>, row: &[f32], norm: usize, from: usize, count: usize) {
        let values = row.get(from..from + count).unwrap_or_default();
        let Some(gamma) = self.norms.as_ref().and_then(|norms| norms.get(norm)) else {
            rows.extend_from_slice(values);
            return;
        };
        let squares: f32 = values.iter().map(|value| value * value).sum();
        let factor = 1.0 / (squares / count.max(1) as f32 + self.epsilon).sqrt();
        rows.extend(
            values
                .iter()
                .zip(gamma)
                .map(|(value, gamma)| value * factor * gamma),
        );
    }

    /// Computes a block for the tokens of a sequence, `[tokens, block]`, and updates its state `[block, state_size]`.
    pub(super) fn run(&self, block: usize, convolved: &[f32], gates: &[f32], state: &mut [f32]) -> Vec<f32> {
        Arch::new().dispatch(Block {
            space: self,
            first: block * self.block(),
            convolved,
            gates,
            state,
        })
    }
}

impl WithSimd for Block<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Vec<f32> {
        let (space, size) = (self.space, self.space.state_size.max(1));
        let block = self.state.len() / size;
        let (rates, skip) = (
            space.rates.get(self.first * size..).unwrap_or_default(),
            space.skip.get(self.first..).unwrap_or_default(),
        );
        let rows = self.convolved.chunks_exact(space.channels.max(1));
        let gates = self.gates.chunks_exact(space.gates().max(1));
        let mut out = Vec::with_capacity(rows.len() * block);
        for (values, gates) in rows.zip(gates) {
            let values = values.get(self.first..).unwrap_or_default();
            let steps = gates.get(self.first..space.channels).unwrap_or_default();
            let input = gates
                .get(space.channels..space.channels + size)
                .unwrap_or_default();
            let output = gates.get(space.channels + size..).unwrap_or_default();
            let states = self.state.chunks_exact_mut(size).zip(rates.chunks_exact(size));
            let channels = states.zip(values.iter().zip(skip)).zip(steps);
            for (((state, rates), (value, skip)), step) in channels {
                let step = softplus(*step);
                out.push(advance(state, rates, step, step * value, input, output) + skip * value);
            }
        }
        out
    }
}

/// Decays a state, adds the input vector times `value`, and returns its product with the output vector, summed in
/// sixteen lanes.
#[inline(always)]
fn advance(state: &mut [f32], rates: &[f32], step: f32, value: f32, input: &[f32], output: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let parts = state.chunks_mut(16).zip(rates.chunks(16));
    let vectors = input.chunks(16).zip(output.chunks(16));
    for ((state, rates), (input, output)) in parts.zip(vectors) {
        let elements = state.iter_mut().zip(rates).zip(input.iter().zip(output));
        for (sum, ((state, rate), (input, output))) in sums.iter_mut().zip(elements) {
            *state = exp_of_negative(-rate * step) * *state + value * input;
            *sum += *state * output;
        }
    }
    sums.iter().sum()
}
