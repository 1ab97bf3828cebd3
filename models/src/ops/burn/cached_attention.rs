//! Attention of a decoder's new tokens to cached ones, by burn's tensors: all requests of a batch together, padded to the
//! longest one.

use std::sync::Arc;

use burn::tensor::activation::{softmax, tanh};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::encoders::indices;
use super::{AttentionSpans, Burn, Heads, ScoreRules};

/// Requests are padded together if that multiplies a head's scores by this number at most, or if they are few.
const MOST_PADDING: usize = 4;
const FEW_SCORES: usize = 1 << 16;

/// Number, first row and rows of a span's matrix; matrices are numbered in the order of their first use.
type Part = (usize, usize, usize);

/// Where the tokens of a batch are, and what its queries see. It determines a [`Layout`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Extents {
    requests: Vec<Extent>,
    window: Option<usize>,
    chunk: Option<usize>,
    /// Width of the table of a position bias.
    bias: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
struct Extent {
    queries: usize,
    tokens: usize,
    /// Whether the last tokens are those of the queries, of which each sees none after itself.
    causal: bool,
    parts: Vec<Part>,
}

/// The uploaded form of [`Extents`]: the layers of a pass share it.
#[derive(Debug)]
pub(super) struct Layout {
    /// Rows that are read from each matrix.
    rows: Vec<Tensor<1, Int>>,
    /// For every padded token its place among the rows read; `None` if the rows are the padded tokens.
    padded: Option<Tensor<1, Int>>,
    /// For every padded query its row; `None` if no request is padded.
    queries: Option<Tensor<1, Int>>,
    /// For every query its padded row.
    own: Option<Tensor<1, Int>>,
    /// Hidden tokens, `[batch, 1, 1, queries, tokens]`; `None` if all are visible.
    hidden: Option<Tensor<5, Bool>>,
    /// Columns of the table of a position bias, `[batch * queries * tokens]`.
    distances: Option<Tensor<1, Int>>,
}

impl Extents {
    /// Returns the extents of requests, and their matrices.
    fn of<'a>(
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

    /// Most queries and most tokens of a request.
    fn longest(&self) -> [usize; 2] {
        let most = |of: fn(&Extent) -> usize| self.requests.iter().map(of).max().unwrap_or_default();
        [most(|request| request.queries), most(|request| request.tokens)]
    }

    /// Whether padding costs little.
    fn fits_together(&self) -> bool {
        let [queries, tokens] = self.longest();
        let scores = |request: &Extent| request.queries * request.tokens;
        let exact: usize = self.requests.iter().map(scores).sum();
        let batch = self.requests.len();
        let padded = batch * queries * tokens;
        padded <= MOST_PADDING * exact || padded <= FEW_SCORES
    }

    fn layout(&self, matrices: usize, device: &Device) -> Layout {
        let [queries, tokens] = self.longest();
        let mut rows = vec![Vec::new(); matrices];
        for (number, from, count) in self.requests.iter().flat_map(|request| &request.parts) {
            if let Some(rows) = rows.get_mut(*number) {
                rows.extend(*from..from + count);
            }
        }
        // Where the rows of each matrix begin among all rows read.
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
            padded.resize((index + 1) * tokens, 0);
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
            hidden: self.hidden([queries, tokens], device),
            distances: self
                .bias
                .map(|width| self.distances(width, [queries, tokens], device)),
        }
    }

    /// Position of a query, and of the last token it sees.
    fn sees(request: &Extent, query: usize) -> [usize; 2] {
        let last = request.tokens.saturating_sub(1);
        if request.causal {
            let position = (request.tokens - request.queries.min(request.tokens) + query).min(last);
            [position; 2]
        } else {
            [query, last]
        }
    }

    fn hidden(&self, [queries, tokens]: [usize; 2], device: &Device) -> Option<Tensor<5, Bool>> {
        let rules: ScoreRules<'_, ()> = ScoreRules {
            window: self.window,
            chunk: self.chunk,
            ..ScoreRules::default()
        };
        let mut hidden = vec![true; self.requests.len() * queries * tokens];
        let mut rows = hidden.chunks_mut(tokens.max(1));
        for request in &self.requests {
            for (query, row) in (0..queries).zip(&mut rows) {
                let [position, last] = Self::sees(request, query);
                // Windows and chunks are those of tokens that come after the cached ones.
                let first = if request.causal {
                    rules.first_visible(position)
                } else {
                    0
                };
                if let Some(visible) = row.get_mut(first..=last) {
                    visible.fill(false);
                }
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

impl Burn {
    /// Attention of several requests in one call; `None` if too much of it would be padding.
    pub(super) fn attend_together(
        &self,
        queries: &Tensor<2>,
        requests: &[AttentionSpans<'_, Tensor<2>>],
        heads: &Heads,
        rules: ScoreRules<'_, Tensor<2>>,
    ) -> Option<Tensor<2>> {
        let (extents, matrices) = Extents::of(requests, &rules);
        if !extents.fits_together() {
            return None;
        }
        let batch = requests.len();
        let [new, tokens] = extents.longest();
        let layout = self
            .uploads
            .layout(&extents, || extents.layout(matrices.len(), &self.device));
        let Heads {
            queries: count,
            keys,
            head_dim,
            scale,
        } = *heads;
        let shared = count / keys.max(1);
        let lines = padded_lines(&matrices, &layout);
        let [_, width] = lines.dims();
        let half = |from: usize| -> Tensor<4> {
            let columns = lines.clone().slice([0..batch * tokens, from..from + width / 2]);
            columns
                .reshape([batch, tokens, keys, head_dim])
                .permute([0, 2, 1, 3])
        };
        let queries = match &layout.queries {
            Some(rows) => queries.clone().select(0, rows.clone()),
            None => queries.clone(),
        };
        let queries: Tensor<5> = queries
            .slice([0..batch * new, 0..count * head_dim])
            .reshape([batch, new, keys, shared, head_dim])
            .permute([0, 2, 3, 1, 4]);
        let queries: Tensor<4> = queries.reshape([batch, keys, shared * new, head_dim]);
        let shape = [batch, keys, shared, new, tokens];
        let joined = [batch, keys, shared * new, tokens];
        let mut scores = queries.matmul(half(0).swap_dims(2, 3)) * scale;
        if let Some(cap) = rules.softcap {
            scores = tanh(scores / cap) * cap;
        }
        if let Some((table, columns)) = rules.position_bias.zip(layout.distances.clone()) {
            let gained: Tensor<5> = table
                .clone()
                .select(1, columns)
                .reshape([keys, shared, batch, new, tokens])
                .permute([2, 0, 1, 3, 4]);
            scores = scores + gained.reshape(joined);
        }
        if let Some(hidden) = &layout.hidden {
            let hidden: Tensor<4, Bool> = hidden.clone().expand(shape).reshape(joined);
            scores = scores.mask_fill(hidden, f32::NEG_INFINITY);
        }
        let probabilities = if let Some(sinks) = rules.sinks {
            let sinks: Tensor<5> = sinks.clone().reshape([1, keys, shared, 1, 1]);
            let sinks: Tensor<4> =
                sinks
                    .expand([batch, keys, shared, new, 1])
                    .reshape([batch, keys, shared * new, 1]);
            let all = Tensor::cat(vec![scores, sinks], 3);
            softmax(all, 3).slice([0..batch, 0..keys, 0..shared * new, 0..tokens])
        } else {
            softmax(scores, 3)
        };
        let attended: Tensor<5> = probabilities
            .matmul(half(width / 2))
            .reshape([batch, keys, shared, new, head_dim])
            .permute([0, 3, 1, 2, 4]);
        let attended: Tensor<2> = attended.reshape([batch * new, count * head_dim]);
        Some(match &layout.own {
            Some(rows) => attended.select(0, rows.clone()),
            None => attended,
        })
    }
}

/// Reads the keys and values of all tokens, `[batch * tokens, width]`.
fn padded_lines(matrices: &[&Tensor<2>], layout: &Arc<Layout>) -> Tensor<2> {
    let read = matrices.iter().zip(&layout.rows);
    let mut read: Vec<Tensor<2>> = read
        .map(|(matrix, rows)| (*matrix).clone().select(0, rows.clone()))
        .collect();
    let all = match read.len() {
        1 => read.remove(0),
        _ => Tensor::cat(read, 0),
    };
    match &layout.padded {
        Some(places) => all.select(0, places.clone()),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::cpu::Cpu;
    use super::super::super::{Ops, Span};
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index + seed) * 7919 % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// Attention of four requests in two pools and a matrix of new tokens; `queries` are those of each request.
    fn attended<O: Ops>(ops: &O, queries: [usize; 4], form: usize) -> Vec<f32> {
        let heads = Heads {
            queries: 6,
            keys: 2,
            head_dim: 4,
            scale: 0.5,
        };
        let width = 16;
        let pools = [1, 2].map(|seed| ops.upload(numbers(40 * width, seed), width));
        let all: usize = queries.iter().sum();
        let new = ops.upload(numbers(all * width, 3), width);
        let input = ops.upload(numbers(all * 24, 4), 24);
        let table = ops.upload(numbers(6 * 7, 5), 7);
        let sinks = ops.upload(numbers(6, 6), 1);
        let cached: [&[(usize, usize, usize)]; 4] = [
            &[(0, 8, 8), (1, 0, 3)],
            &[(0, 24, 8), (0, 0, 8), (0, 16, 1)],
            &[],
            &[(1, 30, 2), (0, 5, 2)],
        ];
        let mut from = 0;
        let requests: Vec<AttentionSpans<'_, O::Matrix>> = cached
            .iter()
            .zip(queries)
            .map(|(cached, queries)| {
                from += queries;
                let span = |(pool, from, count): &(usize, usize, usize)| Span {
                    matrix: &pools[*pool],
                    from: *from,
                    count: *count,
                };
                let mut spans: Vec<_> = cached.iter().map(span).collect();
                let own = Span {
                    matrix: &new,
                    from: from - queries,
                    count: queries,
                };
                if form == 6 {
                    spans.push(own);
                }
                AttentionSpans {
                    queries,
                    cached: spans,
                    new_kv: (form != 6).then_some(own),
                }
            })
            .collect();
        let mut rules = ScoreRules::default();
        match form {
            1 => rules.window = Some(3),
            2 => rules.chunk = Some(4),
            3 => rules.softcap = Some(0.7),
            4 => rules.sinks = Some(&sinks),
            5 | 6 => rules.position_bias = Some(&table),
            _ => {}
        }
        let attended = ops.attend(&input, &requests, &heads, rules);
        ops.values(&attended).unwrap().into_owned()
    }

    #[test]
    fn requests_together_match_the_kernels() {
        let burn = Burn::new(Device::flex());
        for queries in [[1, 1, 1, 1], [3, 1, 5, 2], [2, 2, 2, 2]] {
            for form in 0..7 {
                let (ours, expected) = (attended(&burn, queries, form), attended(&Cpu, queries, form));
                assert_eq!(ours.len(), expected.len());
                let close = ours
                    .iter()
                    .zip(&expected)
                    .all(|(one, other)| (one - other).abs() < 1e-5);
                assert!(close, "{queries:?}, form {form}");
            }
        }
    }

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
