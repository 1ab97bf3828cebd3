use super::super::packed::{PreparedWeight, pack, unpacked};
use super::*;
use crate::precision::BLOCK;

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn products_match_a_plain_sum() {
    for (rows, inputs, outputs) in [
        (1, 1, 1),
        (1, 7, 33),
        (3, 64, 31),
        (5, 5, 32),
        (6, 9, 70),
        (7, 30, 48),
        (8, 11, 40),
        (17, 6, 33),
        (30, 20, 100),
        (100, 12, 65),
        // Large enough for several threads.
        (5, 700, 170),
        (130, 80, 70),
    ] {
        let (x, w, b) = (
            numbers(rows * inputs, 1),
            numbers(inputs * outputs, 2),
            numbers(outputs, 3),
        );
        let packed = pack(&w, inputs, outputs);
        let out = gemm(&x, inputs, Panels::F32(&packed), &b, outputs);
        for row in 0..rows {
            for column in 0..outputs {
                let expected: f64 = (0..inputs)
                    .map(|k| f64::from(x[row * inputs + k]) * f64::from(w[k * outputs + column]))
                    .sum::<f64>()
                    + f64::from(b[column]);
                let actual = f64::from(out[row * outputs + column]);
                assert!(
                    (actual - expected).abs() < 1e-5,
                    "{rows} {inputs} {outputs}: {actual} {expected}"
                );
            }
        }
    }
}

#[test]
fn rows_are_interleaved_column_by_column() {
    for inputs in [1, 3, 4, 7, 18, 33] {
        for count in 1..=12 {
            let rows: Vec<usize> = (0..count * inputs).collect();
            let expected: Vec<usize> = (0..count * inputs)
                .map(|place| place % count * inputs + place / count)
                .collect();
            assert_eq!(interleaved(&rows, inputs), expected, "{count} rows of {inputs}");
        }
    }
}

/// Without vector code, a product takes a hundred times as long.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_widest_vectors_of_the_processor_are_used() {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let least = match fused {
        true if is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512dq") => 16,
        true => 8,
        false => 1,
    };
    assert!(Arch::new().dispatch(Lanes) >= least);
}

/// The exactness of all cache modes depends on this.
#[test]
fn a_row_has_the_same_bits_in_any_batch() {
    // More inputs than are converted at a time, and a last panel that is not full.
    let (inputs, outputs) = (288, 70);
    let x = numbers(61 * inputs, 1);
    for kind in WeightType::ALL {
        let packed = PreparedWeight::pack(&numbers(inputs * outputs, 2), inputs, outputs, kind);
        let packed = packed.panels();
        let all = gemm(&x, inputs, packed, &[], outputs);
        for (from, to) in [(0, 1), (3, 5), (7, 20), (20, 60), (60, 61)] {
            let some = gemm(&x[from * inputs..to * inputs], inputs, packed, &[], outputs);
            assert_eq!(some, all[from * outputs..to * outputs], "{kind}");
        }
        assert!(gemm(&[], inputs, packed, &[], outputs).is_empty());
    }
}

/// Products with quantised types may differ by the rounding of the rows' elements; see
/// [`quantised`](super::super::quantised).
#[test]
fn products_equal_those_with_the_converted_matrix() {
    for (rows, inputs, outputs) in [
        (1, 64, 33),
        (2, 288, 64),
        (5, 160, 100),
        (30, 416, 70),
        (13, 130, 40),
        (4, 7, 40),
    ] {
        let (x, w) = (numbers(rows * inputs, 1), numbers(inputs * outputs, 2));
        let bias = numbers(outputs, 3);
        for kind in WeightType::ALL {
            let packed = PreparedWeight::pack(&w, inputs, outputs, kind);
            let panels = 0..outputs.div_ceil(PANEL);
            let converted: Vec<f32> = panels
                .flat_map(|panel| unpacked(packed.panels().skip(panel, inputs), inputs))
                .collect();
            let expected = gemm(&x, inputs, Panels::F32(&converted), &bias, outputs);
            let actual = gemm(&x, inputs, packed.panels(), &bias, outputs);
            if !packed.kind.is_quantised() {
                assert_eq!(actual, expected, "{kind}, {rows} by {inputs} by {outputs}");
                continue;
            }
            for (row, x) in x.chunks(inputs).enumerate() {
                for column in 0..outputs {
                    let (panel, place) = (column / PANEL, column % PANEL);
                    let weights = converted[panel * PANEL * inputs..]
                        .iter()
                        .skip(place)
                        .step_by(PANEL);
                    let weights: Vec<f32> = weights.take(inputs).map(|weight| weight.abs()).collect();
                    let bound = rounding(x, &weights);
                    let difference =
                        (actual[row * outputs + column] - expected[row * outputs + column]).abs();
                    assert!(difference <= bound, "{kind}: {difference} of {bound}");
                }
            }
        }
    }
}

/// Returns the maximum error of a product with a quantised type: half a step per element of a block, plus f32 rounding
/// per element and block.
fn rounding(row: &[f32], magnitudes: &[f32]) -> f32 {
    let blocks = row.chunks(BLOCK).zip(magnitudes.chunks(BLOCK));
    let elements: f32 = blocks
        .map(|(row, weights)| {
            let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            largest / 65_534.0 * weights.iter().sum::<f32>()
        })
        .sum();
    let sum: f32 = row
        .iter()
        .zip(magnitudes)
        .map(|(x, weight)| x.abs() * weight)
        .sum();
    elements * 1.001 + sum * f32::EPSILON * row.len() as f32 / 2.0
}
