//! Recurrences over the tokens of a sequence, which keep a state of fixed size instead of keys and values.
//!
//! Every recurrence begins with a short causal convolution. The scan after it updates a matrix per head for each
//! token, in order. Sequences and heads run in parallel, tokens sequentially, so the result is bit-identical for any
//! batch and any division of a text into passes. States are f32.

mod convolution;
mod delta_rule;
mod heads;
mod output_gate;
mod selective;
mod state_space;

pub use convolution::CausalConvolution;
pub use delta_rule::DeltaRule;
pub use output_gate::OutputGate;
pub use selective::Selective;
pub use state_space::StateSpace;

use rayon::prelude::*;

use heads::Heads;

/// Minimum tokens per task, summed over its heads.
const TOKENS_PER_TASK: usize = 8;

/// A recurrence over projected tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrence {
    /// Causal convolution of the projected tokens.
    pub convolution: CausalConvolution,
    /// Scan over the convolved tokens.
    pub scan: Scan,
}

/// Scan over the convolved tokens. Except for [`Scan::Gates`], projected rows are `[inputs of the convolution | output
/// gates]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Scan {
    /// Gates before and after the convolution, without further state (LFM2). Projected rows are `[before | after |
    /// values]`, each as wide as the convolution.
    Gates,
    /// Gated delta rule (Qwen 3.5).
    DeltaRule(DeltaRule, OutputGate),
    /// State space model of Mamba 2.
    StateSpace(StateSpace, OutputGate),
    /// Selective state space model of Mamba 1.
    Selective(Selective, OutputGate),
}

/// Row range of a sequence's tokens in a batch.
#[derive(Debug, Clone, Copy)]
struct Tokens {
    from: usize,
    count: usize,
}

impl Tokens {
    /// Returns the rows of the sequence, `width` wide.
    fn of(self, rows: &[f32], width: usize) -> &[f32] {
        rows.get(self.from * width..(self.from + self.count) * width)
            .unwrap_or_default()
    }
}

/// Returns the token ranges of consecutive sequences with these lengths.
fn sequences(counts: &[usize]) -> Vec<Tokens> {
    let mut next = 0;
    let tokens = counts.iter().map(|count| {
        next += count;
        Tokens {
            from: next - count,
            count: *count,
        }
    });
    tokens.collect()
}

impl Recurrence {
    fn heads(&self) -> Heads {
        match &self.scan {
            Scan::Gates => Heads::default(),
            Scan::DeltaRule(rule, _) => rule.heads(),
            Scan::StateSpace(space, _) => space.heads(),
            Scan::Selective(space, _) => space.heads(),
        }
    }

    /// Returns the number of elements of a sequence's state.
    pub(crate) fn state_elements(&self) -> usize {
        let heads = self.heads();
        self.convolution.state_elements() + heads.count * heads.state
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        let scan = match &self.scan {
            Scan::Gates => 0,
            Scan::DeltaRule(rule, gate) => rule.parameters() + gate.parameters(),
            Scan::StateSpace(space, gate) => space.parameters() + gate.parameters(),
            Scan::Selective(space, gate) => space.parameters() + gate.parameters(),
        };
        self.convolution.parameters() + scan
    }

    /// Returns the width of a projected token.
    pub(crate) fn projected_width(&self) -> usize {
        match &self.scan {
            Scan::Gates => 3 * self.convolution.channels,
            _ => self.convolution.channels + self.width(),
        }
    }

    /// Returns the width of a result row.
    pub fn width(&self) -> usize {
        if self.scan == Scan::Gates {
            return self.convolution.channels;
        }
        let heads = self.heads();
        heads.count * heads.size
    }

    /// Convolves the tokens of sequences with `counts` tokens each, one row of `projected` per token, and updates the
    /// convolution states, which are initially zero.
    pub(crate) fn convolve(
        &self,
        projected: &[f32],
        counts: &[usize],
        states: &mut [&mut [f32]],
    ) -> Vec<f32> {
        let (width, channels) = (self.projected_width(), self.convolution.channels);
        let mut out = Vec::with_capacity(projected.len() / width.max(1) * channels);
        for (tokens, state) in sequences(counts).into_iter().zip(states) {
            let mut inputs = Vec::with_capacity(tokens.count * channels);
            for row in tokens.of(projected, width).chunks_exact(width.max(1)) {
                let first = row.get(..channels).unwrap_or_default();
                match &self.scan {
                    Scan::Gates => {
                        let values = row.get(2 * channels..).unwrap_or_default();
                        inputs.extend(first.iter().zip(values).map(|(gate, value)| gate * value));
                    }
                    _ => inputs.extend_from_slice(first),
                }
            }
            let state = state.get_mut(..self.convolution.state_elements());
            out.extend(self.convolution.run(&inputs, state.unwrap_or_default()));
        }
        out
    }

    /// Computes the scan over the results of the convolution, and updates the scan states.
    pub fn scan(
        &self,
        projected: &[f32],
        convolved: Vec<f32>,
        gates: &[f32],
        counts: &[usize],
        states: &mut [&mut [f32]],
    ) -> Vec<f32> {
        let (channels, projected_width) = (self.convolution.channels, self.projected_width());
        let (mut out, gate) = match &self.scan {
            Scan::Gates => (convolved, None),
            Scan::DeltaRule(rule, gate) => {
                let each = 2 * rule.value_heads;
                let out = self.by_head(counts, states, |tokens, head, state| {
                    rule.run(
                        head,
                        tokens.of(&convolved, channels),
                        tokens.of(gates, each),
                        state,
                    )
                });
                (out, Some(gate))
            }
            Scan::StateSpace(space, gate) => {
                let out = self.by_head(counts, states, |tokens, head, state| {
                    space.run(
                        head,
                        tokens.of(&convolved, channels),
                        tokens.of(gates, space.heads),
                        state,
                    )
                });
                (out, Some(gate))
            }
            Scan::Selective(space, gate) => {
                let out = self.by_head(counts, states, |tokens, head, state| {
                    space.run(
                        head,
                        tokens.of(&convolved, channels),
                        tokens.of(gates, space.gates()),
                        state,
                    )
                });
                (out, Some(gate))
            }
        };
        let width = self.width().max(1);
        let rows = out
            .chunks_exact_mut(width)
            .zip(projected.chunks_exact(projected_width.max(1)));
        for (out, row) in rows {
            let gates = row.get(channels..channels + width).unwrap_or_default();
            match gate {
                Some(gate) => gate.apply(out, gates),
                None => out.iter_mut().zip(gates).for_each(|(value, gate)| *value *= gate),
            }
        }
        out
    }

    /// Computes the heads of all sequences in parallel: `compute` returns the results of a head for the tokens of a
    /// sequence, and updates its state. Returns one row per token with all heads.
    fn by_head(
        &self,
        counts: &[usize],
        states: &mut [&mut [f32]],
        compute: impl Fn(Tokens, usize, &mut [f32]) -> Vec<f32> + Send + Sync,
    ) -> Vec<f32> {
        let heads = self.heads();
        let first = self.convolution.state_elements();
        let mut tasks = Vec::new();
        for (tokens, state) in sequences(counts).into_iter().zip(states) {
            let states = state.get_mut(first..).unwrap_or_default();
            let states = states.chunks_exact_mut(heads.state.max(1));
            tasks.extend(states.enumerate().map(|(head, state)| (tokens, head, state)));
        }
        let longest = counts.iter().copied().max().unwrap_or_default();
        let results: Vec<(Tokens, usize, Vec<f32>)> = tasks
            .into_par_iter()
            .with_min_len(TOKENS_PER_TASK / longest.max(1))
            .map(|(tokens, head, state)| (tokens, head, compute(tokens, head, state)))
            .collect();
        let (size, width) = (heads.size.max(1), heads.count * heads.size);
        let mut out = vec![0.0; counts.iter().sum::<usize>() * width];
        for (tokens, head, result) in results {
            let rows = out.chunks_exact_mut(width.max(1)).skip(tokens.from);
            for (row, values) in rows.zip(result.chunks_exact(size)) {
                if let Some(slots) = row.get_mut(head * size..(head + 1) * size) {
                    slots.copy_from_slice(values);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;
