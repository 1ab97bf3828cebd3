//! Recurrent mixers with random weights, for tests without a checkpoint.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Gates, RecurrentWeights};
use crate::decoder::linear_weights::LinearWeights;
use crate::decoder::weights::{Decoder, LayerWeights};
use crate::ops::Activation;
use crate::ops::recurrent::{
    CausalConvolution, DeltaRule, OutputGate, Recurrence, Scan, Selective, StateSpace,
};

/// Kernel size of the convolutions, tokens.
const KERNEL: usize = 3;

impl Decoder {
    /// Adds recurrent mixers of a kind. 0: gates, 1: delta rule, both in place of attention in every second layer,
    /// starting with the first; 2: a state space model in parallel with every attention; 3: selective state space
    /// models in place of all attentions.
    #[must_use]
    pub(crate) fn with_random_recurrences(mut self, kind: usize, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let width = self.model_config.width;
        for layer in self.layers.iter_mut().step_by(if kind < 2 { 2 } else { 1 }) {
            layer.recurrent = Some(match kind {
                0 => gates(rng, width),
                1 => delta_rule(rng, width),
                2 => state_space(rng, width),
                _ => selective(rng, width),
            });
            if kind != 2 {
                *layer = LayerWeights {
                    query: LinearWeights::default(),
                    key_value: LinearWeights::default(),
                    output: LinearWeights::default(),
                    ..std::mem::take(layer)
                };
            }
        }
        self
    }
}

fn numbers(rng: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    LinearWeights::random(rng, 1, count, false).weight
}

/// Returns random decay rates.
fn rates(rng: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    numbers(rng, count)
        .into_iter()
        .map(|number| -number.exp())
        .collect()
}

fn convolution(rng: &mut ChaCha8Rng, channels: usize, activation: Option<Activation>) -> CausalConvolution {
    let random = LinearWeights::random(rng, KERNEL, channels, true);
    CausalConvolution {
        channels,
        weights: random.weight,
        bias: random.bias,
        activation,
    }
}

fn mixer(rng: &mut ChaCha8Rng, width: usize, gates: Gates, recurrence: Recurrence) -> RecurrentWeights {
    RecurrentWeights {
        input: LinearWeights::random(rng, width, recurrence.projected_width(), true),
        gates,
        output: LinearWeights::random(rng, recurrence.width(), width, true),
        recurrence,
    }
}

fn gates(rng: &mut ChaCha8Rng, width: usize) -> RecurrentWeights {
    let convolution = convolution(rng, width, None);
    let scan = Scan::Gates;
    mixer(rng, width, Gates::No, Recurrence { convolution, scan })
}

fn delta_rule(rng: &mut ChaCha8Rng, width: usize) -> RecurrentWeights {
    let rule = DeltaRule {
        key_heads: 2,
        value_heads: 4,
        key_dim: 5,
        value_dim: 3,
        rates: rates(rng, 4),
        step_bias: numbers(rng, 4),
        beta_scale: 1.0,
    };
    let gate = OutputGate {
        gamma: numbers(rng, 3),
        group: 3,
        epsilon: 1e-5,
        gates_first: false,
    };
    let recurrence = Recurrence {
        convolution: convolution(rng, 2 * 2 * 5 + 4 * 3, Some(Activation::Silu)),
        scan: Scan::DeltaRule(rule, gate),
    };
    let gates = Gates::OfInput(LinearWeights::random(rng, width, 2 * 4, false));
    mixer(rng, width, gates, recurrence)
}

fn state_space(rng: &mut ChaCha8Rng, width: usize) -> RecurrentWeights {
    let space = StateSpace {
        heads: 4,
        head_dim: 6,
        groups: 2,
        state_size: 20,
        rates: rates(rng, 4),
        step_bias: numbers(rng, 4),
        step_limits: [0.01, 2.0],
        skip: numbers(rng, 4),
    };
    let gate = OutputGate {
        gamma: numbers(rng, 24),
        group: 12,
        epsilon: 1e-5,
        gates_first: true,
    };
    let recurrence = Recurrence {
        convolution: convolution(rng, 24 + 2 * 2 * 20, Some(Activation::Silu)),
        scan: Scan::StateSpace(space, gate),
    };
    let gates = Gates::OfInput(LinearWeights::random(rng, width, 4, false));
    mixer(rng, width, gates, recurrence)
}

fn selective(rng: &mut ChaCha8Rng, width: usize) -> RecurrentWeights {
    let (channels, state_size, rank) = (24, 18, 5);
    let space = Selective {
        channels,
        state_size,
        rank,
        norms: Some([
            numbers(rng, rank),
            numbers(rng, state_size),
            numbers(rng, state_size),
        ]),
        epsilon: 1e-5,
        rates: rates(rng, channels * state_size),
        skip: numbers(rng, channels),
    };
    let gates = Gates::Selected {
        selection: LinearWeights::random(rng, channels, rank + 2 * state_size, false),
        steps: LinearWeights::random(rng, rank, channels, true),
    };
    let recurrence = Recurrence {
        convolution: convolution(rng, channels, Some(Activation::Silu)),
        scan: Scan::Selective(space, OutputGate::default()),
    };
    mixer(rng, width, gates, recurrence)
}
