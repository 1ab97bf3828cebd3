//! Tests that CPU operations do not turn NaN, or infinities with an undefined result, into finite numbers.

use super::cpu::Cpu;
use super::rows::Rows;
use super::*;
use crate::precision::WeightType;

const WIDTH: usize = 8;

/// Returns rows of finite numbers, with `value` in the middle of the last row.
fn with_value(rows: usize, width: usize, value: f32) -> Rows {
    let mut values: Vec<f32> = (0..rows * width)
        .map(|index| (index % 7) as f32 / 7.0 - 0.4)
        .collect();
    let at = rows * width - width / 2;
    values[at] = value;
    Cpu.upload(values, width)
}

fn linear(inputs: usize, outputs: usize) -> <Cpu as Ops>::Linear {
    Cpu.linear(
        Cpu.prepare(vec![0.1; inputs * outputs], inputs, outputs, WeightType::F32),
        vec![0.0; outputs],
        inputs,
        outputs,
    )
}

/// Returns the results of every operation on a matrix that contains this value.
fn results(value: f32) -> Vec<(&'static str, Rows)> {
    // More rows than a task has, so that the parallel code is tested too.
    let rows = 64;
    let mut sum = with_value(rows, WIDTH, 0.0);
    Cpu.add(&mut sum, &with_value(rows, WIDTH, value));
    let mut product = with_value(rows, WIDTH, 1.0);
    Cpu.times(&mut product, &with_value(rows, WIDTH, value));
    let mut scaled = with_value(rows, WIDTH, value);
    Cpu.scale(&mut scaled, &Cpu.norm(vec![0.5; WIDTH], None, 1e-5));
    let mut mixed = with_value(rows, WIDTH, 0.0);
    let at: Vec<usize> = (0..rows).collect();
    Cpu.add_scaled(&mut mixed, &with_value(rows, WIDTH, value), &at, &vec![0.0; rows]);
    let mut rotated = with_value(rows, WIDTH, value);
    let rotary = Rotary {
        frequencies: vec![1.0, 0.1, 0.01, 0.001],
        neighbours: false,
        scale: 1.0,
    };
    let positions: Vec<usize> = (0..rows).collect();
    Cpu.rotate(&mut rotated, 1, WIDTH, &rotary, &positions);
    let queries = with_value(rows, WIDTH, 0.0);
    let cached = with_value(rows, 2 * WIDTH, value);
    let request = AttentionSpans {
        queries: rows,
        cached: vec![Span {
            matrix: &cached,
            from: 0,
            count: rows,
        }],
        new_kv: None,
    };
    let heads = Heads {
        queries: 2,
        keys: 2,
        head_dim: WIDTH / 2,
        scale: 0.5,
    };
    let images = Convolution::centred([8, 8, WIDTH], 3, 1);
    let mut responses = with_value(rows, WIDTH, value);
    let norm = Cpu.norm(vec![1.0; WIDTH], Some(vec![0.0; WIDTH]), 1e-6);
    Cpu.global_response_norm(&mut responses, rows, &norm);
    let mut images_scaled = with_value(rows, WIDTH, value);
    Cpu.scale_images(&mut images_scaled, rows / 2, &with_value(2, WIDTH, 0.0));
    let norm = |beta| Cpu.norm(vec![1.0; WIDTH], beta, 1e-6);
    vec![
        ("add", sum),
        ("add scaled", mixed),
        ("rotate", rotated),
        ("scale", scaled),
        (
            "multiply",
            Cpu.multiply(&with_value(rows, WIDTH, value), &linear(WIDTH, 5)),
        ),
        (
            "layer norm",
            Cpu.normalise(&with_value(rows, WIDTH, value), &norm(Some(vec![0.0; WIDTH]))),
        ),
        (
            "root mean square norm",
            Cpu.normalise(&with_value(rows, WIDTH, value), &norm(None)),
        ),
        (
            "gated",
            Cpu.activate(with_value(rows, WIDTH, value), Activation::Silu, true),
        ),
        (
            "attend",
            Cpu.attend(&queries, &[request], &heads, ScoreRules::default()),
        ),
        (
            "convolve",
            Cpu.convolve(&with_value(rows, WIDTH, value), &images, &linear(9 * WIDTH, 3)),
        ),
        (
            "convolve channels",
            Cpu.depthwise_convolve(
                &with_value(rows, WIDTH, value),
                &images,
                &with_value(10, WIDTH, 0.0),
            ),
        ),
        ("mean", Cpu.mean(&with_value(rows, WIDTH, value), rows)),
        ("select", Cpu.select(&with_value(rows, WIDTH, value), &[rows - 1])),
        ("normalise responses", responses),
        ("scale images", images_scaled),
    ]
}

#[test]
fn no_operation_swallows_not_a_number_or_infinity() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (name, result) in results(value) {
            let finite = result.values.iter().all(|value| value.is_finite());
            assert!(!finite, "{name} of {value}");
        }
    }
}

#[test]
fn no_form_of_encoder_attention_swallows_not_a_number() {
    let masks: [&[bool]; 2] = [&[true; 40], &[true; 24]];
    let bias = with_value(2, 9, 0.0);
    let distances = DistanceScores {
        rows: DistanceRows::new(50, |distance| (distance.clamp(-3, 3) + 3).unsigned_abs()),
        keys: Some(with_value(7, WIDTH, 0.0)),
        queries: Some(with_value(7, WIDTH, 0.0)),
    };
    let by_kind = with_value(64, 2, 0.0);
    let kinds: [&[i64]; 2] = [&[0; 40], &[1; 24]];
    for column in [0, WIDTH, 2 * WIDTH] {
        let mut projected = with_value(64, 3 * WIDTH, 0.0);
        projected.values[50 * 3 * WIDTH + column] = f32::NAN;
        for form in 0..5 {
            let mut attention = EncoderAttention::plain(2, WIDTH / 2);
            match form {
                1 => attention.window = Some(2),
                2 => attention.position_bias = Some(&bias),
                3 => attention.distances = Some(&distances),
                4 => {
                    attention.kinds = Some(SegmentScores {
                        values: &by_kind,
                        kinds: &kinds,
                    });
                }
                _ => {}
            }
            let out = Cpu.attend_sequences(&projected, &masks, &attention);
            let own = &out.values[50 * WIDTH..51 * WIDTH];
            assert!(
                own.iter().any(|value| value.is_nan()),
                "form {form}, column {column}"
            );
        }
    }
}

#[test]
fn no_score_of_kinds_that_is_not_a_number_is_swallowed() {
    let (values, projected) = (with_value(8, 2, f32::NAN), with_value(8, 3 * WIDTH, 0.0));
    let mut attention = EncoderAttention::plain(2, WIDTH / 2);
    attention.kinds = Some(SegmentScores {
        values: &values,
        kinds: &[&[0, 0, 0, 0, 1, 1, 1, 1]],
    });
    let out = Cpu.attend_sequences(&projected, &[&[true; 8]], &attention);
    let last = &out.values[7 * WIDTH..];
    assert!(last.iter().any(|value| value.is_nan()), "{last:?}");
}

#[test]
fn no_type_of_weights_swallows_not_a_number_or_infinity() {
    let (inputs, outputs) = (64, 40);
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for kind in WeightType::ALL {
            let weight = Cpu.prepare(vec![0.1; inputs * outputs], inputs, outputs, kind);
            let linear = Cpu.linear(weight, Vec::new(), inputs, outputs);
            for rows in [1, 7, 40] {
                let result = Cpu.multiply(&with_value(rows, inputs, value), &linear);
                let last = result.span(rows - 1, 1);
                assert!(
                    last.iter().all(|value| !value.is_finite()),
                    "{kind}, {rows} rows, {value}"
                );
            }
        }
    }
}

/// Enough queries to read keys and values in blocks.
#[test]
fn no_block_of_queries_swallows_not_a_number() {
    let (rows, heads) = (
        64,
        Heads {
            queries: 2,
            keys: 2,
            head_dim: WIDTH / 2,
            scale: 0.5,
        },
    );
    let queries = with_value(rows, WIDTH, 0.0);
    for column in [0, WIDTH] {
        let mut new_kv = with_value(rows, 2 * WIDTH, 0.0);
        new_kv.values[40 * 2 * WIDTH + column] = f32::NAN;
        let request = AttentionSpans {
            queries: rows,
            cached: Vec::new(),
            new_kv: Some(Span {
                matrix: &new_kv,
                from: 0,
                count: rows,
            }),
        };
        let out = Cpu.attend(&queries, &[request], &heads, ScoreRules::default());
        for (row, values) in out.values.chunks(WIDTH).enumerate() {
            let swallowed = values.iter().all(|value| value.is_finite());
            assert_eq!(swallowed, row < 40, "column {column}, query {row}");
        }
    }
}
