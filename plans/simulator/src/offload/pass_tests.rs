use proptest::prelude::*;

use super::*;

fn weights(layers: usize, resident: usize, bytes: u64) -> Weights {
    Weights {
        layers,
        resident,
        bytes,
        bytes_per_s: 1.0,
        transfer_s: 0.0,
    }
}

fn batch(compute_s: f64, load_s: f64) -> LayerWork {
    LayerWork {
        compute_s,
        load_s: (load_s > 0.0).then_some(load_s),
        store_s: 0.0,
        traffic: Traffic {
            kv: load_s as u64,
            ..Traffic::default()
        },
    }
}

fn seconds(weights: &Weights, batches: &[LayerWork], ahead: bool) -> f64 {
    simulate_step(weights, batches, ahead).seconds
}

#[test]
fn resident_weights_without_blocks_leave_the_device_alone() {
    let course = simulate_step(&weights(3, 3, 7), &[batch(2.0, 0.0)], true);
    assert!((course.seconds - 6.0).abs() < 1e-12 && course.link_s.abs() < 1e-12);
    assert_eq!(course.traffic.loaded(), 0);
}

#[test]
fn weights_come_while_the_layer_before_computes() {
    // Each of three layers takes 4 s to load and 1 to compute; the first is there. At 4 the second is there, at 8 the third, and at 12
    // the first for the next step.
    assert!((seconds(&weights(3, 0, 4), &[batch(1.0, 0.0)], true) - 12.0).abs() < 1e-12);
    // Without it: 4 more before anything begins.
    assert!((seconds(&weights(3, 0, 4), &[batch(1.0, 0.0)], false) - 16.0).abs() < 1e-12);
    // Long layers hide their weights: three times 9.
    assert!((seconds(&weights(3, 0, 4), &[batch(9.0, 0.0)], true) - 27.0).abs() < 1e-12);
}

#[test]
fn a_third_set_of_weights_waits_for_a_buffer() {
    // 9 s each to compute, 1 to load: layer 2 can come only when layer 0 has been computed, and layer 0 again when layer 1 has.
    let course = simulate_step(&weights(3, 0, 1), &[batch(9.0, 0.0)], true);
    assert!((course.seconds - 27.0).abs() < 1e-12 && (course.link_s - 3.0).abs() < 1e-12);
}

#[test]
fn blocks_of_the_next_mini_batch_come_while_one_computes() {
    // One layer, resident: 2 s to load and 3 to compute, three times. 2, then 3 x 3.
    let one = weights(1, 1, 0);
    assert!((seconds(&one, &[batch(3.0, 2.0); 3], true) - 11.0).abs() < 1e-12);
    // The link is the longer side: 3 x 5, and 1 to compute the last.
    assert!((seconds(&one, &[batch(1.0, 5.0); 3], true) - 16.0).abs() < 1e-12);
}

#[test]
fn two_buffers_bound_how_far_the_link_is_ahead() {
    // Loads of 1, 1 and 10 behind computations of 6: the third load begins when the first computation ends, at 7, and ends at 17; the
    // second computation ended at 13. With three buffers it would have been there at 12.
    let batches = [batch(6.0, 1.0), batch(6.0, 1.0), batch(6.0, 10.0)];
    assert!((seconds(&weights(1, 1, 0), &batches, true) - 23.0).abs() < 1e-12);
}

#[test]
fn what_goes_back_is_waited_for() {
    let stored = LayerWork {
        store_s: 5.0,
        ..batch(1.0, 0.0)
    };
    // Computed at 1 and 2; back at 6 and 11.
    assert!((seconds(&weights(2, 2, 0), &[stored], true) - 11.0).abs() < 1e-12);
}

proptest! {
    /// A step is never shorter than the work of either side, nor longer than the sum of both; and all bytes are carried, each once.
    #[test]
    fn times_are_bounded_and_bytes_conserved(
        layers in 1..8_usize,
        resident in 0..9_usize,
        bytes in 0..50_u64,
        batches in prop::collection::vec((0.0..9.0_f64, 0..9_u64, 0.0..3.0_f64), 1..7),
        ahead: bool,
    ) {
        let weights = weights(layers, resident.min(layers), bytes);
        let batches: Vec<LayerWork> = batches.iter().map(|(compute, load, store)| LayerWork { store_s: *store, ..batch(*compute, *load as f64) }).collect();
        let course = simulate_step(&weights, &batches, ahead);
        let compute: f64 = batches.iter().map(|batch| batch.compute_s).sum::<f64>() * layers as f64;
        let blocks: u64 = batches.iter().map(|batch| batch.traffic.kv).sum::<u64>() * layers as u64;
        let store: f64 = batches.iter().map(|batch| batch.store_s).sum::<f64>() * layers as f64;
        let streamed = (layers - resident.min(layers)) as u64;
        let loads = streamed + u64::from(!ahead && streamed > 0);
        prop_assert_eq!(course.traffic, Traffic { weights: loads * bytes, kv: blocks, act: 0, stored: 0 });
        prop_assert!((course.busy_s - compute).abs() < 1e-9);
        prop_assert!((course.link_s - (loads * bytes + blocks) as f64).abs() < 1e-9);
        let sides = [course.busy_s, course.link_s, store];
        let longest = sides.into_iter().fold(0.0, f64::max);
        prop_assert!(course.seconds >= longest - 1e-9, "{course:?}");
        prop_assert!(course.seconds <= sides.iter().sum::<f64>() + 1e-9, "{course:?}");
    }
}
