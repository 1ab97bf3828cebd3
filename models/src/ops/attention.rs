//! Attention on the CPU over keys and values in separate spans, as a paged cache stores them.
//!
//! A query visits its keys in token order and always in the same steps, wherever they are stored. The result therefore
//! has the same bits whether a key was cached, loaded or recomputed.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::rows::Rows;
use super::{AttentionSpans, Heads, ScoreRules};
use crate::ops::elementwise::exp_of_negative;

pub(super) fn attend(
    queries: &Rows,
    requests: &[AttentionSpans<'_, Rows>],
    heads: &Heads,
    rules: ScoreRules<'_, Rows>,
) -> Rows {
    let width = heads.query_width();
    let mut out = vec![0.0; queries.values.len()];
    let rows: Vec<(&AttentionSpans<'_, Rows>, usize)> = requests
        .iter()
        .flat_map(|request| (0..request.queries).map(move |row| (request, row)))
        .collect();
    // A row keeps one core busy; a single row is split by heads.
    let parts = rayon::current_num_threads().div_ceil(rows.len().max(1));
    let groups = heads.keys.div_ceil(heads.keys.div_ceil(parts).max(1)).max(1);
    let keys = heads.keys.div_ceil(groups);
    let share = keys * (heads.queries / heads.keys.max(1)) * heads.head_dim;
    let arch = Arch::new();
    out.par_chunks_mut(width.max(1))
        .zip(queries.values.par_chunks(width.max(1)))
        .zip(rows)
        .for_each(|((out, query), (request, row))| {
            out.par_chunks_mut(share.max(1))
                .zip(query.par_chunks(share.max(1)))
                .enumerate()
                .for_each(|(group, (out, query))| {
                    arch.dispatch(Attend {
                        query,
                        request,
                        row,
                        first_key: group * keys,
                        heads,
                        rules,
                        out,
                    });
                });
        });
    Rows { values: out, width }
}

/// One query and some of its heads.
struct Attend<'a> {
    query: &'a [f32],
    request: &'a AttentionSpans<'a, Rows>,
    /// Index of the query within its request.
    row: usize,
    /// The first key head that its heads share.
    first_key: usize,
    heads: &'a Heads,
    rules: ScoreRules<'a, Rows>,
    out: &'a mut [f32],
}

impl<'a> Attend<'a> {
    /// Returns the keys and values visible to the query, and the query's position among them.
    fn visible(&self) -> (Vec<&'a [f32]>, usize) {
        let AttentionSpans { cached, new_kv, .. } = self.request;
        let mut pieces: Vec<&[f32]> = cached
            .iter()
            .map(|span| span.matrix.span(span.from, span.count))
            .collect();
        let Some(new_kv) = new_kv else {
            return (pieces, self.row);
        };
        pieces.push(new_kv.matrix.span(new_kv.from, self.row + 1));
        let before: usize = cached.iter().map(|span| span.count).sum();
        let position = before + self.row;
        if let Some(window) = self.rules.window {
            let mut hidden = (position + 1).saturating_sub(window) * 2 * self.heads.key_width();
            for piece in &mut pieces {
                let skipped = hidden.min(piece.len());
                *piece = piece.get(skipped..).unwrap_or_default();
                hidden -= skipped;
            }
        }
        (pieces, position)
    }
}

impl WithSimd for Attend<'_> {
    type Output = ();

    #[expect(
        clippy::inline_always,
        reason = "only inlined code is compiled for the vector extension"
    )]
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Heads {
            queries,
            keys,
            head_dim,
            scale,
        } = *self.heads;
        let (shared, width) = (queries / keys.max(1), self.heads.key_width());
        let (pieces, position) = self.visible();
        let tokens = pieces.iter().map(|piece| piece.len()).sum::<usize>() / (2 * width).max(1);
        let mut scores = vec![0.0; self.out.len() / head_dim.max(1) * tokens];
        let first = self.first_key * head_dim;
        // Iterate by token, not by head: a token's keys are contiguous.
        let lines = pieces
            .iter()
            .flat_map(|piece| piece.chunks_exact((2 * width).max(1)));
        for (token, line) in lines.clone().enumerate() {
            let columns = line.get(first..width).unwrap_or_default();
            let targets = scores.iter_mut().skip(token).step_by(tokens);
            let heads = self
                .query
                .chunks_exact(head_dim)
                .zip(repeated(columns, head_dim, shared));
            for (score, (query, key)) in targets.zip(heads) {
                *score = dot(query, key) * scale;
            }
        }
        if let Some(cap) = self.rules.softcap {
            for score in &mut scores {
                *score = cap * (*score / cap).tanh();
            }
        }
        if let Some(position_bias) = self.rules.position_bias {
            let first = self.first_key * shared;
            for (head, scores) in (first..).zip(scores.chunks_exact_mut(tokens.max(1))) {
                add_position_bias(scores, position, position_bias.span(head, 1));
            }
        }
        for scores in scores.chunks_exact_mut(tokens.max(1)) {
            softmax(scores);
        }
        for (token, line) in lines.enumerate() {
            let columns = line.get(width + first..).unwrap_or_default();
            let weights = scores.iter().skip(token).step_by(tokens);
            let heads = self
                .out
                .chunks_exact_mut(head_dim)
                .zip(repeated(columns, head_dim, shared));
            for (weight, (out, value)) in weights.zip(heads) {
                for (out, value) in out.iter_mut().zip(value) {
                    *out += weight * value;
                }
            }
        }
    }
}

/// Repeats every head of a key or value for the query heads that share it.
#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
fn repeated(columns: &[f32], head_dim: usize, shared: usize) -> impl Iterator<Item = &[f32]> {
    columns
        .chunks_exact(head_dim)
        .flat_map(move |head| std::iter::repeat_n(head, shared))
}

#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0.0; 16];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Adds the position bias to the scores of a query at `position`.
fn add_position_bias(scores: &mut [f32], position: usize, position_bias: &[f32]) {
    let (max_distance, last) = (position_bias.len() / 2, position_bias.len().saturating_sub(1));
    for (key, score) in scores.iter_mut().enumerate() {
        let place = (key + max_distance).saturating_sub(position).min(last);
        *score += position_bias.get(place).copied().unwrap_or_default();
    }
}

/// Computes the softmax in place.
#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let largest = scores
        .iter()
        .fold(f32::NEG_INFINITY, |most, score| most.max(*score));
    for score in &mut *scores {
        *score = exp_of_negative(largest - *score);
    }
    let sum: f32 = scores.iter().sum();
    for score in scores {
        *score /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::super::cpu::Cpu;
    use super::super::{Ops, Span};
    use super::*;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        (0..count as u64)
            .map(|index| ((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    fn plain(query: &[f32], lines: &[f32], heads: &Heads) -> Vec<f64> {
        let (width, head_dim) = (heads.key_width(), heads.head_dim);
        let mut out = Vec::new();
        for head in 0..heads.queries {
            let key = head / (heads.queries / heads.keys) * head_dim;
            let scores: Vec<f64> = lines
                .chunks(2 * width)
                .map(|line| {
                    (0..head_dim)
                        .map(|i| f64::from(query[head * head_dim + i]) * f64::from(line[key + i]))
                        .sum::<f64>()
                })
                .map(|score| (score * f64::from(heads.scale)).exp())
                .collect();
            let sum: f64 = scores.iter().sum();
            for i in 0..head_dim {
                let values = lines
                    .chunks(2 * width)
                    .map(|line| f64::from(line[width + key + i]));
                out.push(
                    values
                        .zip(&scores)
                        .map(|(value, score)| value * score / sum)
                        .sum(),
                );
            }
        }
        out
    }

    #[test]
    fn attention_is_exact_for_any_split_of_the_cache() {
        for (queries, keys, head_dim) in [(4, 4, 5), (6, 2, 16), (3, 1, 20)] {
            let heads = Heads {
                queries,
                keys,
                head_dim,
                scale: 0.3,
            };
            let line = 2 * heads.key_width();
            let cached = Cpu.upload(numbers(11 * line, 1), line);
            let new_kv = Cpu.upload(numbers(3 * line, 2), line);
            let query = Cpu.upload(numbers(3 * heads.query_width(), 3), heads.query_width());
            let answer = |cuts: &[(usize, usize)]| {
                let cached = cuts.iter().map(|(from, count)| Span {
                    matrix: &cached,
                    from: *from,
                    count: *count,
                });
                let request = AttentionSpans {
                    queries: 3,
                    cached: cached.collect(),
                    new_kv: Some(Span {
                        matrix: &new_kv,
                        from: 0,
                        count: 3,
                    }),
                };
                attend(&query, &[request], &heads, ScoreRules::default()).values
            };
            let whole = answer(&[(0, 11)]);
            assert_eq!(whole, answer(&[(0, 4), (4, 1), (5, 6)]), "splits change no bit");
            for row in 0..3 {
                let seen = [&cached.values[..], &new_kv.values[..(row + 1) * line]].concat();
                let expected = plain(&query.values[row * heads.query_width()..], &seen, &heads);
                for (actual, expected) in whole[row * heads.query_width()..].iter().zip(expected) {
                    assert!((f64::from(*actual) - expected).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn a_window_hides_older_tokens_wherever_they_are_stored() {
        let heads = Heads {
            queries: 2,
            keys: 1,
            head_dim: 4,
            scale: 0.5,
        };
        let line = 2 * heads.key_width();
        let lines = Cpu.upload(numbers(12 * line, 1), line);
        let query = Cpu.upload(numbers(3 * heads.query_width(), 2), heads.query_width());
        let span = |from, count| Span {
            matrix: &lines,
            from,
            count,
        };
        let of = |cached: Vec<Span<'_, Rows>>, window| {
            let request = AttentionSpans {
                queries: 3,
                cached,
                new_kv: Some(span(9, 3)),
            };
            let rules = ScoreRules {
                window,
                ..ScoreRules::default()
            };
            attend(&query, &[request], &heads, rules).values
        };
        for window in 1..14 {
            let windowed = of(vec![span(0, 4), span(4, 5)], Some(window));
            for row in 0..3 {
                let first = (row + 10_usize).saturating_sub(window);
                let seen = &lines.values[first * line..(row + 10) * line];
                let from = row * heads.query_width();
                let expected = plain(&query.values[from..], seen, &heads);
                for (actual, expected) in windowed[from..].iter().zip(expected) {
                    assert!(
                        (f64::from(*actual) - expected).abs() < 1e-5,
                        "window {window}, row {row}"
                    );
                }
            }
        }
        assert_eq!(of(vec![span(0, 9)], Some(12)), of(vec![span(0, 9)], None));
    }

    #[test]
    fn the_bias_depends_on_distance_up_to_the_maximum() {
        let heads = Heads {
            queries: 2,
            keys: 2,
            head_dim: 1,
            scale: 1.0,
        };
        // Keys are zero, so that the scores are the bias alone.
        let lines: Vec<f32> = (0..5).flat_map(|key| [0.0, 0.0, key as f32, 1.0]).collect();
        let lines = Cpu.upload(lines, 4);
        let position_bias = Cpu.upload(vec![1.0, 2.0, 3.0, 0.0, 0.0, 5.0], 3);
        let span = |from, count| Span {
            matrix: &lines,
            from,
            count,
        };
        let query = Cpu.upload(vec![0.5; 6], 2);
        let whole = AttentionSpans {
            queries: 3,
            cached: vec![span(0, 2), span(2, 3)],
            new_kv: None,
        };
        let causal = AttentionSpans {
            queries: 3,
            cached: vec![span(0, 2)],
            new_kv: Some(span(2, 3)),
        };
        let rules = ScoreRules {
            position_bias: Some(&position_bias),
            ..ScoreRules::default()
        };
        let of = |request| attend(&query, &[request], &heads, rules).values;
        let mean = |position_bias: &[f32]| {
            let sum: f32 = position_bias.iter().map(|gain| gain.exp()).sum();
            let values = position_bias.iter().enumerate();
            values
                .map(|(key, gain)| key as f32 * gain.exp() / sum)
                .sum::<f32>()
        };
        for (answers, expected) in [
            (
                of(whole),
                [
                    [2.0, 3.0, 3.0, 3.0, 3.0],
                    [1.0, 2.0, 3.0, 3.0, 3.0],
                    [1.0, 1.0, 2.0, 3.0, 3.0],
                ]
                .map(|position_bias| mean(&position_bias)),
            ),
            (
                of(causal),
                [
                    mean(&[1.0, 1.0, 2.0]),
                    mean(&[1.0, 1.0, 1.0, 2.0]),
                    mean(&[1.0, 1.0, 1.0, 1.0, 2.0]),
                ],
            ),
        ] {
            for (answer, expected) in answers.chunks(2).zip(expected) {
                assert!((answer[0] - expected).abs() < 1e-5, "{answer:?} {expected}");
                assert!((answer[1] - 1.0).abs() < 1e-5);
            }
        }
    }
}
