use super::*;
use crate::ops::cpu::Cpu;
use crate::ops::{Ops, Span};

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

/// Checks that a query's result is bit-identical alone and in a block of queries.
#[test]
fn blocks_of_queries_change_no_bit() {
    for (queries, keys, head_dim) in [(4, 2, 20), (2, 2, 64), (3, 1, 5), (2, 1, 96)] {
        let heads = Heads {
            queries,
            keys,
            head_dim,
            scale: 0.3,
        };
        for window in [None, Some(1), Some(9)] {
            blocks_change_no_bit(&heads, window);
        }
    }
}

fn blocks_change_no_bit(heads: &Heads, window: Option<usize>) {
    let (line, width) = (2 * heads.key_width(), heads.query_width());
    let count = 70;
    let new_kv = Cpu.upload(numbers(count * line, 1), line);
    let queries = Cpu.upload(numbers(count * width, 2), width);
    let position_bias = Cpu.upload(numbers(heads.queries * 11, 3), 11);
    let sinks = Cpu.upload(numbers(heads.queries, 4), 1);
    let rules = ScoreRules {
        window,
        chunk: None,
        softcap: Some(5.0),
        position_bias: Some(&position_bias),
        sinks: Some(&sinks),
    };
    let span = |from, count| Span {
        matrix: &new_kv,
        from,
        count,
    };
    let request = |cached: usize, queries: usize| AttentionSpans {
        queries,
        cached: vec![span(0, cached)],
        new_kv: Some(span(cached, queries)),
    };
    let whole = attend(&queries, &[request(0, count)], heads, rules).values;
    for row in 0..count {
        let query = Cpu.upload(queries.span(row, 1).to_vec(), width);
        let alone = attend(&query, &[request(row, 1)], heads, rules).values;
        assert_eq!(
            alone,
            whole[row * width..(row + 1) * width],
            "{heads:?}, {window:?}, {row}"
        );
    }
}

/// Checks that a sink equals a key with the same score and a zero value.
#[test]
fn a_sink_is_a_key_without_a_value() {
    let heads = Heads {
        queries: 4,
        keys: 2,
        head_dim: 6,
        scale: 0.3,
    };
    let (line, width) = (2 * heads.key_width(), heads.query_width());
    let mut kv = numbers(9 * line, 1);
    // The last token's values are zero; its scores become the sinks.
    kv[9 * line - heads.key_width()..].fill(0.0);
    let kv = Cpu.upload(kv, line);
    let query = Cpu.upload(numbers(width, 2), width);
    let of = |count, sinks: Option<&Rows>| {
        let request = AttentionSpans {
            queries: 1,
            cached: vec![Span {
                matrix: &kv,
                from: 0,
                count,
            }],
            new_kv: None,
        };
        let rules = ScoreRules {
            sinks,
            ..ScoreRules::default()
        };
        attend(&query, &[request], &heads, rules).values
    };
    let last = kv.span(8, 1);
    let scores = query.values.chunks_exact(6).enumerate().map(|(head, query)| {
        let key = &last[head / 2 * 6..(head / 2 + 1) * 6];
        query.iter().zip(key).map(|(a, b)| a * b).sum::<f32>() * heads.scale
    });
    let sinks = Cpu.upload(scores.collect(), 1);
    let plain = of(8, None);
    for ((sunk, expected), plain) in of(8, Some(&sinks)).iter().zip(of(9, None)).zip(plain) {
        assert!((sunk - expected).abs() < 1e-6, "{sunk} {expected}");
        assert!((sunk - plain).abs() > 1e-6);
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
fn where_tokens_see_later_ones_a_window_hides_those_beyond_it_on_either_side() {
    let heads = Heads {
        queries: 2,
        keys: 1,
        head_dim: 4,
        scale: 0.5,
    };
    let (line, count) = (2 * heads.key_width(), 12);
    let lines = Cpu.upload(numbers(count * line, 1), line);
    let query = Cpu.upload(numbers(count * heads.query_width(), 2), heads.query_width());
    let span = |from, count| Span {
        matrix: &lines,
        from,
        count,
    };
    for window in 0..14 {
        let request = AttentionSpans {
            queries: count,
            cached: vec![span(0, 5), span(5, 7)],
            new_kv: None,
        };
        let rules = ScoreRules {
            window: Some(window),
            ..ScoreRules::default()
        };
        let windowed = attend(&query, &[request], &heads, rules).values;
        for row in 0..count {
            let seen = row.saturating_sub(window)..(row + window + 1).min(count);
            let seen = &lines.values[seen.start * line..seen.end * line];
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
}

#[test]
fn the_bias_depends_on_distance_up_to_the_maximum() {
    let heads = Heads {
        queries: 2,
        keys: 2,
        head_dim: 1,
        scale: 1.0,
    };
    // Keys are zero, so that scores equal the bias.
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
