//! Layout of a batch's keys and values, and the tokens that each query attends to.

use std::sync::OnceLock;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::indices::indices;
use crate::ops::{AttentionSpans, ScoreRules};

/// Maximum factor by which padding may increase the number of scores per head, unless there are few scores.
const MAX_PADDING: usize = 4;
const FEW_SCORES: usize = 1 << 16;

/// Matrix index, first row and row count of a span; matrices are numbered in order of first use.
type Part = (usize, usize, usize);

/// Locations of a batch's tokens, and the tokens that each query attends to. Determines a [`Layout`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Extents {
    requests: Vec<Extent>,
    window: Option<usize>,
    chunk: Option<usize>,
    /// Width of the position bias table.
    bias: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
struct Extent {
    queries: usize,
    tokens: usize,
    /// Whether the last tokens are those of the queries, under a causal mask.
    causal: bool,
    parts: Vec<Part>,
}

/// Uploaded form of [`Extents`], shared by the layers of a forward pass.
#[derive(Debug)]
pub(super) struct Layout {
    /// Rows to gather from each matrix.
    pub(super) rows: Vec<Tensor<1, Int>>,
    /// Index among the gathered rows for every padded token; `None` if the gathered rows are the padded tokens.
    pub(super) padded: Option<Tensor<1, Int>>,
    /// Row of every padded query; `None` if no request is padded.
    pub(super) queries: Option<Tensor<1, Int>>,
    /// Padded row of every query.
    pub(super) own: Option<Tensor<1, Int>>,
    /// Attention mask, true for masked tokens; created on demand, because a kernel needs only the ranges.
    hidden: OnceLock<Option<Tensor<5, Bool>>>,
    /// Ranges of visible tokens, created on demand for a kernel.
    #[cfg(feature = "gpu")]
    ranges: OnceLock<Tensor<1, Int>>,
    /// Columns of the position bias table, `[batch * queries * tokens]`.
    pub(super) distances: Option<Tensor<1, Int>>,
}

impl Layout {
    /// Returns the attention mask, true for masked tokens, `[batch, 1, 1, queries, tokens]`; `None` if none is masked.
    pub(super) fn hidden(&self, extents: &Extents, device: &Device) -> Option<&Tensor<5, Bool>> {
        let hidden = self
            .hidden
            .get_or_init(|| extents.hidden(extents.longest(), device));
        hidden.as_ref()
    }

    /// Returns the first and the last token that each query attends to, `[batch * queries * 2]`.
    #[cfg(feature = "gpu")]
    pub(super) fn ranges(&self, extents: &Extents, device: &Device) -> Tensor<1, Int> {
        let [queries, _] = extents.longest();
        let ranges = || indices(extents.ranges(queries).flatten().collect(), device);
        self.ranges.get_or_init(ranges).clone()
    }
}

impl Extents {
    /// Returns the extents of requests, and the matrices that they refer to.
    pub(super) fn of<'a>(
        requests: &[AttentionSpans<'a, Tensor<2>>],
        rules: &ScoreRules<'_, Tensor<2>>,
    ) -> (Self, Vec<&'a Tensor<2>>) {
        let mut matrices: Vec<&Tensor<2>> = Vec::new();
        let requests = requests.iter().map(|request| {
            let spans = request.cached.iter().chain(&request.new_kv);
            let parts: Vec<Part> = spans
                .map(|span| {
                    let known = matrices
                        .iter()
                        .position(|matrix| std::ptr::eq(*matrix, span.matrix));
                    let number = known.unwrap_or_else(|| {
                        matrices.push(span.matrix);
                        matrices.len() - 1
                    });
                    (number, span.from, span.count)
                })
                .collect();
            Extent {
                queries: request.queries,
                tokens: parts.iter().map(|(_, _, count)| count).sum(),
                causal: request.new_kv.is_some(),
                parts,
            }
        });
        let requests = requests.collect();
        let extents = Self {
            requests,
            window: rules.window,
            chunk: rules.chunk,
            bias: rules.position_bias.map(|table| {
                let [_, width] = table.dims();
                width
            }),
        };
        (extents, matrices)
    }

    /// Returns the maximum numbers of queries and of tokens over the requests.
    pub(super) fn longest(&self) -> [usize; 2] {
        let most = |of: fn(&Extent) -> usize| self.requests.iter().map(of).max().unwrap_or_default();
        [most(|request| request.queries), most(|request| request.tokens)]
    }

    /// Returns whether padding all requests together is cheap.
    pub(super) fn fits_together(&self) -> bool {
        let [queries, tokens] = self.longest();
        let scores = |request: &Extent| request.queries * request.tokens;
        let exact: usize = self.requests.iter().map(scores).sum();
        let batch = self.requests.len();
        let padded = batch * queries * tokens;
        padded <= MAX_PADDING * exact || padded <= FEW_SCORES
    }

    pub(super) fn layout(&self, matrices: usize, device: &Device) -> Layout {
        let [queries, tokens] = self.longest();
        let mut rows = vec![Vec::new(); matrices];
        for (number, from, count) in self.requests.iter().flat_map(|request| &request.parts) {
            if let Some(rows) = rows.get_mut(*number) {
                rows.extend(*from..from + count);
            }
        }
        // First row of each matrix among the gathered rows.
        let mut next: Vec<usize> = rows
            .iter()
            .scan(0, |sum, rows| {
                let first = *sum;
                *sum += rows.len();
                Some(first)
            })
            .collect();
        let mut padded = Vec::with_capacity(self.requests.len() * tokens);
        for (index, request) in self.requests.iter().enumerate() {
            for (number, _, count) in &request.parts {
                if let Some(next) = next.get_mut(*number) {
                    padded.extend(*next..*next + count);
                    *next += count;
                }
            }
            // Padding is masked, but NaN or infinity would remain when multiplied by zero, so the padding repeats a row
            // of the same request.
            let own = padded.get(index * tokens).copied().unwrap_or_default();
            padded.resize((index + 1) * tokens, own);
        }
        let in_order = padded.iter().enumerate().all(|(place, row)| place == *row);
        let uniform = self.requests.iter().all(|request| request.queries == queries);
        let (mut of_queries, mut own, mut first) = (Vec::new(), Vec::new(), 0);
        for (index, request) in self.requests.iter().enumerate().filter(|_| !uniform) {
            of_queries.extend(first..first + request.queries);
            of_queries.resize((index + 1) * queries, 0);
            own.extend(index * queries..index * queries + request.queries);
            first += request.queries;
        }
        Layout {
            rows: rows.into_iter().map(|rows| indices(rows, device)).collect(),
            padded: (!in_order).then(|| indices(padded, device)),
            queries: (!uniform).then(|| indices(of_queries, device)),
            own: (!uniform).then(|| indices(own, device)),
            hidden: OnceLock::new(),
            #[cfg(feature = "gpu")]
            ranges: OnceLock::new(),
            distances: self
                .bias
                .map(|width| self.distances(width, [queries, tokens], device)),
        }
    }

    /// Returns the position of a query, and that of the last token it attends to.
    fn sees(request: &Extent, query: usize) -> [usize; 2] {
        let last = request.tokens.saturating_sub(1);
        if request.causal {
            let position = (request.tokens - request.queries.min(request.tokens) + query).min(last);
            [position; 2]
        } else {
            [query, last]
        }
    }

    /// Returns the first and the last token that each query attends to.
    fn ranges(&self, queries: usize) -> impl Iterator<Item = [usize; 2]> {
        let rules: ScoreRules<'_, ()> = ScoreRules {
            window: self.window,
            chunk: self.chunk,
            ..ScoreRules::default()
        };
        self.requests.iter().flat_map(move |request| {
            (0..queries).map(move |query| {
                let [position, last] = Self::sees(request, query);
                if request.causal {
                    return [rules.first_visible(position), last];
                }
                let visible = rules.visible_around(position, request.tokens);
                // Padding queries may attend to any token.
                let last = visible.end.saturating_sub(1);
                [visible.start.min(last), last]
            })
        })
    }

    fn hidden(&self, [queries, tokens]: [usize; 2], device: &Device) -> Option<Tensor<5, Bool>> {
        let mut hidden = vec![true; self.requests.len() * queries * tokens];
        let rows = hidden.chunks_mut(tokens.max(1));
        for (row, [first, last]) in rows.zip(self.ranges(queries)) {
            if let Some(visible) = row.get_mut(first..=last) {
                visible.fill(false);
            }
        }
        let shape = [self.requests.len(), 1, 1, queries, tokens];
        let any = hidden.contains(&true);
        any.then(|| Tensor::from_data(TensorData::new(hidden, shape), device))
    }

    fn distances(&self, width: usize, [queries, tokens]: [usize; 2], device: &Device) -> Tensor<1, Int> {
        let center = width / 2;
        let requests = self.requests.iter();
        let columns = requests.flat_map(|request| {
            (0..queries).flat_map(move |query| {
                let [position, _] = Self::sees(request, query);
                (0..tokens).map(move |key| (center + key).saturating_sub(position).min(2 * center))
            })
        });
        indices(columns.collect(), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_padding_is_refused() {
        let extents = |tokens: &[usize]| Extents {
            requests: tokens
                .iter()
                .map(|tokens| Extent {
                    queries: *tokens,
                    tokens: *tokens,
                    causal: true,
                    parts: Vec::new(),
                })
                .collect(),
            window: None,
            chunk: None,
            bias: None,
        };
        assert!(extents(&[400; 8]).fits_together());
        assert!(extents(&[1, 1, 1, 20]).fits_together(), "few scores");
        assert!(!extents(&[1, 1, 1, 1, 1, 1, 1, 1000]).fits_together());
    }
}
