//! Output gate of a recurrence, with a norm before or after it.

use crate::ops::elementwise::sigmoid_of;

/// Multiplies a result by the `SiLU` of its gates, and applies an RMS norm before or after that.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OutputGate {
    /// Weight of the RMS norm; empty without a norm. A weight shorter than a row repeats.
    pub gamma: Vec<f32>,
    /// Number of elements that are normalised together.
    pub group: usize,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether the gates are applied before the norm (Mamba 2) or after it (Qwen 3.5).
    pub gates_first: bool,
}

impl OutputGate {
    pub(super) fn parameters(&self) -> usize {
        self.gamma.len()
    }

    /// Applies gates and norm to a row, in place.
    pub(super) fn apply(&self, row: &mut [f32], gates: &[f32]) {
        let gate = |row: &mut [f32]| {
            for (value, gate) in row.iter_mut().zip(gates) {
                *value *= gate * sigmoid_of(*gate);
            }
        };
        if self.gates_first {
            gate(row);
        }
        self.normalise(row);
        if !self.gates_first {
            gate(row);
        }
    }

    fn normalise(&self, row: &mut [f32]) {
        let size = self.group.max(1);
        let factors = self.gamma.chunks(size).cycle();
        for (group, gamma) in row.chunks_mut(size).zip(factors) {
            let squares: f32 = group.iter().map(|value| value * value).sum();
            let factor = 1.0 / (squares / size as f32 + self.epsilon).sqrt();
            for (value, gamma) in group.iter_mut().zip(gamma) {
                *value *= factor * gamma;
            }
        }
    }
}
