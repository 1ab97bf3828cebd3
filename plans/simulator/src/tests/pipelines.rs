//! Pipelines of tasks with several variants each: ways, early dropping, rerouting.

use super::*;
use kaskade_policy::plan::{Dropping, Profiled};

/// Execution time of a single request, microseconds, and accuracy of each variant.
const VARIANTS: [(&str, u64, f64); 9] = [
    ("d1", 1_000, 0.5),
    ("d2", 2_000, 0.8),
    ("d3", 4_000, 1.0),
    ("c1", 1_000, 0.6),
    ("c2", 2_000, 0.9),
    ("c3", 5_000, 1.0),
    ("f1", 500, 0.7),
    ("f2", 1_000, 0.8),
    ("f3", 3_000, 1.0),
];

const ONE_BY_ONE: Batching = Batching {
    min_queue: 1,
    max_batch: 1,
    max_wait_us: 0,
};

pub(super) fn profile_of_variants() -> Profile {
    let variants = VARIANTS.iter();
    profile(
        variants
            .map(|(name, run_us, _)| variant(name, 0, *run_us, &[(1, 0.9, true)]))
            .collect(),
    )
}

/// The stage of a variant, whose first letter names its task; its budget is twice its execution time.
fn task_stage(variant: &str, exit: Exit) -> Stage {
    let (_, run_us, accuracy) = *VARIANTS.iter().find(|(name, _, _)| *name == variant).unwrap();
    let task = match &variant[..1] {
        "d" => "detect",
        "c" => "cars",
        _ => "faces",
    };
    Stage {
        score: None,
        name: format!("{task}-{variant}"),
        task: Some(task.into()),
        variant: variant.into(),
        partition: None,
        exit,
        batching: ONE_BY_ONE,
        budget_us: Some(2 * run_us),
        profiled: Some(Profiled { run_us, accuracy }),
    }
}

fn edge(stage: &str, shares: &[(&str, f64)], backup: &[&str]) -> Edge {
    Edge {
        shares: shares.iter().map(|(id, share)| ((*id).into(), *share)).collect(),
        backup: backup.iter().map(|id| (*id).into()).collect(),
        ..Edge::to(stage)
    }
}

/// Where the requests of a two-level tree go: detect, then cars and faces.
pub(super) struct TaskTree<'a> {
    /// Replicas, as [`plan`] reads them.
    pub(super) replicas: &'a [&'a str],
    pub(super) detect: &'a [(&'a str, f64)],
    pub(super) cars: &'a [(&'a str, f64)],
    pub(super) faces: &'a [(&'a str, f64)],
    pub(super) backup: &'a [&'a str],
    /// Cars and faces per request, whatever detects them.
    pub(super) factors: (f64, f64),
    pub(super) dropping: Dropping,
}

impl TaskTree<'_> {
    /// A plan with a stage for every variant that has a replica.
    pub(super) fn plan(&self) -> Plan {
        let mut used: Vec<&str> = self
            .replicas
            .iter()
            .map(|id| id.split_once('-').unwrap().0)
            .collect();
        used.sort_by_key(|name| VARIANTS.iter().position(|(known, _, _)| known == name));
        used.dedup();
        let first = |letter: &str| *used.iter().find(|name| name.starts_with(letter)).unwrap();
        let backup = |letter: &str| -> Vec<&str> {
            let backup = self.backup.iter().copied();
            backup.filter(|id| id.starts_with(letter)).collect()
        };
        let cars = edge(&format!("cars-{}", first("c")), self.cars, &backup("c"));
        let faces = edge(&format!("faces-{}", first("f")), self.faces, &backup("f"));
        let child = |to: &Edge, multiplicity| Child {
            to: to.clone(),
            multiplicity,
        };
        let exit = |variant: &str| {
            let mut children = vec![child(&cars, self.factors.0), child(&faces, self.factors.1)];
            children.retain(|child| child.multiplicity > 0.0);
            if variant.starts_with('d') {
                Exit::FanOut { children }
            } else {
                Exit::Reply
            }
        };
        let stages: Vec<Stage> = used.iter().map(|name| task_stage(name, exit(name))).collect();
        let mut gear = gear(0.0, None, stages);
        gear.wiring.entry = edge(&format!("detect-{}", first("d")), self.detect, &backup("d"));
        let mut plan = plan(self.replicas, Sharing::Exclusive, vec![gear]);
        plan.dropping = self.dropping;
        plan
    }
}

/// One replica of the middle variants.
fn simple(dropping: Dropping) -> TaskTree<'static> {
    TaskTree {
        replicas: &["d2-0@a", "c2-0@b", "f2-0@c"],
        detect: &[("d2-0", 1.0)],
        cars: &[("c2-0", 1.0)],
        faces: &[("f2-0", 1.0)],
        backup: &[],
        factors: (2.0, 1.0),
        dropping,
    }
}

fn run(tree: &TaskTree<'_>, config: &SimConfig, arrivals: impl IntoIterator<Item = u64>) -> (Report, Seen) {
    simulate(&tree.plan(), &profile_of_variants(), config, arrivals)
}

#[test]
fn a_request_is_worth_the_mean_of_its_ways() {
    let (report, seen) = run(&simple(Dropping::None), &SimConfig::default(), [0]);
    // Two cars one after the other, a face meanwhile.
    assert_eq!(latencies(&seen), [2_000 + 2 * 2_000]);
    let (cars, faces) = (0.8 * 0.9, 0.8 * 0.8);
    let mean = (2.0 * cars + faces) / 3.0;
    assert!((report.path_accuracy().unwrap() - mean).abs() < 1e-9);
    assert!((report.branches.accuracy().unwrap() - mean).abs() < 1e-9);
    assert!((seen.answered[0].path_accuracy.unwrap() - mean).abs() < 1e-9);
    let step = |task: &str, variant: &str| (task.to_owned(), variant.to_owned());
    let car = report.paths.iter().find(|path| path.path[1].0 == "cars").unwrap();
    assert_eq!(car.path, [step("detect", "d2"), step("cars", "c2")]);
    assert_eq!((car.answered, report.branches.answered), (2, 3));
    assert_eq!(report.branches_left, 0);
}

#[test]
fn profiled_accuracies_of_ways_go_before_products() {
    let step = |task: &str, variant: &str| (task.to_owned(), variant.to_owned());
    let config = SimConfig {
        path_accuracies: [(vec![step("detect", "d2"), step("cars", "c2")], 0.25)].into(),
        ..SimConfig::default()
    };
    let (report, _) = run(&simple(Dropping::None), &config, [0]);
    let mean = (2.0 * 0.25 + 0.8 * 0.8) / 3.0;
    assert!((report.path_accuracy().unwrap() - mean).abs() < 1e-9);
    let nonsense = SimConfig {
        path_accuracies: [(vec![step("detect", "d2")], 1.25)].into(),
        ..SimConfig::default()
    };
    let refused = Simulator::new(&simple(Dropping::None).plan(), &profile_of_variants(), &nonsense);
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .starts_with("path_accuracies: 1.25")
    );
}

#[test]
fn shares_lead_to_any_variant_of_a_task_and_each_has_its_own_stage() {
    let tree = TaskTree {
        replicas: &["d1-0@a", "d3-0@b", "c1-0@c", "c3-0@d", "f2-0@e"],
        detect: &[("d1-0", 0.25), ("d3-0", 0.75)],
        cars: &[("c1-0", 0.5), ("c3-0", 0.5)],
        faces: &[("f2-0", 1.0)],
        factors: (1.0, 0.0),
        ..simple(Dropping::None)
    };
    let (report, _) = run(&tree, &SimConfig::default(), (0..4_000).map(|n| n * 8_000));
    let taken = |detector: &str, classifier: &str| {
        let path = |path: &&PathReport| path.path[0].1 == detector && path.path[1].1 == classifier;
        report.paths.iter().find(path).map_or(0, |path| path.answered)
    };
    for (detector, classifier, expected) in [
        ("d1", "c1", 500_u64),
        ("d1", "c3", 500),
        ("d3", "c1", 1_500),
        ("d3", "c3", 1_500),
    ] {
        let count = taken(detector, classifier);
        assert!(count.abs_diff(expected) < 60, "{detector} {classifier}: {count}");
    }
    let expected = (0.25 * 0.5 + 0.75 * 1.0) * (0.5 * 0.6 + 0.5 * 1.0);
    assert!((report.path_accuracy().unwrap() - expected).abs() < 0.01);
}

/// The second request waits for the detector as long as it runs and leaves it within its budget of 4000; the third is late by
/// 2000.
fn three_at_once(dropping: Dropping, backup: &'static [&'static str]) -> (Report, Seen) {
    let tree = TaskTree {
        replicas: &["d2-0@a", "c1-0@b", "c3-0@c", "f2-0@e"],
        cars: &[("c3-0", 1.0)],
        backup,
        factors: (1.0, 0.0),
        ..simple(dropping)
    };
    run(&tree, &SimConfig::default(), [0, 0, 0])
}

#[test]
fn a_late_request_is_dropped_or_rerouted_as_the_mechanism_says() {
    let (report, _) = three_at_once(Dropping::None, &["c1-0"]);
    assert_eq!((report.answered, report.dropped, report.rerouted), (3, 0, 0));
    let (report, seen) = three_at_once(Dropping::PerTask, &["c1-0"]);
    assert_eq!((report.answered, report.dropped, report.rerouted), (2, 1, 0));
    assert_eq!(report.slo_violations(), 1);
    assert_eq!(seen.lost.len(), 1);
    assert_eq!((seen.lost[0].at_us, seen.lost[0].loss), (6_000, Loss::Dropped));
    // The classifier takes 5000, the delay is 2000: a backup of 1000 makes up for it.
    let (report, seen) = three_at_once(Dropping::Rerouting, &["c1-0"]);
    assert_eq!((report.answered, report.dropped, report.rerouted), (3, 0, 1));
    assert_eq!(latencies(&seen), [7_000, 7_000, 12_000]);
    let (report, _) = three_at_once(Dropping::Rerouting, &["c3-0"]);
    assert_eq!((report.answered, report.dropped, report.rerouted), (2, 1, 0));
}

#[test]
fn last_task_dropping_goes_by_the_time_that_is_left() {
    let tree = TaskTree {
        factors: (1.0, 0.0),
        ..simple(Dropping::LastTask)
    };
    let config = SimConfig {
        slo_us: Some(7_900),
        ..SimConfig::default()
    };
    // The third leaves the detector at 6000 and its car takes 2000.
    let (report, _) = run(&tree, &config, [0, 0, 0]);
    assert_eq!((report.answered, report.late, report.dropped), (2, 0, 1));
    let generous = SimConfig {
        slo_us: Some(8_000),
        ..SimConfig::default()
    };
    let (report, _) = run(&tree, &generous, [0, 0, 0]);
    assert_eq!((report.answered, report.late, report.dropped), (3, 0, 0));
}

#[test]
fn by_slack_a_queue_drops_what_its_later_tasks_have_no_time_for() {
    let tree = |dropping| TaskTree {
        factors: (1.0, 0.0),
        ..simple(dropping)
    };
    let config = SimConfig {
        slo_us: Some(7_900),
        ..SimConfig::default()
    };
    // From the first four the queue learns how long a batch takes, as the batcher does.
    let arrivals = [0, 10_000, 20_000, 30_000, 50_000, 50_000, 50_000];
    // The last would start at 54000 and end at 58000.
    let (report, seen) = run(&tree(Dropping::Slack), &config, arrivals);
    assert_eq!((report.answered, report.late, report.slo_violations()), (6, 0, 1));
    assert_eq!(seen.lost.len(), 1);
    assert!(
        (53_900..=54_000).contains(&seen.lost[0].at_us),
        "{}",
        seen.lost[0].at_us
    );
    let detector = report
        .variants
        .iter()
        .find(|variant| variant.name == "d2")
        .unwrap();
    assert_eq!(detector.runs, 6, "the detector does not run for it");
    let generous = SimConfig {
        slo_us: Some(8_001),
        ..SimConfig::default()
    };
    let (report, _) = run(&tree(Dropping::Slack), &generous, arrivals);
    assert_eq!((report.answered, report.late), (7, 0));
}

#[test]
fn an_answer_beyond_the_objective_is_late_and_one_beyond_the_budget_is_none() {
    let tree = TaskTree {
        factors: (1.0, 0.0),
        ..simple(Dropping::None)
    };
    let with = |slo_us, budget_us| {
        let config = SimConfig {
            budget_us,
            slo_us,
            ..SimConfig::default()
        };
        run(&tree, &config, [0, 0, 0]).0
    };
    let report = with(Some(5_000), None);
    assert_eq!((report.answered, report.late, report.slo_violations()), (3, 2, 2));
    assert_eq!(report.branches.late, 2);
    let report = with(None, Some(5_000));
    assert_eq!(
        (report.answered, report.expired, report.slo_violations()),
        (1, 2, 2)
    );
    assert_eq!(report.slo_violation_ratio(), Some(2.0 / 3.0));
}

#[test]
fn a_lost_branch_does_not_take_the_others_with_it() {
    // The second request's cars come when the first one's have filled the queue.
    let tree = TaskTree {
        factors: (4.0, 1.0),
        ..simple(Dropping::None)
    };
    let config = SimConfig {
        queue_capacity: 2,
        ..SimConfig::default()
    };
    let (report, seen) = run(&tree, &config, [0]);
    // One car runs, two wait, one finds no room; the face is answered.
    assert_eq!((report.answered, report.refused, report.lost), (0, 1, 0));
    assert_eq!((report.branches.answered, report.branches.refused), (4, 1));
    // The request ends with its last branch, by the outcome of the one that was lost.
    assert_eq!((seen.lost[0].at_us, seen.lost[0].loss), (8_000, Loss::Refused));
    assert_eq!(seen.sinks, 4);
    assert_eq!(report.branches_left, 0);
}

#[test]
fn a_result_without_children_is_answered_and_has_no_accuracy() {
    let tree = TaskTree {
        factors: (0.25, 0.0),
        ..simple(Dropping::None)
    };
    let (report, _) = run(&tree, &SimConfig::default(), (0..1_000).map(|n| n * 10_000));
    assert_eq!((report.answered, report.branches.answered), (1_000, 1_000));
    assert!((200..300).contains(&report.graded), "{}", report.graded);
    assert!((report.path_accuracy().unwrap() - 0.72).abs() < 1e-9);
    let nothing = report.paths.iter().find(|path| path.path.len() == 1).unwrap();
    assert_eq!(nothing.answered, 1_000 - report.graded);
}

#[test]
fn copies_are_drawn_as_measured() {
    let config = SimConfig {
        copies: vec![MeasuredCopies {
            variant: "d2".into(),
            to: "cars".into(),
            // Five or none.
            weights: vec![3.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        }],
        ..SimConfig::default()
    };
    let (report, seen) = run(&simple(Dropping::None), &config, (0..1_000).map(|n| n * 20_000));
    assert_eq!(report.answered, 1_000);
    // The detector, the face, and the cars.
    assert!(
        seen.answered
            .iter()
            .all(|answered| [2, 7].contains(&answered.hops))
    );
    let many = seen.answered.iter().filter(|answered| answered.hops == 7).count();
    assert!((200..300).contains(&many), "{many}");
    let wrong = SimConfig {
        copies: vec![MeasuredCopies {
            weights: vec![0.0, f64::NAN],
            ..config.copies[0].clone()
        }],
        ..SimConfig::default()
    };
    let refused = Simulator::new(&simple(Dropping::None).plan(), &profile_of_variants(), &wrong);
    assert!(refused.unwrap_err().to_string().starts_with("copies.weights"));
}

#[test]
fn the_timeline_shows_violations_accuracy_and_active_devices() {
    let tree = simple(Dropping::PerTask);
    let simulator = Simulator::new(&tree.plan(), &profile_of_variants(), &SimConfig::default()).unwrap();
    let mut timeline = Timeline::new(1_000_000);
    // Three at once every 100 ms: the third is dropped.
    let arrivals = (0..60).map(|n| n / 3 * 100_000);
    let report = simulator.run(arrivals, &mut timeline);
    assert_eq!((report.answered, report.dropped), (40, 20));
    let buckets = timeline.finish();
    assert_eq!((buckets[0].violations, buckets[0].dropped), (10, 10));
    assert!((buckets[0].active_devices - 3.0).abs() < 1e-9);
    assert!((buckets[0].path_accuracy.unwrap() - report.branches.accuracy().unwrap()).abs() < 1e-9);
}
