//! Tests of the operations on burn's CPU device.

use super::super::cpu::Cpu;
use super::*;

/// Checks that inputs and results are rounded to the type of the weights, and nothing else is.
#[test]
fn weights_of_sixteen_bits_stay_so_and_multiply() {
    let (inputs, outputs) = (6, 5);
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        let number = |index| ((index + seed) * 7919 % 1000) as f32 / 500.0 - 1.0;
        (0..count).map(number).collect()
    };
    let (weight, bias, rows) = (
        numbers(inputs * outputs, 1),
        numbers(outputs, 2),
        numbers(4 * inputs, 3),
    );
    let ops = Burn::new(Device::flex());
    let product = |kind| {
        let prepared = ops.prepare(weight.clone(), inputs, outputs, kind);
        assert_eq!(
            (prepared.kind, prepared.words.len() * 4),
            (kind, kind.bytes(inputs * outputs))
        );
        let linear = ops.linear(prepared, bias.clone(), inputs, outputs);
        assert_eq!(linear.weight.dtype(), half_type(kind).unwrap_or(DType::F32));
        let product = ops.multiply(&ops.upload(rows.clone(), inputs), &linear);
        assert_eq!(product.dtype(), DType::F32);
        ops.values(&product).unwrap().into_owned()
    };
    let exact = product(WeightType::F32);
    for (kind, most) in [(WeightType::Bf16, 0.03), (WeightType::F16, 0.004)] {
        let differences = product(kind).into_iter().zip(&exact);
        let largest = differences
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max);
        assert!(largest > 0.0 && largest < most, "{kind}: {largest}");
    }
}

/// Checks that a streamed layer can be created from the same memory at every step.
#[test]
fn a_held_weight_makes_the_same_layer_again_and_again() {
    let (inputs, outputs) = (2 * HELD, 3);
    let ops = Burn::new(Device::flex());
    let weight: Vec<f32> = (0..inputs * outputs)
        .map(|index| (index % 97) as f32 / 97.0 - 0.5)
        .collect();
    let rows = ops.upload(vec![0.5; inputs], inputs);
    let product = |linear: &BurnLinear| ops.values(&ops.multiply(&rows, linear)).unwrap().into_owned();
    for kind in [WeightType::F32, WeightType::Bf16] {
        let prepared = ops.prepare(weight.clone(), inputs, outputs, kind);
        let held = ops.hold(prepared.words.clone());
        assert!(matches!(held, HostWords::Pinned(_)));
        assert_eq!(held.words(), prepared.words);
        let once = product(&ops.linear(prepared, vec![1.0; outputs], inputs, outputs));
        for _ in 0..2 {
            let linear = ops.linear_from_host((kind, held.clone()), vec![1.0; outputs], inputs, outputs);
            assert_eq!(linear.weight.dtype(), half_type(kind).unwrap_or(DType::F32));
            assert_eq!(product(&linear), once);
        }
    }
    let small = ops.hold(vec![7; 3]);
    assert_eq!(small.words().as_ref(), [7; 3]);
    assert!(matches!(small, HostWords::Shared(_)));
}

/// Checks that transfers of all threads use one stream, because devices allocate memory per stream.
#[test]
fn transfers_share_a_stream_that_is_not_the_callers() {
    let ops = Burn::new(Device::flex());
    let streams = [(); 2].map(|()| {
        let ops = ops.clone();
        let spawned = std::thread::spawn(move || ops.transferring(StreamId::current));
        spawned.join().unwrap()
    });
    assert_eq!(streams[0], streams[1]);
    assert_eq!(streams[0], ops.transferring(StreamId::current));
    assert_ne!(streams[0], StreamId::current());
}

/// Checks that other weight types become f32: the device has no kernels for blocks, and words hold two numbers.
#[test]
fn other_weights_are_f32() {
    let ops = Burn::new(Device::flex());
    let kind = |kind, inputs| ops.prepare(vec![0.5; inputs], inputs, 1, kind).kind;
    assert_eq!(kind(WeightType::Q8_0, 64), WeightType::F32);
    assert_eq!(kind(WeightType::Bf16, 3), WeightType::F32);
    assert_eq!(kind(WeightType::Bf16, 4), WeightType::Bf16);
}

#[test]
fn gathering_nothing_gives_an_empty_matrix() {
    let ops = Burn::new(Device::flex());
    assert_eq!(ops.gather(&[], 3).dims(), [0, 3]);
    assert!(Cpu.gather(&[], 3).values.is_empty());
}
