//! Attention of a block of consecutive queries on the CPU: a SIMD vector holds the same element of several queries.
//!
//! Scores are computed in the same order of operations as by [`dot`](super::attention::dot), and sums of values as by
//! [`add_weighted`], so that a query's result is bit-identical alone and in a block.

use std::ops::Range;

use pulp::Simd;

use super::attention::add_weighted;

/// Queries per block: one vector with AVX-512, two with AVX2, four with Neon.
pub(super) const QUERIES: usize = 16;
/// Keys processed together per read of the queries.
const KEYS: usize = 4;
/// Queries processed together per read of the values.
const SUMS: usize = 4;
/// Vectors of values accumulated in registers.
const WIDE: usize = 4;

/// Queries of one head, grouped by element.
pub(super) struct BlockQueries {
    /// First the elements that fill whole vectors of a key, by lane; then the rest. `QUERIES` values each.
    elements: Vec<f32>,
}

impl BlockQueries {
    pub(super) fn new(head_dim: usize) -> Self {
        Self {
            elements: vec![0.0; head_dim * QUERIES],
        }
    }

    /// Reads one head of every query; `queries` are rows of `width`, and the head begins at column `from`.
    pub(super) fn read(&mut self, queries: &[f32], width: usize, from: usize, lanes: usize) {
        let head_dim = self.elements.len() / QUERIES;
        let vectors = head_dim / lanes;
        for (index, query) in queries.chunks_exact(width).enumerate() {
            let head = query.get(from..from + head_dim).unwrap_or_default();
            for (element, value) in head.iter().enumerate() {
                let (vector, lane) = (element / lanes, element % lanes);
                let place = if vector < vectors {
                    lane * vectors + vector
                } else {
                    element
                };
                if let Some(slot) = self.elements.get_mut(place * QUERIES + index) {
                    *slot = *value;
                }
            }
        }
    }
}

/// Computes the products of queries and keys, times `scale`: `scores` has one row of `lines.len()` per query. The
/// head's keys begin at column `from` of the lines.
#[inline(always)]
pub(super) fn score<S: Simd>(
    simd: S,
    queries: &BlockQueries,
    lines: &[&[f32]],
    from: usize,
    scale: f32,
    scores: &mut [f32],
) {
    match S::F32_LANES {
        16 => score_in::<S, 16, 1>(simd, queries, lines, from, scale, scores),
        8 => score_in::<S, 8, 2>(simd, queries, lines, from, scale, scores),
        4 => score_in::<S, 4, 4>(simd, queries, lines, from, scale, scores),
        _ => score_in::<S, 1, QUERIES>(simd, queries, lines, from, scale, scores),
    }
}

#[inline(always)]
fn score_in<S: Simd, const LANES: usize, const VECTORS: usize>(
    simd: S,
    queries: &BlockQueries,
    lines: &[&[f32]],
    from: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let head_dim = queries.elements.len() / QUERIES;
    let (elements, _) = S::as_simd_f32s(&queries.elements);
    let (elements, _) = elements.as_chunks::<VECTORS>();
    let (filling, rest) = elements.split_at((head_dim - head_dim % LANES).min(elements.len()));
    let tokens = lines.len();
    // `tile` is indexed by key, then by query.
    let mut tile = [[0.0; QUERIES]; QUERIES];
    for (block, lines) in lines.chunks(QUERIES).enumerate() {
        let (tiles, _) = tile.as_chunks_mut::<KEYS>();
        for (lines, tile) in lines.chunks(KEYS).zip(tiles) {
            // Missing keys are replaced by the first one.
            let mut keys = [lines.first().copied().unwrap_or_default(); KEYS];
            for (key, line) in keys.iter_mut().zip(lines) {
                *key = line;
            }
            let keys = keys.map(|line| line.get(from..from + head_dim).unwrap_or_default());
            products::<S, LANES, VECTORS>(simd, filling, rest, keys, tile);
        }
        for (query, scores) in scores.chunks_exact_mut(tokens.max(1)).take(QUERIES).enumerate() {
            let scores = scores.iter_mut().skip(block * QUERIES);
            for (score, products) in scores.zip(tile.iter().take(lines.len())) {
                *score = products.get(query).copied().unwrap_or_default() * scale;
            }
        }
    }
}

/// Computes the products of all queries with several keys.
#[inline(always)]
fn products<S: Simd, const LANES: usize, const VECTORS: usize>(
    simd: S,
    filling: &[[S::f32s; VECTORS]],
    rest: &[[S::f32s; VECTORS]],
    keys: [&[f32]; KEYS],
    out: &mut [[f32; QUERIES]; KEYS],
) {
    let keys = keys.map(|key| key.as_chunks::<LANES>());
    for vector in 0..VECTORS {
        let lanes = Lanes {
            filling,
            keys: keys.map(|(chunks, _)| chunks),
            vector,
        };
        let sums = lanes.all(simd, 0);
        // Elements after the last whole vector of a key, in order.
        let mut rests = [simd.splat_f32s(0.0); KEYS];
        for (index, element) in rest.iter().enumerate() {
            let Some(element) = element.get(vector) else {
                continue;
            };
            for (sum, (_, key)) in rests.iter_mut().zip(&keys) {
                let key = simd.splat_f32s(key.get(index).copied().unwrap_or_default());
                *sum = simd.add_f32s(*sum, simd.mul_f32s(*element, key));
            }
        }
        for ((sum, rest), out) in sums.into_iter().zip(rests).zip(&mut *out) {
            let (out, _) = S::as_mut_simd_f32s(out);
            if let Some(out) = out.get_mut(vector) {
                *out = simd.add_f32s(sum, rest);
            }
        }
    }
}

/// Defines a function that adds the sums of a lane and of the lane half a vector further, if vectors have it. A macro,
/// because a recursive function cannot be inlined.
macro_rules! halves {
    ($name:ident, $part:ident, $lanes:literal) => {
        #[inline(always)]
        fn $name(&self, simd: S, lane: usize) -> [S::f32s; KEYS] {
            if LANES < $lanes {
                return self.$part(simd, lane);
            }
            added(
                simd,
                self.$part(simd, lane),
                self.$part(simd, lane + $lanes / 2),
            )
        }
    };
}

/// Products of one vector of queries with the elements of several keys that fill whole vectors, by lane.
struct Lanes<'a, S: Simd, const LANES: usize, const VECTORS: usize> {
    filling: &'a [[S::f32s; VECTORS]],
    keys: [&'a [[f32; LANES]]; KEYS],
    /// Index of the vector of queries.
    vector: usize,
}

impl<S: Simd, const LANES: usize, const VECTORS: usize> Lanes<'_, S, LANES, VECTORS> {
    /// Returns the sums of one lane.
    #[inline(always)]
    fn one(&self, simd: S, lane: usize) -> [S::f32s; KEYS] {
        let [a, b, c, d] = self.keys;
        let mut sums = [simd.splat_f32s(0.0); KEYS];
        let filling = self.filling.get(lane * a.len()..).unwrap_or_default();
        // Zipped iterators of equal length need no bounds checks.
        for ((((elements, a), b), c), d) in filling.iter().zip(a).zip(b).zip(c).zip(d) {
            let Some(element) = elements.get(self.vector) else {
                continue;
            };
            for (sum, key) in sums.iter_mut().zip([a, b, c, d]) {
                let key = simd.splat_f32s(key.get(lane).copied().unwrap_or_default());
                *sum = simd.mul_add_f32s(*element, key, *sum);
            }
        }
        sums
    }

    // Adds halves of a vector: lanes 0 and 8, then 0 and 4, and so on.
    halves!(two, one, 16);
    halves!(four, two, 8);
    halves!(eight, four, 4);
    halves!(all, eight, 2);
}

#[inline(always)]
fn added<S: Simd>(simd: S, mut first: [S::f32s; KEYS], second: [S::f32s; KEYS]) -> [S::f32s; KEYS] {
    for (first, second) in first.iter_mut().zip(second) {
        *first = simd.add_f32s(*first, second);
    }
    first
}

/// Adds to each query's head of `out` the weighted values of the tokens in its range. `out` has rows of `width`,
/// `weights` has rows of `lines.len()`; the head begins at column `to` of `out`, its values at column `from` of the
/// lines.
#[inline(always)]
pub(super) fn add_values<S: Simd>(
    simd: S,
    (out, width, to): (&mut [f32], usize, usize),
    (weights, ranges): (&[f32], &[Range<usize>]),
    (lines, from): (&[&[f32]], usize),
    head_dim: usize,
) {
    let rows = out.chunks_mut(width * SUMS);
    let weights = weights.chunks((lines.len() * SUMS).max(1));
    for ((rows, weights), ranges) in rows.zip(weights).zip(ranges.chunks(SUMS)) {
        let mut weights = weights.chunks(lines.len().max(1));
        let mut rows = rows.chunks_mut(width);
        let mut heads = [(); SUMS].map(|()| {
            let head = rows.next().and_then(|row| row.get_mut(to..to + head_dim));
            (head.unwrap_or_default(), weights.next().unwrap_or_default())
        });
        let common = ranges.iter().fold(0..usize::MAX, |common, range| {
            common.start.max(range.start)..common.end.min(range.end)
        });
        let common = common.start..common.end.max(common.start);
        let value = |token: usize| {
            let line = lines.get(token).copied().unwrap_or_default();
            line.get(from..from + head_dim).unwrap_or_default()
        };
        let single = |(head, weights): &mut (&mut [f32], &[f32]), tokens: Range<usize>| {
            for token in tokens {
                let weight = weights.get(token).copied().unwrap_or_default();
                add_weighted(simd, weight, value(token), head);
            }
        };
        // Ranges without a common token are processed one by one.
        for (head, range) in heads.iter_mut().zip(ranges) {
            single(head, range.start..common.start.min(range.end));
        }
        if ranges.len() == SUMS {
            let shared = lines.get(common.clone()).unwrap_or_default();
            add_shared(simd, &mut heads, shared, common.start, from);
        } else {
            for head in heads.iter_mut().take(ranges.len()) {
                single(head, common.clone());
            }
        }
        for (head, range) in heads.iter_mut().zip(ranges) {
            single(head, common.end.max(range.start)..range.end);
        }
    }
}

/// Adds the values of tokens that all queries attend to; `first` is the index of the first one's weight.
#[inline(always)]
fn add_shared<S: Simd>(
    simd: S,
    heads: &mut [(&mut [f32], &[f32]); SUMS],
    lines: &[&[f32]],
    first: usize,
    from: usize,
) {
    let weights = heads.each_ref().map(|(_, weights)| {
        let to = first + lines.len();
        weights.get(first..to).unwrap_or_default()
    });
    let head_dim = heads.each_ref().map(|(head, _)| head.len()).into_iter().min();
    let head_dim = head_dim.unwrap_or_default();
    let mut begin = 0;
    while begin < head_dim {
        let wide = (head_dim - begin) / S::F32_LANES;
        match wide {
            WIDE.. => {
                sum_shared::<S, WIDE>(simd, heads, weights, lines, begin, from + begin);
                begin += WIDE * S::F32_LANES;
            }
            1.. => {
                sum_shared::<S, 1>(simd, heads, weights, lines, begin, from + begin);
                begin += S::F32_LANES;
            }
            0 => {
                for ((head, _), weights) in heads.iter_mut().zip(weights) {
                    let head = head.get_mut(begin..).unwrap_or_default();
                    for (line, weight) in lines.iter().zip(weights) {
                        let value = line.get(from + begin..from + head_dim).unwrap_or_default();
                        add_weighted(simd, *weight, value, head);
                    }
                }
                begin = head_dim;
            }
        }
    }
}

#[inline(always)]
fn sum_shared<S: Simd, const COUNT: usize>(
    simd: S,
    heads: &mut [(&mut [f32], &[f32]); SUMS],
    weights: [&[f32]; SUMS],
    lines: &[&[f32]],
    begin: usize,
    from: usize,
) {
    let length = COUNT * S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); COUNT]; SUMS];
    for (sums, (head, _)) in sums.iter_mut().zip(heads.iter()) {
        let (vectors, _) = S::as_simd_f32s(head.get(begin..begin + length).unwrap_or_default());
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            *sum = *vector;
        }
    }
    for (token, line) in lines.iter().enumerate() {
        let (values, _) = S::as_simd_f32s(line.get(from..from + length).unwrap_or_default());
        let Some(values) = values.first_chunk::<COUNT>() else {
            continue;
        };
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = simd.splat_f32s(weights.get(token).copied().unwrap_or_default());
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = simd.mul_add_f32s(weight, *value, *sum);
            }
        }
    }
    for (sums, (head, _)) in sums.iter().zip(heads.iter_mut()) {
        let (vectors, _) = S::as_mut_simd_f32s(head.get_mut(begin..begin + length).unwrap_or_default());
        for (vector, sum) in vectors.iter_mut().zip(sums) {
            *vector = *sum;
        }
    }
}
