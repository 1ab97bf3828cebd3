//! Recurrences over the tokens of a sequence, which keep a state of fixed size instead of keys and values.
//!
//! Every recurrence begins with a causal convolution of few tokens. What follows it advances a matrix per head by every token,
//! in order. Sequences and heads are computed in parallel, tokens in turn; so the bits of a result depend neither on the batch
//! nor on how a text is divided into passes. States are f32.

mod convolution;

pub use convolution::CausalConvolution;

/// A recurrence: what it computes of projected tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrence {
    /// The convolution that it begins with.
    pub convolution: CausalConvolution,
    /// What follows.
    pub scan: Scan,
}

/// What a recurrence computes of the convolved tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Scan {
    /// Gates before and after the convolution, without a further state (LFM2). The projected rows are `[before | after |
    /// values]`, each as wide as the convolution.
    Gates,
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
    /// Number of elements of a sequence's state.
    pub fn state_elements(&self) -> usize {
        self.convolution.state_elements()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.convolution.parameters()
    }

    /// Elements of a projected token.
    pub fn projected_width(&self) -> usize {
        match &self.scan {
            Scan::Gates => 3 * self.convolution.channels,
        }
    }

    /// Elements of a result.
    pub fn width(&self) -> usize {
        match &self.scan {
            Scan::Gates => self.convolution.channels,
        }
    }

    /// Computes the recurrence for sequences of `counts` tokens, one row of `projected` and of `gates` each, and advances their
    /// states, which begin as zeros.
    pub fn run(
        &self,
        projected: &[f32],
        _gates: &[f32],
        counts: &[usize],
        states: &mut [&mut [f32]],
    ) -> Vec<f32> {
        let width = self.projected_width();
        let mut out = Vec::with_capacity(projected.len() / width.max(1) * self.width());
        for (tokens, state) in sequences(counts).into_iter().zip(states) {
            let rows = tokens.of(projected, width);
            match &self.scan {
                Scan::Gates => out.extend(self.gated(rows, state)),
            }
        }
        out
    }

    /// Multiplies rows by their first gates, convolves them, and multiplies them by their second gates.
    fn gated(&self, rows: &[f32], state: &mut [f32]) -> Vec<f32> {
        let channels = self.convolution.channels.max(1);
        let mut input = Vec::with_capacity(rows.len() / 3);
        for row in rows.chunks_exact(3 * channels) {
            let (before, rest) = row.split_at(channels);
            let (_, values) = rest.split_at(channels);
            input.extend(before.iter().zip(values).map(|(gate, value)| gate * value));
        }
        let mut out = self.convolution.run(&input, state);
        for (out, row) in out
            .chunks_exact_mut(channels)
            .zip(rows.chunks_exact(3 * channels))
        {
            let (_, rest) = row.split_at(channels);
            for (value, gate) in out.iter_mut().zip(rest) {
                *value *= gate;
            }
        }
        out
    }
}
