//! The state space model of Mamba 2 (Dao and Gu 2024, "Transformers are SSMs"): the state of a head decays by one
//! factor per token. Each token adds the product of its values and its input vector (B), and reads the state with its
//! output vector (C).

use pulp::{Arch, Simd, WithSimd};

use super::heads::{Heads, softplus};

/// A state space model. Convolved rows are `[values | input vectors | output vectors]`; gate rows have one step per
/// head, before its activation.
#[derive(Debug, Clone, PartialEq)]
pub struct StateSpace {
    /// Number of heads.
    pub heads: usize,
    /// Number of values per head.
    pub head_dim: usize,
    /// Number of input vectors and of output vectors; divides `heads`. Each serves `heads / groups` adjacent heads.
    pub groups: usize,
    /// Size of an input or output vector.
    pub state_size: usize,
    /// Decay rate per head, negative.
    pub rates: Vec<f32>,
    /// Added to the steps.
    pub step_bias: Vec<f32>,
    /// Minimum and maximum step.
    pub step_limits: [f32; 2],
    /// Skip connection: factor per head of the values that are added to the result.
    pub skip: Vec<f32>,
}

/// One head of a sequence.
struct Head<'a> {
    space: &'a StateSpace,
    index: usize,
    convolved: &'a [f32],
    steps: &'a [f32],
    state: &'a mut [f32],
}

impl StateSpace {
    /// Returns the width of a convolved row.
    pub(super) fn channels(&self) -> usize {
        self.width() + 2 * self.groups * self.state_size
    }

    /// Returns the width of a result row.
    pub(super) fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(super) fn heads(&self) -> Heads {
        Heads {
            count: self.heads,
            state: self.head_dim * self.state_size,
            size: self.head_dim,
        }
    }

    pub(super) fn parameters(&self) -> usize {
        self.rates.len() + self.step_bias.len() + self.skip.len()
    }

    /// Computes a head for the tokens of a sequence, `[tokens, head_dim]`, and updates its state `[head_dim,
    /// state_size]`.
    pub(super) fn run(&self, head: usize, convolved: &[f32], steps: &[f32], state: &mut [f32]) -> Vec<f32> {
        Arch::new().dispatch(Head {
            space: self,
            index: head,
            convolved,
            steps,
            state,
        })
    }
}

impl WithSimd for Head<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Vec<f32> {
        let (space, head) = (self.space, self.index);
        let (head_dim, size) = (space.head_dim, space.state_size.max(1));
        let group = head / (space.heads / space.groups.max(1)).max(1);
        let inputs = space.width() + group * size;
        let outputs = inputs + space.groups * size;
        let value = |values: &[f32], at: usize| values.get(at).copied().unwrap_or_default();
        let (rate, bias, skip) = (
            value(&space.rates, head),
            value(&space.step_bias, head),
            value(&space.skip, head),
        );
        let [least, most] = space.step_limits;
        let rows = self.convolved.chunks_exact(space.channels().max(1));
        let steps = self.steps.chunks_exact(space.heads.max(1));
        let mut out = Vec::with_capacity(rows.len() * head_dim);
        for (row, steps) in rows.zip(steps) {
            let part = |from: usize, count: usize| row.get(from..from + count).unwrap_or_default();
            let step = softplus(value(steps, head) + bias).clamp(least, most);
            let decay = (rate * step).exp();
            let (input, output) = (part(inputs, size), part(outputs, size));
            let values = part(head * head_dim, head_dim);
            for (state, value) in self.state.chunks_exact_mut(size).zip(values) {
                out.push(advance(state, decay, step * value, input, output) + skip * value);
            }
        }
        out
    }
}

/// Multiplies a state by `decay`, adds the input vector times `value`, and returns its product with the output vector,
/// summed in sixteen lanes.
#[inline(always)]
fn advance(state: &mut [f32], decay: f32, value: f32, input: &[f32], output: &[f32]) -> f32 {
    let update = |state: &mut f32, input: &f32, output: &f32| {
        *state = decay * *state + value * input;
        *state * output
    };
    let (states, rest) = state.as_chunks_mut::<16>();
    let ((inputs, rest_inputs), (outputs, rest_outputs)) =
        (input.as_chunks::<16>(), output.as_chunks::<16>());
    let mut sums = [0.0; 16];
    for ((state, input), output) in states.iter_mut().zip(inputs).zip(outputs) {
        for (((sum, state), input), output) in sums.iter_mut().zip(state).zip(input).zip(output) {
            *sum += update(state, input, output);
        }
    }
    let rest = rest.iter_mut().zip(rest_inputs).zip(rest_outputs);
    let rest: f32 = rest
        .map(|((state, input), output)| update(state, input, output))
        .sum();
    sums.iter().sum::<f32>() + rest
}
