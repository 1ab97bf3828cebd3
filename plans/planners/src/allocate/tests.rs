use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::lp::{LpError, Solver};
use crate::reference::{exact_accuracy, flow_accuracy};
use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, ProfiledPath, Task, TaskVariant};
use kaskade_stated::pipelines::stated;

fn allocator(policy: AllocationPolicy) -> Allocator {
    let options = AllocateOptions {
        policy,
        ..AllocateOptions::default()
    };
    Allocator::new(stated(), options).unwrap()
}

/// Checks the invariants of an allocation of the whole pipeline.
fn check(pipeline: &Pipeline, allocation: &Allocation) {
    let used: u32 = allocation.instances.iter().map(|own| own.count).sum();
    assert!(used <= allocation.workers && used == allocation.used);
    assert!(allocation.accuracy <= allocation.bound + 1e-9);
    for own in &allocation.instances {
        assert!(own.count > 0);
        assert!(own.load_qps <= own.capacity_qps() * (1.0 + 1e-4), "{own:?}");
    }
    let sizes: BTreeMap<&str, u32> = allocation
        .instances
        .iter()
        .map(|own| (own.variant.as_str(), own.batch))
        .collect();
    assert_eq!(
        sizes.len(),
        allocation.instances.len(),
        "one batch size per variant"
    );
    let mut sinks: BTreeMap<&str, f64> = BTreeMap::new();
    for path in &allocation.paths {
        let mut us = 0.0;
        for variant in &path.variants {
            let own = allocation
                .instances
                .iter()
                .find(|own| &own.variant == variant)
                .unwrap();
            us += own.latency_us;
        }
        let hops = path.variants.len() as f64 * pipeline.hop_us as f64;
        assert!(
            2.0 * us + hops <= pipeline.slo_us as f64 * (1.0 + 1e-6),
            "{path:?} takes {us}"
        );
        let (sink, _) = pipeline.variant(path.variants.last().unwrap()).unwrap();
        *sinks.entry(&pipeline.tasks[sink].name).or_default() += path.share;
    }
    assert!(sinks.values().all(|sum| (sum - 1.0).abs() < 1e-6), "{sinks:?}");
}

#[test]
fn a_busy_machine_gives_the_same_plans() {
    let demands = [300.0, 700.0, 1_100.0, 1_500.0];
    let plans = || demands.map(|demand| allocator(AllocationPolicy::Loki).allocate(demand, 20).unwrap());
    let alone = plans();
    // More threads than cores: each gets a part of the time that it had alone.
    let crowd = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(plans)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert!(crowd.iter().all(|plans| *plans == alone));
}

#[test]
fn hardware_is_scaled_first_then_accuracy_then_load_is_left() {
    let allocator = allocator(AllocationPolicy::Loki);
    let (mut accuracy, mut used, mut seen) = (1.0, 0, Vec::new());
    for demand in [1.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 3_000.0] {
        let allocation = allocator.allocate(demand, 20).unwrap();
        check(&stated(), &allocation);
        assert!(allocation.accuracy <= accuracy + 1e-3, "it falls with the demand");
        if allocation.scaling == Scaling::Hardware {
            assert!((allocation.accuracy - 1.0).abs() < 1e-9 && allocation.used >= used);
        }
        (accuracy, used) = (allocation.accuracy, allocation.used);
        seen.push(allocation.scaling);
    }
    seen.dedup();
    assert_eq!(seen, [Scaling::Hardware, Scaling::Accuracy, Scaling::Overload]);
}

#[test]
fn an_accuracy_scaled_allocation_is_as_before() {
    let allocation = allocator(AllocationPolicy::Loki).allocate(300.0, 20).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&allocation).unwrap());
}

#[test]
fn overload_serves_what_can_be_served() {
    let allocator = allocator(AllocationPolicy::Loki);
    let allocation = allocator.allocate(1e6, 20).unwrap();
    assert_eq!(allocation.scaling, Scaling::Overload);
    assert!(allocation.served_qps > 500.0 && allocation.served_qps < 1e6);
    let just = allocator.allocate(allocation.served_qps * 0.999, 20).unwrap();
    assert_eq!(just.scaling, Scaling::Accuracy, "it can serve what it reports");
}

#[test]
fn inferline_keeps_its_variants_and_loses_load() {
    let allocator = allocator(AllocationPolicy::HardwareOnly);
    let low = allocator.allocate(20.0, 20).unwrap();
    assert_eq!(low.scaling, Scaling::Hardware);
    let high = allocator.allocate(500.0, 20).unwrap();
    assert_eq!(high.scaling, Scaling::Overload);
    assert!((high.accuracy - 1.0).abs() < 1e-9 && high.served_qps < 200.0);
    check(&stated(), &high);
}

#[test]
fn what_cannot_be_exceeded_is_no_less_than_what_is_served() {
    for policy in [AllocationPolicy::Loki, AllocationPolicy::HardwareOnly] {
        let allocator = allocator(policy);
        let served = allocator.allocate(1e9, 20).unwrap().served_qps;
        let most = allocator.max_qps(20);
        assert!(
            served <= most && served > 0.8 * most,
            "{policy:?}: {served} of {most}"
        );
    }
}

#[test]
fn an_objective_out_of_reach_names_the_path_and_what_would_do() {
    let mut pipeline = stated();
    pipeline.slo_us = 10_000;
    let error = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap_err();
    let AllocateError::Slo { path, needed_us, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(path, &["detect-n", "face-11"]);
    pipeline.slo_us = *needed_us;
    assert!(
        Allocator::new(pipeline, AllocateOptions::default()).is_ok(),
        "that does"
    );
}

#[test]
fn a_tight_objective_rules_the_most_accurate_out_and_scales_accuracy_at_once() {
    let mut pipeline = stated();
    pipeline.slo_us = 60_000;
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
    let allocation = allocator.allocate(5.0, 20).unwrap();
    assert_eq!(allocation.scaling, Scaling::Accuracy);
    check(&pipeline, &allocation);
}

#[test]
fn what_cannot_be_asked_is_an_error() {
    let allocator = allocator(AllocationPolicy::Loki);
    for demand in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            allocator.allocate(demand, 20),
            Err(AllocateError::Demand(_))
        ));
    }
    let (tasks, workers) = (3, 2);
    assert_eq!(
        allocator.allocate(1.0, 2),
        Err(AllocateError::TooFewWorkers { tasks, workers })
    );
    let mut unsound = stated();
    unsound.tasks[0].children.clear();
    assert!(matches!(
        Allocator::new(unsound, AllocateOptions::default()),
        Err(AllocateError::Pipeline(_))
    ));
}

#[cfg(not(feature = "highs"))]
#[test]
fn a_solver_that_is_not_there_costs_nothing_but_its_help() {
    let options = AllocateOptions {
        solver: Solver::Highs,
        gap: 0.0,
        ..AllocateOptions::default()
    };
    let allocation = Allocator::new(stated(), options)
        .unwrap()
        .allocate(300.0, 20)
        .unwrap();
    check(&stated(), &allocation);
    assert!(matches!(allocation.solver_error, Some(LpError::NotBuilt { .. })));
}

#[test]
fn other_factors_make_another_allocation() {
    let mut allocator = allocator(AllocationPolicy::Loki);
    let before = allocator.allocate(20.0, 20).unwrap();
    let mut pipeline = stated();
    pipeline.tasks[0].variants[4].multiplicative_factor *= 2.0;
    allocator.update(pipeline).unwrap();
    assert!(allocator.allocate(20.0, 20).unwrap().used > before.used);
    let mut unsound = stated();
    unsound.slo_us = 0;
    assert!(allocator.update(unsound).is_err());
    assert!(allocator.allocate(20.0, 20).is_ok(), "the last good one stays");
}

#[test]
fn profiled_paths_are_planned_with() {
    let mut pipeline = stated();
    let mut paths = Vec::new();
    for root in &pipeline.tasks[0].variants {
        for sink in pipeline.tasks.iter().skip(1).flat_map(|task| &task.variants) {
            // All variants are as good as the best with `detect-n`, and useless without.
            let accuracy = if root.name == "detect-n" { 0.9 } else { 0.1 };
            let variants = vec![root.name.clone(), sink.name.clone()];
            paths.push(ProfiledPath { variants, accuracy });
        }
    }
    pipeline.path_accuracy = PathAccuracy::Profiled { paths };
    let allocator = Allocator::new(pipeline, AllocateOptions::default()).unwrap();
    let allocation = allocator.allocate(300.0, 20).unwrap();
    assert!((allocation.accuracy - 0.9).abs() < 1e-9);
    assert!(allocation.paths.iter().all(|path| path.variants[0] == "detect-n"));
}

/// A small pipeline: variants as (accuracy, base, per request, factor), the same children for all.
fn small(tasks: &[Vec<(f64, f64, f64, f64)>], tree: bool) -> Pipeline {
    let name = |place: usize| format!("t{place}");
    let task = |(place, variants): (usize, &Vec<(f64, f64, f64, f64)>)| {
        let children: Vec<String> = match (tree, place) {
            (true, 0) => (1..tasks.len()).map(name).collect(),
            (false, place) if place + 1 < tasks.len() => vec![name(place + 1)],
            _ => Vec::new(),
        };
        let variant = |(rank, (accuracy, base, each, factor)): (usize, &(f64, f64, f64, f64))| TaskVariant {
            name: format!("t{place}v{rank}"),
            checkpoint: None,
            accuracy: *accuracy,
            latency: [1, 2, 4]
                .map(|batch| BatchLatency {
                    batch,
                    us: base + each * f64::from(batch),
                })
                .to_vec(),
            multiplicative_factor: *factor,
            branch_ratios: children
                .iter()
                .map(|child| (child.clone(), 1.0 / children.len() as f64))
                .collect(),
        };
        Task {
            name: name(place),
            variants: variants.iter().enumerate().map(variant).collect(),
            children,
        }
    };
    Pipeline {
        name: "small".into(),
        slo_us: 100_000,
        hop_us: 100,
        batches: vec![1, 2, 4],
        tasks: tasks.iter().enumerate().map(task).collect(),
        path_accuracy: PathAccuracy::Product,
    }
}

fn variants(most: usize) -> impl Strategy<Value = Vec<(f64, f64, f64, f64)>> {
    prop::collection::vec(
        (
            0.4..1.0_f64,
            500.0..3_000.0_f64,
            1_000.0..9_000.0_f64,
            1.0..4.0_f64,
        ),
        1..=most,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_flow_with_one_batch_size_is_the_papers_program(
        tasks in prop::collection::vec(variants(2), 2..=2),
        load in 0.3..0.95_f64,
        workers in 3_u32..7,
    ) {
        let pipeline = small(&tasks, false);
        let options = AllocateOptions { gap: 0.0, ..AllocateOptions::default() };
        let allocator = Allocator::new(pipeline.clone(), options).unwrap();
        let demand = load * allocator.allocate(1e9, workers).unwrap().served_qps;
        let (paper, single) = (exact_accuracy(&allocator, demand, workers), flow_accuracy(&allocator, demand, workers, true));
        let (paper, single) = (paper.unwrap(), single.unwrap());
        prop_assert!((paper - single).abs() < 1e-5, "F1 {paper}, F2 {single}");
        let several = flow_accuracy(&allocator, demand, workers, false).unwrap();
        prop_assert!(several >= single - 1e-6);
        let planned = allocator.allocate(demand, workers).unwrap();
        check(&pipeline, &planned);
        prop_assert!(planned.accuracy <= paper + 1e-5 || planned.scaling == Scaling::Hardware);
        prop_assert!(planned.bound >= paper - 1e-5);
    }

    #[test]
    fn trees_agree_on_what_their_branches_share(
        tasks in prop::collection::vec(variants(2), 3..=3),
        load in 0.4..0.9_f64,
    ) {
        let pipeline = small(&tasks, true);
        let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
        let demand = load * allocator.allocate(1e9, 6).unwrap().served_qps;
        let planned = allocator.allocate(demand, 6).unwrap();
        check(&pipeline, &planned);
        let single = flow_accuracy(&allocator, demand, 6, true).unwrap();
        prop_assert!(planned.accuracy <= single + 1e-5 || planned.scaling == Scaling::Hardware);
        prop_assert!(planned.bound >= single - 1e-5);
    }

    #[test]
    fn there_is_always_an_answer_that_fits(
        tasks in prop::collection::vec(variants(4), 1..=4),
        tree in any::<bool>(),
        demand in 0.1..5_000.0_f64,
        workers in 4_u32..200,
        policy in prop::sample::select(vec![AllocationPolicy::Loki, AllocationPolicy::HardwareOnly]),
    ) {
        let pipeline = small(&tasks, tree);
        let options = AllocateOptions { policy, ..AllocateOptions::default() };
        let allocator = Allocator::new(pipeline.clone(), options).unwrap();
        let allocation = allocator.allocate(demand, workers).unwrap();
        check(&pipeline, &allocation);
        prop_assert_eq!(&allocator.allocate(demand, workers).unwrap(), &allocation, "and the same one");
        let balanced = allocation.balance(&pipeline, allocation.served_qps);
        prop_assert!(balanced.unserved_qps <= 1e-3 * allocation.served_qps, "what is planned fits");
    }
}
