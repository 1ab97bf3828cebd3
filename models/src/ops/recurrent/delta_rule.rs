//! The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a state per head maps keys to values. Each token
//! decays the state, moves the value stored for the token's key towards the token's value, and reads the value for its
//! query.

use pulp::{Arch, Simd, WithSimd};

use super::heads::{Heads, softplus};
use crate::ops::elementwise::sigmoid_of;

/// Added to the squared norm of queries and keys.
const LENGTH_EPSILON: f32 = 1e-6;

/// A gated delta rule. Convolved rows are `[queries | keys | values]`; gate rows are `[beta | decays]` per value head,
/// before their activations, where beta is the fraction to replace.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaRule {
    /// Query and key heads; divides `value_heads`. Each serves `value_heads / key_heads` adjacent value heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Size of a query or key head.
    pub key_dim: usize,
    /// Size of a value head.
    pub value_dim: usize,
    /// Decay rate per value head, negative.
    pub rates: Vec<f32>,
    /// Added to the decay gates.
    pub step_bias: Vec<f32>,
    /// Factor of beta; above 1, a token may replace more than the stored value.
    pub beta_scale: f32,
}

/// One head of a sequence.
struct Head<'a> {
    rule: &'a DeltaRule,
    index: usize,
    convolved: &'a [f32],
    gates: &'a [f32],
    state: &'a mut [f32],
}

impl DeltaRule {
    /// Returns the width of a convolved row.
    pub(super) fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.width()
    }

    /// Returns the width of a result row.
    pub(super) fn width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Returns the dimensions of the heads.
    pub(super) fn heads(&self) -> Heads {
        Heads {
            count: self.value_heads,
            state: self.key_dim * self.value_dim,
            size: self.value_dim,
        }
    }

    pub(super) fn parameters(&self) -> usize {
        self.rates.len() + self.step_bias.len()
    }

    /// Computes a head for the tokens of a sequence, `[tokens, value_dim]`, and updates its state `[key_dim,
    /// value_dim]`.
    pub(super) fn run(&self, head: usize, convolved: &[f32], gates: &[f32], state: &mut [f32]) -> Vec<f32> {
        Arch::new().dispatch(Head {
            rule: self,
            index: head,
            convolved,
            gates,
            state,
        })
    }
}

impl WithSimd for Head<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Vec<f32> {
        let (rule, head) = (self.rule, self.index);
        let (key_dim, value_dim) = (rule.key_dim.max(1), rule.value_dim.max(1));
        let keys = rule.key_heads * key_dim;
        let key_at = head / (rule.value_heads / rule.key_heads.max(1)).max(1) * key_dim;
        let part = |row: &[f32], from: usize, count: usize| -> Vec<f32> {
            row.get(from..from + count).unwrap_or_default().to_vec()
        };
        let value = |values: &[f32], at: usize| values.get(at).copied().unwrap_or_default();
        let (rate, bias) = (value(&rule.rates, head), value(&rule.step_bias, head));
        let scale = 1.0 / (key_dim as f32).sqrt();
        let rows = self.convolved.chunks_exact(rule.channels().max(1));
        let gates = self.gates.chunks_exact(2 * rule.value_heads.max(1));
        let mut out = Vec::with_capacity(rows.len() * value_dim);
        for (row, gates) in rows.zip(gates) {
            let query = unit(part(row, key_at, key_dim), scale);
            let key = unit(part(row, keys + key_at, key_dim), 1.0);
            let replaced = rule.beta_scale * sigmoid_of(value(gates, head));
            let decay = (rate * softplus(value(gates, rule.value_heads + head) + bias)).exp();
            // First the stored value for the key, then the change to it.
            let mut change = vec![0.0; value_dim];
            for (state, key) in self.state.chunks_exact_mut(value_dim).zip(&key) {
                for (state, change) in state.iter_mut().zip(&mut change) {
                    *state *= decay;
                    *change += *state * key;
                }
            }
            let values = part(row, 2 * keys + head * value_dim, value_dim);
            for (change, value) in change.iter_mut().zip(&values) {
                *change = (value - *change) * replaced;
            }
            let mut result = vec![0.0; value_dim];
            let rows = self.state.chunks_exact_mut(value_dim).zip(&key).zip(&query);
            for ((state, key), query) in rows {
                for ((state, change), result) in state.iter_mut().zip(&change).zip(&mut result) {
                    *state += key * change;
                    *result += *state * query;
                }
            }
            out.extend(result);
        }
        out
    }
}

/// Scales a vector to the norm `scale`.
#[inline]
fn unit(mut vector: Vec<f32>, scale: f32) -> Vec<f32> {
    let squares: f32 = vector.iter().map(|value| value * value).sum();
    let factor = scale / (squares + LENGTH_EPSILON).sqrt();
    for value in &mut vector {
        *value *= factor;
    }
    vector
}
