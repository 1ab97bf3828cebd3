use super::*;
use crate::allocate::AllocationPolicy;
use crate::allocate::Scaling;
use kaskade_simulator::trace::{ArrivalProcess, Trace};
use kaskade_simulator::{SimConfig, Simulator};
use kaskade_stated::pipelines::stated;

const SECOND: u64 = 1_000_000;

fn options(policy: AllocationPolicy, workers: usize) -> ManagerOptions {
    let slot = |place: usize| Slot {
        worker: format!("w{place}"),
        device: "cpu".into(),
    };
    ManagerOptions {
        app: "traffic".into(),
        slots: (0..workers).map(slot).collect(),
        dropping: Dropping::Rerouting,
        allocate: AllocateOptions {
            policy,
            ..AllocateOptions::default()
        },
        demand: DemandOptions::PAPER,
        headroom: 1.0,
        standby: StandbyOptions::NONE,
        factors: FactorOptions::default(),
        run_times: RunTimeOptions::default(),
    }
}

fn simulated(pipeline: &Pipeline) -> SimConfig {
    SimConfig {
        slo_us: Some(pipeline.slo_us),
        hop_us: pipeline.hop_us,
        control_interval_us: SECOND / 5,
        seed: 7,
        ..SimConfig::default()
    }
}

fn begun(policy: AllocationPolicy, qps: f64) -> Manager {
    let mut manager = Manager::new(stated(), options(policy, 20), 0).unwrap();
    manager.first_plan(qps, 0).unwrap();
    manager
}

/// Lets this many requests/s come, second by second; gives the plans that were made.
fn plans(manager: &mut Manager, from_s: u64, loads: &[u64]) -> Vec<Plan> {
    let seconds = (from_s + 1..).zip(loads);
    let look = |(second, load): (u64, &u64)| {
        // Arrivals within the second are reported within it.
        manager.observe(*load, second * SECOND - 1);
        manager.next_plan(second * SECOND)
    };
    seconds.filter_map(look).collect()
}

#[test]
fn an_even_demand_is_planned_for_once_and_changes_nothing() {
    let mut manager = begun(AllocationPolicy::Loki, 40.0);
    assert_eq!(plans(&mut manager, 0, &[40; 45]), []);
    assert_eq!(manager.allocations(), 5, "the first, and one every ten seconds");
    assert_eq!(manager.allocation().unwrap().scaling, Scaling::Hardware);
}

#[test]
fn hardware_then_accuracy_is_scaled_up_and_down_again() {
    let mut manager = begun(AllocationPolicy::Loki, 20.0);
    let used = manager.allocation().unwrap().used;
    plans(&mut manager, 0, &[300; 30]);
    let high = manager.allocation().unwrap().clone();
    assert_eq!((high.scaling, high.used), (Scaling::Accuracy, 20));
    assert!(high.accuracy < 1.0 && (high.demand_qps - 300.0).abs() < 1.0);
    plans(&mut manager, 30, &[20; 30]);
    let low = manager.allocation().unwrap();
    assert_eq!((low.scaling, low.used), (Scaling::Hardware, used));
}

#[test]
fn headroom_is_planned_and_balanced_with() {
    let roomy = ManagerOptions {
        headroom: 1.5,
        ..options(AllocationPolicy::Loki, 20)
    };
    let mut manager = Manager::new(stated(), roomy, 0).unwrap();
    manager.first_plan(20.0, 0).unwrap();
    let allocation = manager.allocation().unwrap();
    assert!((allocation.demand_qps - 30.0).abs() < 1e-9);
    // At the demand itself no worker is to be fuller than planned.
    assert_eq!(plans(&mut manager, 0, &[20; 25]), []);
    assert_eq!(manager.allocations(), 3);
}

#[test]
fn between_allocations_only_shares_change() {
    let mut manager = begun(AllocationPolicy::Loki, 300.0);
    let before = manager.running.clone().unwrap();
    // Too little to be significant, and enough for other shares.
    let made = plans(&mut manager, 0, &[255; 9]);
    assert!(!made.is_empty());
    assert_eq!(manager.allocations(), 1);
    for plan in made {
        assert_eq!(plan.placement, before.placement);
        assert_ne!(plan, before);
    }
}

#[test]
fn factors_that_were_observed_are_planned_with() {
    let mut manager = begun(AllocationPolicy::Loki, 20.0);
    let used = manager.allocation().unwrap().used;
    // The detector finds twice what was profiled: 34.2 cars and 1.8 faces.
    let made = [("car".to_owned(), 34_200), ("face".to_owned(), 1_800)].into();
    manager.record("detect-x", 1_000, &made, SECOND);
    plans(&mut manager, 0, &[20; 11]);
    assert!(manager.allocation().unwrap().used > used);
}

#[test]
fn what_cannot_be_planned_leaves_the_plan_and_is_said() {
    let mut manager = begun(AllocationPolicy::Loki, 20.0);
    manager.options.slots.truncate(2);
    assert_eq!(plans(&mut manager, 0, &[300; 2]), []);
    let (tasks, workers) = (3, 2);
    assert_eq!(
        manager.error(),
        Some(&ManagerError::Allocate(AllocateError::TooFewWorkers {
            tasks,
            workers
        }))
    );
    assert_eq!(manager.allocation().unwrap().demand_qps.round() as u64, 20);
    manager.options.slots = options(AllocationPolicy::Loki, 20).slots;
    assert!(!plans(&mut manager, 2, &[300; 4]).is_empty(), "it is tried again");
}

#[test]
fn a_managed_pipeline_serves_a_day_that_its_first_plan_could_not() {
    let rates: Vec<f64> = [30.0; 10]
        .into_iter()
        .chain([260.0; 30])
        .chain([30.0; 20])
        .collect();
    let trace = Trace::per_second(rates).unwrap();
    let pipeline = stated();
    let profile = pipeline.profile();
    let config = simulated(&pipeline);
    let options = ManagerOptions {
        headroom: 1.3,
        ..options(AllocationPolicy::Loki, 20)
    };
    let mut manager = Manager::new(pipeline, options, 0).unwrap();
    let first = manager.first_plan(30.0, 0).unwrap();
    let simulator = Simulator::new(&first, &profile, &config).unwrap();
    let arrivals = || trace.arrivals(ArrivalProcess::Poisson, 7);
    let report = simulator.run_controlled(arrivals(), &mut (), &profile, &mut manager);
    let alone = simulator.run(arrivals(), &mut ());
    assert_eq!(
        (report.lost, report.plans_refused),
        (0, 0),
        "{:?}",
        report.refused_plans
    );
    assert!(report.plans > 1 && manager.error().is_none());
    let violations = |of: &kaskade_simulator::Report| of.branches.slo_violation_ratio().unwrap();
    assert!(
        violations(&report) * 3.0 < violations(&alone),
        "{} {}",
        violations(&report),
        violations(&alone)
    );
    assert!(report.mean_active_devices() < 20.0);
}

/// Returns the pipeline as measured on a machine that is this many times as fast.
fn faster(mut pipeline: Pipeline, times: f64) -> Pipeline {
    let variants = pipeline.tasks.iter_mut().flat_map(|task| &mut task.variants);
    for sample in variants.flat_map(|variant| &mut variant.latency) {
        sample.us /= times;
    }
    pipeline
}

#[test]
fn a_profile_of_a_faster_machine_is_corrected_by_what_the_workers_measure() {
    let trace = Trace::per_second(vec![60.0; 60]).unwrap();
    let pipeline = stated();
    let profile = pipeline.profile();
    let config = simulated(&pipeline);
    let violations = |change: f64| {
        let mut options = ManagerOptions {
            headroom: 1.3,
            ..options(AllocationPolicy::Loki, 20)
        };
        options.run_times.change = change;
        let mut manager = Manager::new(faster(pipeline.clone(), 2.5), options, 0).unwrap();
        let first = manager.first_plan(60.0, 0).unwrap();
        let simulator = Simulator::new(&first, &profile, &config).unwrap();
        let arrivals = trace.arrivals(ArrivalProcess::Poisson, 7);
        let report = simulator.run_controlled(arrivals, &mut (), &profile, &mut manager);
        assert_eq!(manager.error(), None);
        (
            report.branches.slo_violation_ratio().unwrap(),
            manager.pipeline == faster(pipeline.clone(), 2.5),
        )
    };
    let ((believed, untouched), (corrected, unchanged)) = (
        violations(f64::INFINITY),
        violations(RunTimeOptions::default().change),
    );
    assert!(untouched && !unchanged);
    assert!(believed > 0.5 && corrected < 0.15, "{believed} {corrected}");
}

#[test]
fn run_times_that_no_plan_can_have_leave_the_plan_and_are_said_once() {
    let mut pipeline = stated();
    pipeline.slo_us = 1;
    let refused = Manager::new(pipeline.clone(), options(AllocationPolicy::Loki, 20), 0);
    let Err(AllocateError::Slo { needed_us, .. }) = refused else {
        panic!("nothing is done in a microsecond");
    };
    pipeline.slo_us = 2 * needed_us;
    let mut manager = Manager::new(pipeline, options(AllocationPolicy::Loki, 20), 0).unwrap();
    manager.first_plan(20.0, 0).unwrap();
    let before = manager.pipeline.clone();
    for task in &before.tasks {
        for variant in &task.variants {
            let ran = RunCounts {
                batches: 100,
                requests: 100,
                busy_us: u64::MAX,
            };
            manager.record_runs(&variant.name, ran);
        }
    }
    assert_eq!(plans(&mut manager, 2, &[20]), []);
    assert!(matches!(
        manager.take_error(),
        Some(ManagerError::Allocate(AllocateError::Slo { .. }))
    ));
    assert_eq!(manager.pipeline, before);
    plans(&mut manager, 3, &[20; 12]);
    assert_eq!(manager.take_error(), None);
}
