//! Attention on the CPU over keys and values in separate spans, as stored by a paged cache.
//!
//! A query visits its keys in token order and always in the same steps, wherever the keys are stored. The result is
//! therefore bit-identical whether a key was cached, loaded or recomputed.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::block_attention::{BlockQueries, QUERIES, add_values, score};
use super::rows::Rows;
use super::softmax::softmax_beside;
use super::{AttentionSpans, Heads, ScoreRules};

/// Fewer queries than this are computed one by one, because most of a block's vectors would be unused.
const BLOCK: usize = 4;

pub(super) fn attend(
    queries: &Rows,
    requests: &[AttentionSpans<'_, Rows>],
    heads: &Heads,
    rules: ScoreRules<'_, Rows>,
) -> Rows {
    let width = heads.query_width().max(1);
    let mut out = vec![0.0; queries.values.len()];
    let count = queries.values.len() / width;
    let threads = rayon::current_num_threads();
    // Distributes few queries over the cores one by one, and a single query by its heads.
    let block = (count / (2 * threads)).clamp(1, QUERIES);
    let parts = threads.div_ceil(count.max(1));
    let groups = heads.keys.div_ceil(heads.keys.div_ceil(parts).max(1)).max(1);
    let keys = heads.keys.div_ceil(groups);
    let share = (keys * (heads.queries / heads.keys.max(1)) * heads.head_dim).max(1);
    let arch = Arch::new();
    tasks(&mut out, &queries.values, requests, width, block)
        .into_par_iter()
        .for_each(|task| {
            if task.count > 1 {
                arch.dispatch(Attend::new(task, 0, heads, rules));
                return;
            }
            let Task { out, queries, .. } = task;
            out.par_chunks_mut(share)
                .zip(queries.par_chunks(share))
                .enumerate()
                .for_each(|(group, (out, queries))| {
                    let part = Task { queries, out, ..task };
                    arch.dispatch(Attend::new(part, group * keys, heads, rules));
                });
        });
    Rows { values: out, width }
}

/// Consecutive queries of a request.
struct Task<'a> {
    request: &'a AttentionSpans<'a, Rows>,
    /// Index of the first query in its request.
    first: usize,
    count: usize,
    queries: &'a [f32],
    out: &'a mut [f32],
}

fn tasks<'a>(
    mut out: &'a mut [f32],
    mut queries: &'a [f32],
    requests: &'a [AttentionSpans<'a, Rows>],
    width: usize,
    block: usize,
) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    for request in requests {
        for first in (0..request.queries).step_by(block) {
            let count = block.min(request.queries - first);
            let (own, rest) = queries.split_at((count * width).min(queries.len()));
            let (target, others) = out.split_at_mut((count * width).min(out.len()));
            (queries, out) = (rest, others);
            tasks.push(Task {
                request,
                first,
                count,
                queries: own,
                out: target,
            });
        }
    }
    tasks
}

/// Attention of a task's queries, for some of their heads.
struct Attend<'a> {
    task: Task<'a>,
    /// First key head that these query heads share.
    first_key: usize,
    heads: &'a Heads,
    rules: ScoreRules<'a, Rows>,
}

/// Keys and values that the queries of a task attend to.
struct Visible<'a> {
    pieces: Vec<&'a [f32]>,
    /// Index of their first token in the request.
    from: usize,
    /// Token range that each query attends to.
    ranges: Vec<Range<usize>>,
    /// Position of the first query among the tokens.
    position: usize,
}

impl<'a> Attend<'a> {
    fn new(task: Task<'a>, first_key: usize, heads: &'a Heads, rules: ScoreRules<'a, Rows>) -> Self {
        Self {
            task,
            first_key,
            heads,
            rules,
        }
    }

    fn visible(&self) -> Visible<'a> {
        let AttentionSpans { cached, new_kv, .. } = self.task.request;
        let (first, count) = (self.task.first, self.task.count);
        let mut pieces: Vec<&[f32]> = cached
            .iter()
            .map(|span| span.matrix.span(span.from, span.count))
            .collect();
        let before: usize = cached.iter().map(|span| span.count).sum();
        let Some(new_kv) = new_kv else {
            return Visible {
                pieces,
                from: 0,
                ranges: (first..first + count)
                    .map(|position| self.rules.visible_around(position, before))
                    .collect(),
                position: first,
            };
        };
        pieces.push(new_kv.matrix.span(new_kv.from, first + count));
        let position = before + first;
        let range = |position: usize| self.rules.first_visible(position)..position + 1;
        let from = range(position).start;
        let mut hidden = from * 2 * self.heads.key_width();
        for piece in &mut pieces {
            let skipped = hidden.min(piece.len());
            *piece = piece.get(skipped..).unwrap_or_default();
            hidden -= skipped;
        }
        Visible {
            pieces,
            from,
            ranges: (position..position + count).map(range).collect(),
            position,
        }
    }
}

impl WithSimd for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.task.count >= BLOCK {
            self.block(simd);
        } else {
            self.one_by_one(simd);
        }
    }
}

impl Attend<'_> {
    /// Computes all heads for a block of queries, head by head.
    #[inline(always)]
    fn block<S: Simd>(self, simd: S) {
        let Heads {
            queries,
            keys,
            head_dim,
            scale,
        } = *self.heads;
        let (shared, key_width, width) = (
            (queries / keys.max(1)).max(1),
            self.heads.key_width(),
            self.heads.query_width(),
        );
        let visible = self.visible();
        let lines: Vec<&[f32]> = visible
            .pieces
            .iter()
            .flat_map(|piece| piece.chunks_exact((2 * key_width).max(1)))
            .collect();
        let ranges: Vec<Range<usize>> = visible
            .ranges
            .iter()
            .map(|range| range.start - visible.from..range.end - visible.from)
            .collect();
        let Task {
            queries: rows, out, ..
        } = self.task;
        let mut block = BlockQueries::new(head_dim);
        let mut scores = vec![0.0; self.task.count * lines.len()];
        for head in 0..queries {
            let (column, key) = (head * head_dim, head / shared * head_dim);
            block.read(rows, width.max(1), column, S::F32_LANES);
            score(simd, &block, &lines, key, scale, &mut scores);
            let rows = scores.chunks_exact_mut(lines.len().max(1)).zip(&ranges);
            for (row, (scores, range)) in rows.enumerate() {
                let Some(scores) = scores.get_mut(range.clone()) else {
                    continue;
                };
                let position = visible.position + row;
                self.rules.cap(scores);
                self.rules
                    .add_bias(scores, head, visible.from + range.start, position);
                softmax_beside(scores, self.rules.sink(head));
            }
            let values = (lines.as_slice(), key_width + key);
            add_values(
                simd,
                (&mut *out, width.max(1), column),
                (&scores, &ranges),
                values,
                head_dim,
            );
        }
    }

    /// Computes some heads for few queries.
    #[inline(always)]
    fn one_by_one<S: Simd>(self, simd: S) {
        let Heads {
            queries,
            keys,
            head_dim,
            scale,
        } = *self.heads;
        let (shared, width) = (queries / keys.max(1), self.heads.key_width());
        let visible = self.visible();
        let Visible { pieces, from, .. } = &visible;
        let Self {
            task,
            first_key,
            rules,
            ..
        } = self;
        let tokens = (pieces.iter().map(|piece| piece.len()).sum::<usize>() / (2 * width).max(1)).max(1);
        let share = (task.out.len() / task.count.max(1)).max(1);
        // Scores are ordered by query, then head, then token.
        let of_query = (share / head_dim.max(1) * tokens).max(1);
        let mut scores = vec![0.0; task.count * of_query];
        let first = first_key * head_dim;
        // Iterates by token, not by head, because a token's keys are contiguous.
        let lines = pieces
            .iter()
            .flat_map(|piece| piece.chunks_exact((2 * width).max(1)));
        for (token, line) in lines.clone().enumerate() {
            let columns = line.get(first..width).unwrap_or_default();
            let rows = task
                .queries
                .chunks_exact(share)
                .zip(scores.chunks_exact_mut(of_query));
            for (range, (query, scores)) in visible.ranges.iter().zip(rows) {
                if !range.contains(&(from + token)) {
                    continue;
                }
                let targets = scores.iter_mut().skip(token).step_by(tokens);
                let heads = query
                    .chunks_exact(head_dim)
                    .zip(repeated(columns, head_dim, shared));
                for (score, (query, key)) in targets.zip(heads) {
                    *score = dot(simd, query, key) * scale;
                }
            }
        }
        rules.cap(&mut scores);
        let rows = scores.chunks_exact_mut(of_query).zip(&visible.ranges);
        for (row, (scores, range)) in rows.enumerate() {
            for (head, scores) in scores.chunks_exact_mut(tokens).enumerate() {
                let Some(scores) = scores.get_mut(range.start - from..range.end - from) else {
                    continue;
                };
                let position = visible.position + row;
                let head = first_key * shared + head;
                rules.add_bias(scores, head, range.start, position);
                softmax_beside(scores, rules.sink(head));
            }
        }
        for (token, line) in lines.enumerate() {
            let columns = line.get(width + first..).unwrap_or_default();
            let rows = task
                .out
                .chunks_exact_mut(share)
                .zip(scores.chunks_exact(of_query));
            for (range, (out, weights)) in visible.ranges.iter().zip(rows) {
                if !range.contains(&(from + token)) {
                    continue;
                }
                let weights = weights.iter().skip(token).step_by(tokens);
                let heads = out
                    .chunks_exact_mut(head_dim)
                    .zip(repeated(columns, head_dim, shared));
                for (weight, (out, value)) in weights.zip(heads) {
                    add_weighted(simd, *weight, value, out);
                }
            }
        }
    }
}

/// Repeats each key or value head for the query heads that share it.
#[inline(always)]
fn repeated(columns: &[f32], head_dim: usize, shared: usize) -> impl Iterator<Item = &[f32]> {
    columns
        .chunks_exact(head_dim)
        .flat_map(move |head| std::iter::repeat_n(head, shared))
}

/// Returns the dot product of a query and a key: sums per vector lane, then adds halves of the vector. [`score`] uses
/// the same order of operations.
#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut sum = simd.splat_f32s(0.0);
    for (a, b) in a.iter().zip(b) {
        sum = simd.mul_add_f32s(*a, *b, sum);
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sum_of_lanes(simd, sum) + rest
}

/// Sums the lanes of a vector by repeatedly adding its halves, as [`score`] does. On x86-64 the library's sum uses the
/// same order.
#[inline(always)]
fn sum_of_lanes<S: Simd>(simd: S, vector: S::f32s) -> f32 {
    if cfg!(target_arch = "x86_64") {
        return simd.reduce_sum_f32s(vector);
    }
    let mut lanes = [0.0; 16];
    let (target, _) = S::as_mut_simd_f32s(&mut lanes);
    if let Some(target) = target.first_mut() {
        *target = vector;
    }
    for half in [8, 4, 2, 1].into_iter().filter(|half| *half < S::F32_LANES) {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    let [sum, ..] = lanes;
    sum
}

/// Adds a value times its weight to `out`.
#[inline(always)]
pub(super) fn add_weighted<S: Simd>(simd: S, weight: f32, value: &[f32], out: &mut [f32]) {
    let (values, rest) = S::as_simd_f32s(value);
    let (sums, sums_rest) = S::as_mut_simd_f32s(out);
    let factor = simd.splat_f32s(weight);
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = simd.mul_add_f32s(factor, *value, *sum);
    }
    for (sum, value) in sums_rest.iter_mut().zip(rest) {
        *sum += weight * value;
    }
}

impl ScoreRules<'_, Rows> {
    /// Applies the soft cap to scores, if there is one.
    fn cap(&self, scores: &mut [f32]) {
        if let Some(cap) = self.softcap {
            for score in scores {
                *score = cap * (*score / cap).tanh();
            }
        }
    }

    /// Returns the attention sink of a head; negative infinity without one.
    fn sink(&self, head: usize) -> f32 {
        let sink = self.sinks.and_then(|sinks| sinks.span(head, 1).first());
        sink.copied().unwrap_or(f32::NEG_INFINITY)
    }

    /// Adds the position bias of a head, if there is one, to the scores of a query at `position` with the keys from
    /// `first` on.
    fn add_bias(&self, scores: &mut [f32], head: usize, first: usize, position: usize) {
        let Some(position_bias) = self.position_bias else {
            return;
        };
        let bias = position_bias.span(head, 1);
        let (max_distance, last) = (bias.len() / 2, bias.len().saturating_sub(1));
        for (key, score) in (first..).zip(scores) {
            let place = (key + max_distance).saturating_sub(position).min(last);
            *score += bias.get(place).copied().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests;
