//! Global attention of the first tokens of every sequence, with separate projections (Beltagy et al. 2020,
//! "Longformer", section 3.1).

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{AttentionSpans, Heads, Ops, ScoreRules, Span};

/// Projections for the first tokens.
pub(in crate::architectures) struct GlobalAttention<O: Ops> {
    queries: O::Linear,
    keys_and_values: O::Linear,
    heads: Heads,
    width: usize,
}

impl<O: Ops> GlobalAttention<O> {
    /// Takes the query, key and value projections.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        [query, key, value]: [String; 3],
        width: usize,
        heads: usize,
    ) -> Result<Self, LoadError> {
        let head_dim = width / heads.max(1);
        Ok(Self {
            queries: layers.linear(&query, width, width)?,
            keys_and_values: layers.concatenated(&[key, value], width, width, true)?,
            heads: Heads {
                queries: heads,
                keys: heads,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            width,
        })
    }

    /// Computes global attention for the first `leading` tokens of every sequence and writes the result to `attended`;
    /// the rows of `x` are tokens, grouped by sequence.
    pub(in crate::architectures) fn replace(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
        leading: &[usize],
        attended: &mut O::Matrix,
    ) {
        let firsts = sequences.iter().scan(0, |next, mask| {
            let first = *next;
            *next += mask.len();
            Some(first)
        });
        // Sequences without leading tokens have no queries.
        let firsts = firsts
            .zip(sequences)
            .zip(leading)
            .filter(|(_, count)| **count > 0);
        let firsts: Vec<_> = firsts.collect();
        if firsts.is_empty() {
            return;
        }
        let tokens = firsts.iter().map(|((from, _), count)| Span {
            matrix: x,
            from: *from,
            count: **count,
        });
        let queries = ops.gather(&tokens.collect::<Vec<_>>(), self.width);
        let queries = ops.multiply(&queries, &self.queries);
        let pairs = ops.multiply(x, &self.keys_and_values);
        let requests = firsts.iter().map(|((first, mask), count)| AttentionSpans {
            queries: **count,
            cached: visible(&pairs, *first, mask),
            new_kv: None,
        });
        let requests: Vec<_> = requests.collect();
        let results = ops.attend(&queries, &requests, &self.heads, ScoreRules::default());
        let rows = firsts
            .iter()
            .flat_map(|((first, _), count)| *first..*first + **count);
        let rows: Vec<(usize, usize)> = rows.enumerate().collect();
        ops.write(attended, &results, &rows);
    }
}

/// Returns the spans of visible tokens in a sequence that begins at row `first`.
fn visible<'a, X>(matrix: &'a X, first: usize, mask: &[bool]) -> Vec<Span<'a, X>> {
    let mut from = first;
    let runs = mask.chunk_by(|one, other| one == other).map(|run| {
        let span = Span {
            matrix,
            from,
            count: run.len(),
        };
        from += run.len();
        (run.first() == Some(&true)).then_some(span)
    });
    runs.flatten().collect()
}
