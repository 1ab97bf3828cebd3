//! Self-attention of encoders on the CPU: all tokens of a sequence attend to all visible ones.
//!
//! Keys and values are packed once per head; the scores of some queries and their sums of values are then matrix
//! products. A task computes all heads of some queries, so that tasks write to disjoint rows.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::elementwise::exp_of_negative;
use super::gemm::{PANEL, gemm_into, is_small, pack, rows_per_task};
use super::rows::Rows;

/// The visible keys and values of a head, packed.
struct PackedHead {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Some consecutive queries of a sequence.
struct Task<'a> {
    /// Index of the sequence.
    sequence: usize,
    /// Their rows of the projection.
    projected: &'a [f32],
    out: &'a mut [f32],
}

pub(super) fn attend_sequences(projected: &Rows, sequences: &[&[bool]], heads: usize) -> Rows {
    let width = projected.width / 3;
    let head_dim = width / heads.max(1);
    let mut out = vec![0.0; projected.values.len() / 3];
    if out.is_empty() || head_dim == 0 {
        return Rows { values: out, width };
    }
    let rows_of = rows_by_sequence(projected, sequences);
    let visible: Vec<usize> = sequences
        .iter()
        .map(|mask| mask.iter().filter(|visible| **visible).count())
        .collect();
    let pairs = sequences.iter().map(|mask| mask.len().pow(2)).sum::<usize>();
    let small = is_small(2 * pairs * width);

    let pack_one = |index: usize| {
        let (sequence, head) = (index / heads, index % heads);
        let mask = sequences.get(sequence).copied().unwrap_or_default();
        let lines = rows_of.get(sequence).copied().unwrap_or_default();
        PackedHead::new(lines, mask, width, head * head_dim, head_dim)
    };
    let count = sequences.len() * heads;
    let packed: Vec<PackedHead> = if small {
        (0..count).map(pack_one).collect()
    } else {
        (0..count).into_par_iter().map(pack_one).collect()
    };
    let compute = |task: Task<'_>| {
        let heads = packed.chunks(heads).nth(task.sequence).unwrap_or_default();
        let tokens = visible.get(task.sequence).copied().unwrap_or_default();
        task.compute(heads, tokens, width, head_dim);
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
        for projected in rows.chunks((each * width).max(1)) {
            let (own, rest) = out.split_at_mut((projected.len() / 3).min(out.len()));
            out = rest;
            tasks.push(Task {
                sequence,
                projected,
                out: own,
            });
        }
    }
    tasks
}

impl PackedHead {
    /// Packs the head that begins at column `from` of the visible tokens; `lines` are `[queries | keys | values]`, each
    /// `width` wide.
    fn new(lines: &[f32], mask: &[bool], width: usize, from: usize, head_dim: usize) -> Self {
        let visible = || {
            let lines = lines.chunks_exact((3 * width).max(1)).zip(mask);
            lines.filter(|(_, visible)| **visible).map(|(line, _)| line)
        };
        let count = visible().count();
        let mut keys = vec![0.0; count.div_ceil(PANEL) * PANEL * head_dim];
        let mut values = Vec::with_capacity(count * head_dim);
        for (token, line) in visible().enumerate() {
            let start = width + from;
            let key = line.get(start..start + head_dim).unwrap_or_default();
            // The token is a column of the packed matrix.
            let column = token / PANEL * PANEL * head_dim + token % PANEL;
            let slots = keys.iter_mut().skip(column).step_by(PANEL);
            for (slot, value) in slots.zip(key) {
                *slot = *value;
            }
            let start = 2 * width + from;
            values.extend_from_slice(line.get(start..start + head_dim).unwrap_or_default());
        }
        Self {
            keys,
            values: pack(&values, count, head_dim),
        }
    }
}

impl Task<'_> {
    fn compute(self, heads: &[PackedHead], tokens: usize, width: usize, head_dim: usize) {
        let count = self.projected.len() / (3 * width);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut queries = vec![0.0; count * head_dim];
        let mut scores = vec![0.0; count * tokens];
        let mut attended = vec![0.0; count * head_dim];
        for (index, head) in heads.iter().enumerate() {
            let columns = index * head_dim..(index + 1) * head_dim;
            let lines = self.projected.chunks_exact(3 * width);
            for (query, line) in queries.chunks_exact_mut(head_dim).zip(lines) {
                for (slot, value) in query
                    .iter_mut()
                    .zip(line.get(columns.clone()).unwrap_or_default())
                {
                    *slot = value * scale;
                }
            }
            gemm_into(&mut scores, tokens, &queries, head_dim, &head.keys, &[]);
            Arch::new().dispatch(Softmax {
                scores: &mut scores,
                tokens,
            });
            gemm_into(&mut attended, head_dim, &scores, tokens, &head.values, &[]);
            let lines = self.out.chunks_exact_mut(width);
            for (line, attended) in lines.zip(attended.chunks_exact(head_dim)) {
                if let Some(line) = line.get_mut(columns.clone()) {
                    line.copy_from_slice(attended);
                }
            }
        }
    }
}

/// The softmax of every row of scores, in place.
struct Softmax<'a> {
    scores: &'a mut [f32],
    tokens: usize,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[expect(
        clippy::inline_always,
        reason = "only inlined code is compiled for the vector extension"
    )]
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for scores in self.scores.chunks_exact_mut(self.tokens.max(1)) {
            // Sixteen lanes, so that the loops are vectorised.
            let larger = |most: f32, score: f32| if score > most { score } else { most };
            let (chunks, rest) = scores.as_chunks::<16>();
            let mut most = [f32::NEG_INFINITY; 16];
            for chunk in chunks {
                for (most, score) in most.iter_mut().zip(chunk) {
                    *most = larger(*most, *score);
                }
            }
            let most = most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger);
            let (chunks, rest) = scores.as_chunks_mut::<16>();
            let mut sums = [0.0; 16];
            for chunk in chunks {
                for (sum, score) in sums.iter_mut().zip(chunk) {
                    *score = exp_of_negative(most - *score);
                    *sum += *score;
                }
            }
            let mut sum = sums.iter().sum::<f32>();
            for score in rest {
                *score = exp_of_negative(most - *score);
                sum += *score;
            }
            let factor = 1.0 / sum;
            for score in scores {
                *score *= factor;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ops;
    use super::super::cpu::Cpu;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// One query's result by its definition, for one head.
    fn plain(
        lines: &[f32],
        mask: &[bool],
        query: usize,
        columns: std::ops::Range<usize>,
        width: usize,
    ) -> Vec<f64> {
        let part = |line: usize, which: usize| {
            let from = line * 3 * width + which * width;
            let values = &lines[from + columns.start..from + columns.end];
            values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>()
        };
        let scale = (columns.len() as f64).sqrt();
        let query = part(query, 0);
        let visible: Vec<usize> = (0..mask.len()).filter(|token| mask[*token]).collect();
        let weights: Vec<f64> = visible
            .iter()
            .map(|token| {
                let score: f64 = part(*token, 1)
                    .iter()
                    .zip(&query)
                    .map(|(key, query)| key * query)
                    .sum();
                (score / scale).exp()
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        (0..columns.len())
            .map(|index| {
                let values = visible.iter().zip(&weights);
                values
                    .map(|(token, weight)| weight / sum * part(*token, 2)[index])
                    .sum()
            })
            .collect()
    }

    #[test]
    fn attention_matches_its_definition() {
        let alternating: Vec<bool> = (0..45).map(|token| token % 3 != 1).collect();
        for (heads, head_dim, masks) in [
            (1, 1, vec![vec![true]]),
            (2, 5, vec![vec![true; 7], vec![true, false, true, false]]),
            (3, 64, vec![vec![true; 33], alternating.clone(), vec![true; 2]]),
            (2, 40, vec![vec![true; 130], alternating]),
        ] {
            let width = heads * head_dim;
            let tokens: usize = masks.iter().map(Vec::len).sum();
            let projected = Cpu.upload(numbers(tokens * 3 * width, 5), 3 * width);
            let sequences: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
            let result = Cpu.attend_sequences(&projected, &sequences, heads);
            assert_eq!((result.values.len(), result.width), (tokens * width, width));
            let mut from = 0;
            for mask in &masks {
                let lines = &projected.values[from * 3 * width..(from + mask.len()) * 3 * width];
                for row in 0..mask.len() {
                    let actual = &result.values[(from + row) * width..(from + row + 1) * width];
                    for head in 0..heads {
                        let columns = head * head_dim..(head + 1) * head_dim;
                        let expected = plain(lines, mask, row, columns.clone(), width);
                        for (actual, expected) in actual[columns].iter().zip(expected) {
                            assert!(
                                (f64::from(*actual) - expected).abs() < 1e-5,
                                "{actual} {expected}"
                            );
                        }
                    }
                }
                from += mask.len();
            }
        }
    }

    #[test]
    fn a_sequence_has_the_same_bits_in_any_batch() {
        let (heads, width) = (2, 24);
        let masks = [vec![true; 50], vec![true; 3], vec![true; 120]];
        let sequences: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let projected = Cpu.upload(numbers(173 * 3 * width, 1), 3 * width);
        let all = Cpu.attend_sequences(&projected, &sequences, heads).values;
        let mut from = 0;
        for mask in sequences {
            let alone = Cpu.upload(projected.span(from, mask.len()).to_vec(), 3 * width);
            let alone = Cpu.attend_sequences(&alone, &[mask], heads).values;
            assert_eq!(alone, all[from * width..(from + mask.len()) * width]);
            from += mask.len();
        }
    }

    #[test]
    fn not_a_number_is_not_hidden() {
        let width = 20;
        let mask = [true; 40];
        for column in [0, width, 2 * width] {
            let mut values = numbers(40 * 3 * width, 1);
            values[17 * 3 * width + column] = f32::NAN;
            let result = Cpu
                .attend_sequences(&Cpu.upload(values, 3 * width), &[&mask], 1)
                .values;
            // A query concerns its own row, a key or a value all rows.
            for (row, values) in result.chunks(width).enumerate() {
                let concerned = column > 0 || row == 17;
                assert_eq!(
                    values.iter().any(|value| value.is_nan()),
                    concerned,
                    "{column} {row}"
                );
            }
        }
    }
}
