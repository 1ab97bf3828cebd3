use super::super::channel::TransferSample;
use super::super::options::{Assumptions, PlacementObjective};
use super::*;
use crate::device::DeviceSpec;
use kaskade_stated::families as stated;

fn options() -> PlacementOptions {
    PlacementOptions::new(DeviceSpec::fleet(2, 16_000_000_000), PlacementObjective::Most)
}

fn profiled() -> VariantProfile {
    stated::vit().profile().variants.remove(3)
}

#[test]
fn lines_stand_beside_their_samples_with_their_fit() {
    let curves = Curves::new(&profiled(), &options()).unwrap();
    // Stated kernel times, latencies and memory are straight lines; their quotient is not.
    for fitted in [&curves.kernel, &curves.latency, &curves.memory] {
        assert!(fitted.line.r2 > 0.999_999 && fitted.samples.len() == 6);
    }
    assert!(curves.utilisation.line.r2 < 0.9);
    let eight = profiled().costs[3];
    let kernel = eight.utilisation.unwrap() * eight.latency_s;
    assert!((curves.kernel.of_batch(8.0) - kernel).abs() < 1e-9);
    assert!((curves.memory.held(8.0) - eight.memory_bytes.unwrap() as f64).abs() < 2.0);
}

#[test]
fn a_period_is_a_batch_part_of_one_or_several() {
    let curves = Curves::new(&profiled(), &options()).unwrap();
    let (kernel, largest) = (&curves.kernel, 32.0);
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
    near(kernel.per_period(8.0, largest), kernel.of_batch(8.0));
    near(kernel.per_period(0.25, largest), 0.25 * kernel.of_batch(1.0));
    near(kernel.per_period(80.0, largest), 2.5 * kernel.of_batch(32.0));
    near(kernel.per_period(0.0, largest), 0.0);
}

#[test]
fn a_line_through_noise_promises_nothing_better_than_was_measured() {
    let noisy = CurveFit::new(vec![(1.0, 2.0), (2.0, 3.0), (4.0, 16.0)]).unwrap();
    assert!(noisy.line.r2 < 0.95 && noisy.line.at(1.0) < 1.5);
    assert!((noisy.of_batch(1.0) - 1.5).abs() < 1e-12);
    assert!((noisy.held(0.0) - 2.0).abs() < 1e-12);
}

#[test]
fn transfers_grow_with_the_batch_by_the_channel() {
    let mut options = options();
    options.request_bytes = 1_000.0;
    options.channels.network = Channel::Measured {
        samples: [(1_000.0, 0.002), (3_000.0, 0.004), (5_000.0, 0.006)]
            .map(|(bytes, seconds)| TransferSample { bytes, seconds })
            .to_vec(),
    };
    let network = Curves::new(&profiled(), &options).unwrap().forward.network;
    assert!((network.line.intercept - 0.001).abs() < 1e-9 && (network.line.slope - 0.001).abs() < 1e-9);
    assert!((network.of_batch(4.0) - 0.005).abs() < 1e-9);
    assert_eq!(network.samples[1], (3.0, 0.004));
}

#[test]
fn holes_and_figures_that_are_none_are_refused_by_batch_and_name() {
    let refused = |break_field: fn(&mut BatchCost)| {
        let mut profiled = profiled();
        break_field(&mut profiled.costs[2]);
        Curves::new(&profiled, &options()).unwrap_err().to_string()
    };
    let memory = refused(|cost| cost.memory_bytes = None);
    assert!(
        memory.starts_with("the profile has no memory of `ViT-L` at batch 4;"),
        "{memory}"
    );
    let utilisation = refused(|cost| cost.utilisation = None);
    assert!(
        utilisation.contains("no utilisation of `ViT-L` at batch 4"),
        "{utilisation}"
    );
    let nan = refused(|cost| cost.latency_s = f64::NAN);
    assert!(nan.contains("the latency of `ViT-L` at batch 4 is NaN"), "{nan}");
    let beyond = refused(|cost| cost.utilisation = Some(1.5));
    assert!(beyond.contains("at batch 4 is 1.5"), "{beyond}");
    let zero = refused(|cost| cost.memory_bytes = Some(0));
    assert!(zero.contains("the memory of `ViT-L` at batch 4 is 0"), "{zero}");
}

#[test]
fn what_is_assumed_fills_holes_and_nothing_else() {
    let mut with_holes = profiled();
    with_holes.costs[0].memory_bytes = None;
    with_holes.costs[0].utilisation = None;
    let mut options = options();
    options.assumed = Assumptions {
        bytes_per_parameter: Some(4.0),
        whole_device: true,
    };
    let curves = Curves::new(&with_holes, &options).unwrap();
    assert!((curves.memory.samples[0].1 - 307e6 * 4.0).abs() < 1.0);
    assert!((curves.utilisation.samples[0].1 - 1.0).abs() < 1e-12);
    assert!(curves.utilisation.samples[1].1 < 1.0);
}

#[test]
fn a_nearer_channel_may_not_be_slower() {
    let mut options = options();
    options.channels.same_host = Channel::Given {
        latency_s: 1.0,
        bytes_per_s: 1e9,
    };
    let error = Curves::new(&profiled(), &options).unwrap_err();
    assert!(
        matches!(
            error,
            PlacementError::ChannelOrder {
                far: Route::Network,
                ..
            }
        ),
        "{error}"
    );
}
