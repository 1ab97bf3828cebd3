//! Recurrences over the tokens of a sequence, which keep a state of fixed size instead of keys and values.
//!
//! Every recurrence begins with a causal convolution of few tokens. What follows it advances a matrix per head by every token,
//! in order. Sequences and heads are computed in parallel, tokens in turn; so the bits of a result depend neither on the batch
//! nor on how a text is divided into passes. States are f32.

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

/// Least tokens of a task, summed over its heads.
const TOKENS_PER_TASK: usize = 8;

/// A recurrence: what it computes of projected tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrence {
    /// The convolution that it begins with.
    pub convolution: CausalConvolution,
    /// What follows.
    pub scan: Scan,
}

/// What a recurrence computes of the convolved tokens. But for [`Scan::Gates`], projected rows are `[inputs of the convolution |
/// output gates]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Scan {
    /// Gates before and after the convolution, without a further state (LFM2). The projected rows are `[before | after |
    /// values]`, each as wide as the convolution.
    Gates,
    /// The gated delta rule (Qwen 3.5).
    DeltaRule(DeltaRule, OutputGate),
    /// The state space of Mamba 2.
    StateSpace(StateSpace, OutputGate),
    /// The selective state space of Mamba 1.
    Selective(Selective, OutputGate),
}

/// The tokens of a sequence within the rows of a batch.
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

/// Returns the tokens of sequences with these counts, one after the other.
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

    /// Number of elements of a sequence's state.
    pub(crate) fn state_elements(&self) -> usize {
        let heads = self.heads();
        self.convolution.state_elements() + heads.count * heads.state
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        let scan = match &self.scan {
            Scan::Gates => 0,
            Scan::DeltaRule(rule, gate) => rule.parameters() + gate.parameters(),
            Scan::StateSpace(space, gate) => space.parameters() + gate.parameters(),
            Scan::Selective(space, gate) => space.parameters() + gate.parameters(),
        };
        self.convolution.parameters() + scan
    }

    /// Elements of a projected token.
    pub(crate) fn projected_width(&self) -> usize {
        match &self.scan {
            Scan::Gates => 3 * self.convolution.channels,
            _ => self.convolution.channels + self.width(),
        }
    }

    /// Elements of a result.
    pub fn width(&self) -> usize {
        if self.scan == Scan::Gates {
            return self.convolution.channels;
        }
        let heads = self.heads();
        heads.count * heads.size
    }

    /// Convolves the tokens of sequences with `counts` tokens, one row of `projected` each, and advances that part of their
    /// states, which begin as zeros.
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

    /// Computes what follows the convolution, of which these are the results, and advances that part of the states.
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

    /// Computes the heads of all sequences in parallel: `compute` returns the results of a head for the tokens of a sequence, and
    /// advances its state. Returns one row of all heads per token.
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
