use super::super::packed::PreparedWeight;
use super::*;
use crate::precision::WeightType;

const TYPES: [WeightType; 2] = [WeightType::Q8_0, WeightType::Q4_0];

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn product(rows: &[f32], inputs: usize, packed: &PreparedWeight, outputs: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len() / inputs * outputs];
    multiply(&mut out, outputs, rows, inputs, packed.panels(), &[]);
    out
}

/// Checks that processor instructions change only the rounding of the sums over blocks.
#[test]
fn every_processor_computes_the_same() {
    let (inputs, outputs) = (96, 70);
    let bias = numbers(outputs, 3);
    for kind in TYPES {
        let packed = PreparedWeight::pack(&numbers(inputs * outputs, 2), inputs, outputs, kind);
        for count in 1..16 {
            let rows = numbers(count * inputs, 1);
            let product = |out| Product {
                rows: &rows,
                inputs,
                packed: packed.panels(),
                bias: &bias,
                out,
                stride: outputs,
            };
            let [mut portable, mut widest] = [(); 2].map(|()| vec![0.0; count * outputs]);
            product(&mut portable).compute(Portable);
            multiply(&mut widest, outputs, &rows, inputs, packed.panels(), &bias);
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = pulp::x86::V3::try_new() {
                let mut narrow = vec![0.0; count * outputs];
                simd.vectorize(Run(product(&mut narrow), simd));
                assert_eq!(narrow, widest, "{kind}, {count} rows");
            }
            for (one, other) in portable.iter().zip(&widest) {
                assert!(
                    (*one - *other).abs() < 1e-5,
                    "{kind}, {count} rows: {one} {other}"
                );
            }
        }
    }
}

/// Checks that the largest numbers of both operands do not overflow a sum.
#[test]
fn blocks_of_extreme_numbers_are_exact() {
    for kind in TYPES {
        let packed = PreparedWeight::pack(&[-127.0; 64 * 5], 64, 5, kind);
        for scale in [1e-20_f32, 1.0, 1e30] {
            let out = product(&[-scale; 64], 64, &packed, 5);
            let expected = 64.0 * 127.0 * scale;
            assert!(
                out.iter().all(|sum| (sum / expected - 1.0).abs() < 1e-3),
                "{kind}: {out:?}"
            );
        }
        assert_eq!(product(&[0.0; 64], 64, &packed, 5), [0.0; 5]);
        assert_eq!(product(&[1e-40; 64], 64, &packed, 5), [0.0; 5]);
    }
}

#[test]
fn rows_that_are_not_finite_give_nan() {
    for kind in TYPES {
        let packed = PreparedWeight::pack(&numbers(64 * 40, 2), 64, 40, kind);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 33, 64 + 63] {
                let mut rows = numbers(3 * 64, 1);
                rows[at] = value;
                let out = product(&rows, 64, &packed, 40);
                for (row, out) in out.chunks(40).enumerate() {
                    let finite = row != at / 64;
                    assert!(out.iter().all(|sum| sum.is_finite() == finite), "{kind}, {value}");
                }
            }
        }
    }
}
