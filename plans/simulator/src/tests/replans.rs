//! Plans that change while requests are in flight.

use std::collections::BTreeMap;

use super::pipelines::{TaskTree, profile_of_variants};
use super::*;
use kaskade_policy::plan::Dropping;

pub(super) const SECOND: u64 = 1_000_000;

/// Returns plans at given calls.
#[derive(Default)]
pub(super) struct Script {
    /// Plans, by the number of the call, from 1.
    plans: BTreeMap<usize, Plan>,
    calls: usize,
    arrivals: Vec<u64>,
    active: Vec<usize>,
    /// Requests served and made, by task, variant and child.
    factors: BTreeMap<(String, String, String), (u64, u64)>,
}

impl Script {
    pub(super) fn of(plans: impl IntoIterator<Item = (usize, Plan)>) -> Self {
        Self {
            plans: plans.into_iter().collect(),
            ..Self::default()
        }
    }
}

impl Controller for Script {
    fn decide(&mut self, observation: &Observation<'_>) -> Option<Plan> {
        self.calls += 1;
        self.arrivals.push(observation.arrivals);
        self.active.push(observation.active_devices);
        for factor in &observation.factors {
            let key = [factor.task, factor.variant, factor.child].map(str::to_owned);
            let [task, variant, child] = key;
            let counts = self.factors.entry((task, variant, child)).or_default();
            *counts = (counts.0 + factor.served, counts.1 + factor.made);
        }
        self.plans.remove(&self.calls)
    }
}

pub(super) fn run(
    first: &Plan,
    config: &SimConfig,
    arrivals: impl IntoIterator<Item = u64>,
    script: &mut Script,
) -> (Report, Seen) {
    let profile = profile_of_variants();
    let simulator = Simulator::new(first, &profile, config).unwrap();
    let mut seen = Seen::default();
    let report = simulator.run_controlled(arrivals.into_iter(), &mut seen, &profile, script);
    (report, seen)
}

/// Detectors and classifiers of these variants on workers `a` and `b`; replicas keep their places' names.
fn chain(detect: &'static str, classify: &'static str) -> Plan {
    let replicas = [
        format!("{detect}-0@a"),
        format!("{classify}-0@b"),
        "f1-0@c".to_owned(),
    ];
    let replicas: Vec<&str> = replicas.iter().map(String::as_str).collect();
    TaskTree {
        replicas: &replicas,
        detect: &[(&format!("{detect}-0"), 1.0)],
        cars: &[(&format!("{classify}-0"), 1.0)],
        faces: &[("f1-0", 1.0)],
        backup: &[],
        factors: (1.5, 0.0),
        dropping: Dropping::None,
    }
    .plan()
}

pub(super) fn loading(default_us: u64) -> SimConfig {
    SimConfig {
        loading: Loading {
            default_us,
            by_variant: BTreeMap::new(),
        },
        ..SimConfig::default()
    }
}

/// One request every 10 ms.
pub(super) fn steady(seconds: u64) -> impl Iterator<Item = u64> {
    (0..seconds * 100).map(|n| n * 10_000)
}

#[test]
fn a_plan_is_in_force_once_its_models_are_loaded_and_nothing_is_lost() {
    let mut script = Script::of([(2, chain("d2", "c1"))]);
    let (report, seen) = run(&chain("d2", "c2"), &loading(SECOND / 2), steady(5), &mut script);
    assert_eq!(
        (report.answered, report.lost, report.plans, report.loads),
        (500, 0, 1, 1)
    );
    let changed = report.plan_log[0];
    assert_eq!(
        (changed.decided_us, changed.at_us),
        (2 * SECOND, 2 * SECOND + SECOND / 2)
    );
    // The detector stays and is not loaded again; the classifiers share a device while one is loaded and the other goes.
    assert_eq!(report.mean_active_devices().round() as u64, 3);
    let answered_by = |variant: &str| {
        let mut variants = report.variants.iter();
        variants.find(|found| found.name == variant).unwrap().answered
    };
    assert_eq!(answered_by("c1") + answered_by("c2"), 500);
    assert!(answered_by("c2").abs_diff(250) <= 2, "{}", answered_by("c2"));
    // Requests under way finish by the variants of the plan that admitted them.
    assert!(seen.lost.is_empty());
    assert_eq!(report.branches_left, 0);
    assert!(report.max_plans <= 2);
}

#[test]
fn shares_change_without_loading() {
    let tree = |share: f64| {
        TaskTree {
            replicas: &["d2-0@a", "c2-0@b", "c2-1@c", "f1-0@d"],
            detect: &[("d2-0", 1.0)],
            cars: &[("c2-0", share), ("c2-1", 1.0 - share)],
            faces: &[("f1-0", 1.0)],
            backup: &[],
            factors: (1.0, 0.0),
            dropping: Dropping::None,
        }
        .plan()
    };
    let mut script = Script::of([(1, tree(0.0)), (3, tree(0.5))]);
    let (report, seen) = run(&tree(1.0), &loading(SECOND), steady(4), &mut script);
    assert_eq!((report.answered, report.loads, report.plans), (400, 0, 2));
    let runs = |replica: u32, from: u64| {
        let within = |run: &&Run| run.replica == replica && run.from_us / SECOND == from;
        seen.runs.iter().filter(within).count()
    };
    assert_eq!((runs(1, 0), runs(2, 0)), (100, 0));
    assert!(
        runs(1, 1) <= 1 && runs(2, 1) >= 99,
        "{} {}",
        runs(1, 1),
        runs(2, 1)
    );
    assert!(runs(1, 3).abs_diff(50) <= 3 && runs(2, 3).abs_diff(50) <= 3);
}

#[test]
fn a_worker_that_no_plan_needs_is_not_active() {
    let one = TaskTree {
        replicas: &["d1-0@a", "c1-0@b", "f1-0@c"],
        detect: &[("d1-0", 1.0)],
        cars: &[("c1-0", 1.0)],
        faces: &[("f1-0", 1.0)],
        backup: &[],
        factors: (1.0, 1.0),
        dropping: Dropping::None,
    };
    let two = TaskTree {
        replicas: &["d1-0@a", "d1-1@d", "c1-0@b", "f1-0@c"],
        detect: &[("d1-0", 0.5), ("d1-1", 0.5)],
        ..one
    };
    let mut script = Script::of([(2, one.plan()), (4, two.plan())]);
    let (report, _) = run(&two.plan(), &loading(0), steady(6), &mut script);
    assert_eq!(script.active[..5], [4, 4, 3, 3, 4], "{:?}", script.active);
    assert_eq!((report.answered, report.loads), (600, 1));
}

#[test]
fn a_plan_that_comes_while_another_is_loaded_takes_its_place() {
    // `d1` takes three seconds and is never in force; what both plans place goes on loading.
    let mut config = loading(3 * SECOND / 2);
    config.loading.by_variant.insert("d1".into(), 3 * SECOND);
    let mut script = Script::of([(1, chain("d1", "c1")), (2, chain("d2", "c1"))]);
    let (report, _) = run(&chain("d2", "c2"), &config, steady(6), &mut script);
    assert_eq!((report.answered, report.plans, report.loads), (600, 1, 2));
    assert_eq!(report.plan_log[0].at_us, 2 * SECOND + SECOND / 2);
    let never = report
        .variants
        .iter()
        .find(|variant| variant.name == "d1")
        .unwrap();
    assert_eq!(never.batches, 0);
}

#[test]
fn a_plan_that_cannot_be_simulated_changes_nothing() {
    let mut bad = chain("d1", "c1");
    bad.gears[0].wiring.entry.stage = "nowhere".into();
    let mut otherwise = chain("d1", "c1");
    otherwise.sharing = Sharing::Concurrent;
    let mut script = Script::of([(1, bad), (2, otherwise)]);
    let (report, _) = run(&chain("d2", "c2"), &loading(0), steady(4), &mut script);
    assert_eq!((report.answered, report.plans, report.plans_refused), (400, 0, 2));
    assert!(
        report.refused_plans[0].contains("nowhere"),
        "{:?}",
        report.refused_plans
    );
    assert!(
        report.refused_plans[1].contains("sharing"),
        "{:?}",
        report.refused_plans
    );
}

#[test]
fn a_controller_sees_arrivals_and_factors() {
    let mut script = Script::default();
    let (report, _) = run(&chain("d2", "c2"), &loading(0), steady(10), &mut script);
    assert_eq!(report.answered, 1_000);
    // A controller call comes after all other events of its time.
    assert!(
        script.arrivals.iter().skip(1).all(|count| *count == 100),
        "{:?}",
        script.arrivals
    );
    let key = ("detect".to_owned(), "d2".to_owned(), "cars".to_owned());
    let (served, made) = script.factors[&key];
    assert!((880..=1_000).contains(&served), "{served}");
    assert!(
        (made as f64 / served as f64 - 1.5).abs() < 0.05,
        "{made} of {served}"
    );
}

#[test]
fn a_replica_that_fails_while_its_successor_is_loaded_is_replaced_by_it() {
    let config = SimConfig {
        timeline: vec![ReplicaEvent {
            at_us: SECOND + SECOND / 4,
            replica: "c2-0".into(),
            change: Change::Fails,
        }],
        detection_us: 50_000,
        ..loading(SECOND / 2)
    };
    let mut script = Script::of([(1, chain("d2", "c1"))]);
    let (report, _) = run(&chain("d2", "c2"), &config, steady(4), &mut script);
    assert_eq!(report.answered + report.failed, 400);
    assert_eq!((report.plans, report.lost, report.branches_left), (1, 0, 0));
    // Down from 1.25 to 1.5 seconds: what came then was tried until it failed.
    assert!((1..=30).contains(&report.failed), "{}", report.failed);
}

#[test]
fn a_replica_that_fails_is_not_loaded_by_the_next_plan_until_it_starts() {
    let event = |at_us, change| ReplicaEvent {
        at_us,
        replica: "c2-1".into(),
        change,
    };
    let tree = TaskTree {
        replicas: &["d2-0@a", "c2-0@b", "c2-1@c", "f1-0@d"],
        detect: &[("d2-0", 1.0)],
        cars: &[("c2-0", 0.5), ("c2-1", 0.5)],
        faces: &[("f1-0", 1.0)],
        backup: &[],
        factors: (1.0, 0.0),
        dropping: Dropping::None,
    }
    .plan();
    let config = SimConfig {
        timeline: vec![
            event(SECOND / 2, Change::Fails),
            event(3 * SECOND, Change::Starts),
        ],
        detection_us: 0,
        ..loading(SECOND)
    };
    let mut script = Script::of([(1, tree.clone()), (2, tree.clone())]);
    let (report, seen) = run(&tree, &config, steady(5), &mut script);
    assert_eq!(
        (report.answered, report.failed, report.loads, report.plans),
        (500, 0, 0, 2)
    );
    let idle = |run: &&Run| run.replica == 2 && (SECOND..3 * SECOND).contains(&run.from_us);
    assert_eq!(seen.runs.iter().find(idle), None);
    assert!(
        seen.runs
            .iter()
            .any(|run| run.replica == 2 && run.from_us > 3 * SECOND)
    );
}

/// A controller of the simplest kind: the fastest variants above a load, the most accurate below.
struct BySpeed {
    fast: bool,
}

impl Controller for BySpeed {
    fn decide(&mut self, observation: &Observation<'_>) -> Option<Plan> {
        let fast = observation.arrivals > 300;
        if observation.loading || fast == self.fast {
            return None;
        }
        self.fast = fast;
        Some(if fast {
            chain("d1", "c1")
        } else {
            chain("d3", "c3")
        })
    }
}

#[test]
fn a_control_loop_trades_accuracy_for_throughput_and_back() {
    // 100 requests/s, then 500 for ten seconds, then 100 again. The accurate classifier serves 200 cars/s.
    let quiet = (0..1_000).map(|n| n * 10_000);
    let busy = (0..5_000).map(|n| 10 * SECOND + n * 2_000);
    let after = (0..1_000).map(|n| 20 * SECOND + n * 10_000);
    let arrivals: Vec<u64> = quiet.chain(busy).chain(after).collect();
    let config = SimConfig {
        budget_us: Some(SECOND / 4),
        ..loading(SECOND / 2)
    };
    let profile = profile_of_variants();
    let first = chain("d3", "c3");
    let simulator = Simulator::new(&first, &profile, &config).unwrap();
    let mut timeline = Timeline::new(SECOND);
    let mut controller = BySpeed { fast: false };
    let scaled = simulator.run_controlled(arrivals.iter().copied(), &mut timeline, &profile, &mut controller);
    let alone = simulator.run(arrivals.iter().copied(), &mut ());
    assert_eq!(scaled.plans, 2);
    assert!(scaled.slo_violations() * 2 < alone.slo_violations(), "{scaled:?}");
    let buckets = timeline.finish();
    let accuracy = |second: usize| buckets[second].path_accuracy.unwrap();
    assert!((accuracy(5) - 1.0).abs() < 1e-9 && (accuracy(28) - 1.0).abs() < 1e-9);
    assert!((accuracy(18) - 0.5 * 0.6).abs() < 1e-9);
}
