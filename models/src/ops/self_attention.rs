//! Encoder self-attention on the CPU: all tokens of a sequence attend to all visible ones.
//!
//! Keys and values are packed once per head, so that scores and weighted sums of values for some queries are matrix
//! products. A task computes all heads of some queries, so that tasks write to disjoint rows.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::gemm::{gemm_into, is_small, rows_per_task};
use super::packed::{PANEL, Panels, pack};
use super::rows::Rows;
use super::softmax::softmax;
use super::{EncoderAttention, SegmentScores};

/// Score of a masked token pair; finite, so that the result is finite even if all tokens are masked.
const HIDDEN: f32 = -1e30;

/// Packed keys and values of a head's visible tokens.
struct PackedHead {
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Products of the keys with the queries of the distances, `[tokens, distances]`; empty without distances.
    by_distance: Vec<f32>,
}

/// Packed keys and queries of one head's distances.
#[derive(Default)]
struct PackedDistances {
    keys: Vec<f32>,
    queries: Vec<f32>,
}

/// Consecutive queries of a sequence.
struct Task<'a> {
    /// Index of the sequence.
    sequence: usize,
    /// Position of the first query.
    first: usize,
    /// Rows of the projection for these queries.
    projected: &'a [f32],
    out: &'a mut [f32],
}

/// Data shared by all tasks.
struct Shared<'a> {
    attention: &'a EncoderAttention<'a, Rows>,
    width: usize,
    head_dim: usize,
    /// First row in use of the distances, and the number of rows.
    distances: (usize, usize),
    /// Packed distances per head; empty without distances.
    packed: Vec<PackedDistances>,
}

pub(super) fn attend_sequences(
    projected: &Rows,
    sequences: &[&[bool]],
    attention: &EncoderAttention<'_, Rows>,
) -> Rows {
    let (width, heads) = (projected.width / 3, attention.heads);
    let head_dim = width / heads.max(1);
    let mut out = vec![0.0; projected.values.len() / 3];
    if out.is_empty() || head_dim == 0 {
        return Rows { values: out, width };
    }
    let rows_of = rows_by_sequence(projected, sequences);
    let visible: Vec<Vec<usize>> = sequences
        .iter()
        .map(|mask| {
            (0..mask.len())
                .filter(|token| mask.get(*token) == Some(&true))
                .collect()
        })
        .collect();
    let pairs = sequences.iter().map(|mask| mask.len().pow(2)).sum::<usize>();
    let small = is_small(2 * pairs * width);
    let longest = sequences.iter().map(|mask| mask.len()).max().unwrap_or_default();
    let shared = Shared::new(attention, width, head_dim, longest);

    let pack_one = |index: usize| {
        let (sequence, head) = (index / heads, index % heads);
        let mask = sequences.get(sequence).copied().unwrap_or_default();
        let lines = rows_of.get(sequence).copied().unwrap_or_default();
        shared.pack(lines, mask, head)
    };
    let count = sequences.len() * heads;
    let packed: Vec<PackedHead> = if small {
        (0..count).map(pack_one).collect()
    } else {
        (0..count).into_par_iter().map(pack_one).collect()
    };
    let compute = |task: Task<'_>| {
        let heads = packed.chunks(heads).nth(task.sequence).unwrap_or_default();
        let tokens = visible.get(task.sequence).map_or(&[][..], Vec::as_slice);
        task.compute(heads, tokens, &shared);
    };
    let each = rows_per_task(projected.values.len() / projected.width.max(1));
    let tasks = tasks(&rows_of, &mut out, projected.width, each);
    if small {
        tasks.into_iter().for_each(compute);
    } else {
        tasks.into_par_iter().for_each(compute);
    }
    Rows { values: out, width }
}

fn rows_by_sequence<'a>(projected: &'a Rows, sequences: &[&[bool]]) -> Vec<&'a [f32]> {
    let mut from = 0;
    let rows = sequences.iter().map(|mask| {
        from += mask.len();
        projected.span(from - mask.len(), mask.len())
    });
    rows.collect()
}

fn tasks<'a>(rows_of: &[&'a [f32]], mut out: &'a mut [f32], width: usize, each: usize) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    for (sequence, rows) in rows_of.iter().enumerate() {
        for (index, projected) in rows.chunks((each * width).max(1)).enumerate() {
            let (own, rest) = out.split_at_mut((projected.len() / 3).min(out.len()));
            out = rest;
            tasks.push(Task {
                sequence,
                first: index * each,
                projected,
                out: own,
            });
        }
    }
    tasks
}

/// Copies `head_dim` columns from `from` on of every row.
fn columns<'a>(rows: impl Iterator<Item = &'a [f32]>, from: usize, head_dim: usize) -> Vec<f32> {
    let mut copied = Vec::new();
    for row in rows {
        copied.extend_from_slice(row.get(from..from + head_dim).unwrap_or_default());
    }
    copied
}

/// Packs vectors of `head_dim` values as the columns of a matrix.
fn pack_columns(vectors: &[f32], head_dim: usize) -> Vec<f32> {
    let count = vectors.len() / head_dim.max(1);
    let mut packed = vec![0.0; count.div_ceil(PANEL) * PANEL * head_dim];
    for (index, vector) in vectors.chunks_exact(head_dim.max(1)).enumerate() {
        let column = index / PANEL * PANEL * head_dim + index % PANEL;
        let slots = packed.iter_mut().skip(column).step_by(PANEL);
        for (slot, value) in slots.zip(vector) {
            *slot = *value;
        }
    }
    packed
}

impl<'a> Shared<'a> {
    /// Packs the keys and queries of the distances that sequences of at most `longest` tokens use.
    fn new(attention: &'a EncoderAttention<'a, Rows>, width: usize, head_dim: usize, longest: usize) -> Self {
        let mut shared = Self {
            attention,
            width,
            head_dim,
            distances: (0, 0),
            packed: Vec::new(),
        };
        if let Some(scores) = attention.distances {
            let (first, last) = scores.rows.range(longest);
            let count = last + 1 - first;
            shared.distances = (first, count);
            let part = |matrix: &Option<Rows>, head: usize| {
                let rows = matrix
                    .as_ref()
                    .map(|matrix| matrix.span(first, count))
                    .unwrap_or_default();
                pack_columns(
                    &columns(rows.chunks_exact(width), head * head_dim, head_dim),
                    head_dim,
                )
            };
            let heads = (0..attention.heads).map(|head| PackedDistances {
                keys: part(&scores.keys, head),
                queries: part(&scores.queries, head),
            });
            shared.packed = heads.collect();
        }
        shared
    }

    /// Packs a head of the visible tokens; `lines` are `[queries | keys | values]`, each `width` wide.
    fn pack(&self, lines: &[f32], mask: &[bool], head: usize) -> PackedHead {
        let (width, head_dim) = (self.width, self.head_dim);
        let from = head * head_dim;
        let visible = || {
            let lines = lines.chunks_exact((3 * width).max(1)).zip(mask);
            lines.filter(|(_, visible)| **visible).map(|(line, _)| line)
        };
        let keys = columns(visible(), width + from, head_dim);
        let values = columns(visible(), 2 * width + from, head_dim);
        let count = keys.len() / head_dim;
        let mut by_distance = Vec::new();
        if let Some(distances) = self
            .packed
            .get(head)
            .filter(|distances| !distances.queries.is_empty())
        {
            by_distance = vec![0.0; count * self.distances.1];
            gemm_into(
                &mut by_distance,
                self.distances.1,
                &keys,
                head_dim,
                Panels::F32(&distances.queries),
                &[],
            );
        }
        PackedHead {
            keys: pack_columns(&keys, head_dim),
            values: pack(&values, count, head_dim),
            by_distance,
        }
    }
}

impl Task<'_> {
    /// Computes all heads of the queries; `tokens` are the positions of the visible tokens.
    fn compute(self, heads: &[PackedHead], tokens: &[usize], shared: &Shared<'_>) {
        let (width, head_dim) = (shared.width, shared.head_dim);
        let count = self.projected.len() / (3 * width);
        let mut queries = vec![0.0; count * head_dim];
        let mut scores = vec![0.0; count * tokens.len()];
        let mut attended = vec![0.0; count * head_dim];
        for (index, head) in heads.iter().enumerate() {
            let columns = index * head_dim..(index + 1) * head_dim;
            let lines = self.projected.chunks_exact(3 * width);
            for (query, line) in queries.chunks_exact_mut(head_dim).zip(lines) {
                for (slot, value) in query
                    .iter_mut()
                    .zip(line.get(columns.clone()).unwrap_or_default())
                {
                    *slot = value * shared.attention.scale;
                }
            }
            gemm_into(
                &mut scores,
                tokens.len(),
                &queries,
                head_dim,
                Panels::F32(&head.keys),
                &[],
            );
            self.add_pairs(&mut scores, index, tokens, shared);
            self.add_kinds(&mut scores, index, tokens, shared);
            if shared.attention.depends_on_distance() {
                self.relate(&mut scores, &queries, (index, head), tokens, shared);
            }
            Arch::new().dispatch(Softmax {
                scores: &mut scores,
                tokens: tokens.len(),
            });
            gemm_into(
                &mut attended,
                head_dim,
                &scores,
                tokens.len(),
                Panels::F32(&head.values),
                &[],
            );
            let lines = self.out.chunks_exact_mut(width);
            for (line, attended) in lines.zip(attended.chunks_exact(head_dim)) {
                if let Some(line) = line.get_mut(columns.clone()) {
                    line.copy_from_slice(attended);
                }
            }
        }
    }

    /// Adds the pair scores of a head.
    fn add_pairs(&self, scores: &mut [f32], head: usize, tokens: &[usize], shared: &Shared<'_>) {
        let Some(pairs) = &shared.attention.pairs else {
            return;
        };
        let kind = pairs.kinds.get(self.sequence).copied().unwrap_or_default();
        let table = pairs.values.span(kind * shared.attention.heads + head, 1);
        let rows = table.chunks_exact(pairs.tokens.max(1)).skip(self.first);
        for (scores, row) in scores.chunks_exact_mut(tokens.len().max(1)).zip(rows) {
            for (score, key) in scores.iter_mut().zip(tokens) {
                *score += row.get(*key).copied().unwrap_or_default();
            }
        }
    }

    /// Adds the scores of a head for tokens of different kinds.
    fn add_kinds(&self, scores: &mut [f32], head: usize, tokens: &[usize], shared: &Shared<'_>) {
        let Some(SegmentScores { values, kinds }) = &shared.attention.kinds else {
            return;
        };
        let before: usize = kinds.iter().take(self.sequence).map(|kinds| kinds.len()).sum();
        let kinds = kinds.get(self.sequence).copied().unwrap_or_default();
        let lines = scores.chunks_exact_mut(tokens.len().max(1)).enumerate();
        for (query, scores) in lines {
            let position = self.first + query;
            let own = kinds.get(position);
            let value = values.span(before + position, 1).get(head);
            let value = value.copied().unwrap_or_default();
            for (score, key) in scores.iter_mut().zip(tokens) {
                if kinds.get(*key) != own {
                    *score += value;
                }
            }
        }
    }

    /// Adds the scores of a head that depend on distances.
    fn relate(
        &self,
        scores: &mut [f32],
        queries: &[f32],
        (index, head): (usize, &PackedHead),
        tokens: &[usize],
        shared: &Shared<'_>,
    ) {
        let Shared {
            attention,
            head_dim,
            distances: (first_row, count),
            ..
        } = *shared;
        let mut of_queries = Vec::new();
        if let Some(packed) = shared.packed.get(index).filter(|packed| !packed.keys.is_empty()) {
            of_queries = vec![0.0; queries.len() / head_dim * count];
            gemm_into(
                &mut of_queries,
                count,
                queries,
                head_dim,
                Panels::F32(&packed.keys),
                &[],
            );
        }
        let bias = attention.position_bias.map(|table| table.span(index, 1));
        let leading = attention.leading_of(self.sequence);
        for (query, scores) in scores.chunks_exact_mut(tokens.len().max(1)).enumerate() {
            let position = self.first + query;
            for ((place, key), score) in tokens.iter().enumerate().zip(scores) {
                if let Some(bias) = bias {
                    let center = bias.len() / 2;
                    let entry = (center + key).saturating_sub(position).min(2 * center);
                    *score += bias.get(entry).copied().unwrap_or_default();
                }
                if let Some(scores) = attention.distances {
                    let row = scores.rows.row(position, *key).saturating_sub(first_row);
                    let of = |products: &[f32], line: usize| products.get(line * count + row).copied();
                    *score += of(&of_queries, query).unwrap_or_default();
                    *score += of(&head.by_distance, place).unwrap_or_default() * attention.scale;
                }
                let outside = attention
                    .window
                    .is_some_and(|window| key.abs_diff(position) > window);
                if outside && *key >= leading {
                    *score = HIDDEN;
                }
            }
        }
    }
}

/// Computes the softmax of every row of scores, in place.
struct Softmax<'a> {
    scores: &'a mut [f32],
    tokens: usize,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for scores in self.scores.chunks_exact_mut(self.tokens.max(1)) {
            softmax(scores);
        }
    }
}

#[cfg(test)]
mod tests;
