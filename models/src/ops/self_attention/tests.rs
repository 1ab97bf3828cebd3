use crate::ops::cpu::Cpu;
use crate::ops::{EncoderAttention, Ops};

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|index| ((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
        .collect()
}

/// Computes one query's result by definition, for one head.
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
        let result = Cpu.attend_sequences(&projected, &sequences, &EncoderAttention::plain(heads, head_dim));
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
    let attention = EncoderAttention::plain(heads, width / heads);
    let all = Cpu.attend_sequences(&projected, &sequences, &attention).values;
    let mut from = 0;
    for mask in sequences {
        let alone = Cpu.upload(projected.span(from, mask.len()).to_vec(), 3 * width);
        let alone = Cpu.attend_sequences(&alone, &[mask], &attention).values;
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
            .attend_sequences(
                &Cpu.upload(values, 3 * width),
                &[&mask],
                &EncoderAttention::plain(1, width),
            )
            .values;
        // A query affects its own row, a key or a value all rows.
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
