//! Compares the GPU kernels on wgpu with the CPU kernels. Without a GPU, Mesa's llvmpipe (`mesa-vulkan-drivers`) runs
//! them: `cargo test --release -p kaskade-models --features wgpu --lib kernels_tests`.

use burn::tensor::{Device, DeviceKind};

use super::super::cpu::Cpu;
use super::*;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |index| ((index + seed) * 7919 % 1000) as f32 / 500.0 - 1.0;
    (0..count).map(number).collect()
}

fn device() -> Burn {
    Burn::new(Device::wgpu(DeviceKind::DefaultDevice))
}

fn assert_close(ours: &[f32], expected: &[f32], what: &str) {
    assert_eq!(ours.len(), expected.len(), "{what}");
    for (one, other) in ours.iter().zip(expected) {
        assert!(
            (one - other).abs() < 1e-4 * other.abs().max(1.0),
            "{what}: {one} instead of {other}"
        );
    }
}

#[test]
fn products_of_few_rows_match() {
    fn product<O: Ops>(
        ops: &O,
        kind: WeightType,
        [rows, inputs, outputs]: [usize; 3],
        biased: bool,
    ) -> Vec<f32> {
        let weight = numbers(inputs * outputs, 1);
        // Weights are rounded first, so that both devices get the same values.
        let rounded = weight
            .into_iter()
            .map(|value| half::f16::from_f32(value).to_f32());
        let prepared = ops.prepare(rounded.collect(), inputs, outputs, kind);
        let bias = if biased { numbers(outputs, 2) } else { Vec::new() };
        let linear = ops.linear(prepared, bias, inputs, outputs);
        let product = ops.multiply(&ops.upload(numbers(rows * inputs, 3), inputs), &linear);
        ops.values(&product).unwrap().into_owned()
    }
    let ops = device();
    for kind in [WeightType::F32, WeightType::F16] {
        for shape in [[1, 7, 2], [1, 300, 130], [3, 64, 16], [8, 1000, 50], [5, 256, 17]] {
            for biased in [false, true] {
                let expected = product(&Cpu, WeightType::F32, shape, biased);
                let what = format!("{kind}, {shape:?}");
                assert_close(&product(&ops, kind, shape, biased), &expected, &what);
            }
        }
    }
}

#[test]
fn norms_match() {
    fn normed<O: Ops>(ops: &O, [rows, heads, width]: [usize; 3], shifts: bool) -> Vec<f32> {
        let norm = ops.norm(numbers(width, 1), shifts.then(|| numbers(width, 2)), 1e-5);
        let mut matrix = ops.upload(numbers(rows * (heads + 1) * width, 3), (heads + 1) * width);
        ops.normalise_heads(&mut matrix, heads, &norm);
        let whole = ops.normalise(&ops.upload(numbers(rows * width, 4), width), &norm);
        [ops.values(&matrix).unwrap(), ops.values(&whole).unwrap()].concat()
    }
    let ops = device();
    for shape in [[1, 1, 8], [3, 2, 64], [5, 1, 300], [2, 3, 768]] {
        for shifts in [false, true] {
            let expected = normed(&Cpu, shape, shifts);
            assert_close(
                &normed(&ops, shape, shifts),
                &expected,
                &format!("{shape:?}, {shifts}"),
            );
        }
    }
}

#[test]
fn rotations_match() {
    fn rotated<O: Ops>(ops: &O, pairs: usize, neighbours: bool) -> Vec<f32> {
        let rotary = Rotary {
            frequencies: numbers(pairs, 1),
            scale: 0.9,
            neighbours,
        };
        // Three heads are rotated, the rest of the row stays.
        let mut matrix = ops.upload(numbers(4 * 70, 2), 70);
        ops.rotate(&mut matrix, 3, 20, &rotary, &[0, 3, 1000, 7]);
        ops.values(&matrix).unwrap().into_owned()
    }
    let ops = device();
    for pairs in [10, 6] {
        for neighbours in [false, true] {
            let expected = rotated(&Cpu, pairs, neighbours);
            assert_close(
                &rotated(&ops, pairs, neighbours),
                &expected,
                &format!("{pairs}, {neighbours}"),
            );
        }
    }
}

#[test]
fn activations_match() {
    fn activated<O: Ops>(ops: &O, activation: Activation, gated: bool) -> Vec<f32> {
        let values = numbers(5 * 34, 1).into_iter().map(|value| 4.0 * value).collect();
        ops.values(&ops.activate(ops.upload(values, 34), activation, gated))
            .unwrap()
            .into_owned()
    }
    let ops = device();
    for activation in [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Relu,
    ] {
        assert!(kernels::code_of(activation).is_some());
        for gated in [false, true] {
            let expected = activated(&Cpu, activation, gated);
            assert_close(
                &activated(&ops, activation, gated),
                &expected,
                &format!("{activation:?}, {gated}"),
            );
        }
    }
}

/// Checks that NaN or infinity in a row does not reach other rows.
#[test]
fn a_row_that_is_not_finite_changes_no_other() {
    let ops = device();
    let mut values = numbers(3 * 32, 1);
    values[40] = f32::NAN;
    let rows = ops.upload(values, 32);
    let linear = ops.linear(
        ops.prepare(numbers(32 * 8, 2), 32, 8, WeightType::F32),
        Vec::new(),
        32,
        8,
    );
    let product = ops.values(&ops.multiply(&rows, &linear)).unwrap().into_owned();
    let normed = ops.normalise(&rows, &ops.norm(vec![1.0; 32], None, 1e-5));
    let normed = ops.values(&normed).unwrap().into_owned();
    for (values, width) in [(product, 8), (normed, 32)] {
        for (row, values) in values.chunks(width).enumerate() {
            assert_eq!(
                values.iter().all(|value| value.is_finite()),
                row != 1,
                "row {row}"
            );
        }
    }
}
