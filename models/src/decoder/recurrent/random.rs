//! Recurrent mixers with random weights, for tests without a checkpoint.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::RecurrentWeights;
use crate::decoder::linear_weights::LinearWeights;
use crate::decoder::weights::{Decoder, LayerWeights};
use crate::ops::recurrent::{CausalConvolution, Recurrence, Scan};

/// Tokens that the convolutions see.
const KERNEL: usize = 3;

impl Decoder {
    /// Replaces the attention of every second layer, from the first on, by a recurrent mixer.
    #[must_use]
    pub(crate) fn with_random_recurrences(mut self, seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        for layer in self.layers.iter_mut().step_by(2) {
            *layer = LayerWeights {
                recurrent: Some(mixer(rng, self.model_config.width)),
                query: LinearWeights::default(),
                key_value: LinearWeights::default(),
                output: LinearWeights::default(),
                head_norms: None,
                ..std::mem::take(layer)
            };
        }
        self
    }
}

fn mixer(rng: &mut ChaCha8Rng, width: usize) -> RecurrentWeights {
    RecurrentWeights {
        input: LinearWeights::random(rng, width, 3 * width, true),
        gates: None,
        recurrence: Recurrence {
            convolution: convolution(rng, width),
            scan: Scan::Gates,
        },
        output: LinearWeights::random(rng, width, width, true),
    }
}

fn convolution(rng: &mut ChaCha8Rng, channels: usize) -> CausalConvolution {
    let random = LinearWeights::random(rng, KERNEL, channels, true);
    CausalConvolution {
        channels,
        weights: random.weight,
        bias: random.bias,
        activation: None,
    }
}
