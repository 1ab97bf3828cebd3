use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::options::PlacementObjective;
use super::*;
use crate::cascade::{CascadeOptions, plan_cascade};
use crate::device::DeviceSpec;
use kaskade_stated::families::{self as stated, StatedFamily};

struct Case {
    flow: Flow,
    curves: Vec<Curves>,
    options: PlacementOptions,
}

fn case(family: &StatedFamily, devices: usize) -> Case {
    let profile = family.profile();
    let planned = plan_cascade(&profile, &CascadeOptions::default()).unwrap();
    let flow = super::super::flow::flow(&profile, &planned.plan).unwrap();
    let options = PlacementOptions::new(
        DeviceSpec::fleet(devices, family.device.memory_bytes),
        PlacementObjective::Most,
    );
    let of = |name: &String| {
        let variant = profile.variants.iter().find(|known| known.name == *name).unwrap();
        Curves::new(variant, &options).unwrap()
    };
    Case {
        curves: flow.variants.iter().map(of).collect(),
        flow,
        options,
    }
}

#[test]
fn copies_times_partitions_are_proportional_to_the_demand() {
    let case = case(&stated::t5(), 64);
    let models = Models::new(&case.flow, &case.curves, &case.options);
    let cluster = Cluster::new(&case.options, 64);
    let line = models
        .line(&[1, 1, 1, 2], 64.0 * 32.0 / 300.0, &cluster, 500, |_| {})
        .shapes;
    assert!(line.len() > 3);
    for shape in &line {
        // One scale rounds to all of them.
        let bounds = shape.replicas.iter().zip(&shape.partitions).zip(&models.demand);
        let scales = bounds.map(|((replicas, partitions), demand)| {
            let at = |replicas: f64| replicas * f64::from(*partitions) / demand;
            let low = if *replicas == 1 {
                0.0
            } else {
                at(f64::from(*replicas) - 0.5)
            };
            (low, at(f64::from(*replicas) + 0.5))
        });
        let (low, high) = scales.fold((0.0, f64::INFINITY), |(low, high), (from, to)| {
            (f64::max(low, from), f64::min(high, to))
        });
        assert!(low <= high * (1.0 + 1e-9), "{shape:?} {low} {high}");
    }
}

#[test]
fn a_line_has_every_combination_once_and_each_fits_in_sum() {
    let case = case(&stated::gpt(), 12);
    let models = Models::new(&case.flow, &case.curves, &case.options);
    let cluster = Cluster::new(&case.options, 12);
    let partitions: Vec<u32> = (0..case.curves.len())
        .map(|model| (models.memory(model, 1, 1) / 15e9).ceil() as u32)
        .collect();
    let period_s = models.batch / 20.0;
    let line = models.line(&partitions, period_s, &cluster, 10_000, |_| {});
    assert!(line.skipped_after.is_none() && !line.shapes.is_empty());
    let line = line.shapes;
    let distinct: BTreeSet<&ReplicaPartition> = line.iter().collect();
    assert_eq!(distinct.len(), line.len());
    for shape in &line {
        let (memory, work) = models.sums(shape, period_s);
        assert!(memory <= 12.0 * 15e9 * 1.001 && work <= 12.0 * 1.001);
    }
}

#[test]
fn the_first_of_a_line_is_the_first_that_carries_the_load() {
    let case = case(&stated::vit(), 32);
    let models = Models::new(&case.flow, &case.curves, &case.options);
    let cluster = Cluster::new(&case.options, 32);
    let period_s = models.batch / 1_500.0;
    let partitions = vec![1; case.curves.len()];
    // From one copy of everything on, without a starting point.
    let mut replicas = vec![1; case.curves.len()];
    let found = loop {
        let shape = ReplicaPartition {
            replicas: replicas.clone(),
            partitions: partitions.clone(),
        };
        if models.breaks(&shape, period_s, &cluster).is_none() {
            break shape;
        }
        let grows = models.next_to_grow(&replicas, &partitions).unwrap();
        replicas[grows] += 1;
    };
    let line = models.line(&partitions, period_s, &cluster, 100, |_| {});
    assert_eq!(line.shapes.first(), Some(&found));
}

#[test]
fn a_long_line_is_thinned_out_and_says_where() {
    let case = case(&stated::vit(), 200);
    let models = Models::new(&case.flow, &case.curves, &case.options);
    let cluster = Cluster::new(&case.options, 200);
    let (period_s, partitions) = (models.batch / 500.0, vec![1; case.curves.len()]);
    let whole = models.line(&partitions, period_s, &cluster, 1_000_000, |_| {});
    let thin = models.line(&partitions, period_s, &cluster, 20, |_| {});
    assert!(
        thin.shapes.len() < 80 && whole.shapes.len() > 200,
        "{} {}",
        thin.shapes.len(),
        whole.shapes.len()
    );
    let after = thin.skipped_after.unwrap();
    let kept = whole.shapes.iter().position(|shape| *shape == after).unwrap();
    assert_eq!(thin.shapes[..=kept], whole.shapes[..=kept]);
    assert!(thin.shapes.iter().all(|shape| whole.shapes.contains(shape)));
    // The far end is not forgotten.
    let copies = |shape: &ReplicaPartition| shape.instances();
    assert!(copies(thin.shapes.last().unwrap()) * 3 > 2 * copies(whole.shapes.last().unwrap()));
}

proptest! {
    #[test]
    fn cuts_are_all_there_or_those_nearest_to_the_fewest(
        ranges in prop::collection::vec((1..4_u32, 0..5_u32), 1..6),
        limit in 1..400_u64,
    ) {
        let fewest: Vec<u32> = ranges.iter().map(|(low, _)| *low).collect();
        let most: Vec<u32> = ranges.iter().map(|(low, more)| low + more).collect();
        let (cuts, all) = cuts(&fewest, &most, limit);
        let distinct: BTreeSet<&Vec<u32>> = cuts.iter().collect();
        prop_assert_eq!(distinct.len(), cuts.len());
        prop_assert_eq!(&cuts[0], &fewest);
        prop_assert!(cuts.len() as u64 <= limit.max(1));
        prop_assert!(all > limit as f64 || (cuts.len() as f64 - all).abs() < 0.5);
        for cut in &cuts {
            let inside = cut.iter().zip(&fewest).zip(&most).all(|((cut, low), high)| low <= cut && cut <= high);
            prop_assert!(inside);
        }
    }
}
