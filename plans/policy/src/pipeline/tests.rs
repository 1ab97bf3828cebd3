use super::*;
use crate::invalid::Problem;

/// A variant: name, accuracy, microseconds of a batch before its first request, and for each request in it.
type Row = (&'static str, f64, f64, f64);

const FIND: [Row; 5] = [
    ("detect-n", 0.55, 4_000.0, 6_000.0),
    ("detect-s", 0.76, 4_000.0, 9_000.0),
    ("detect-m", 0.88, 6_000.0, 13_000.0),
    ("detect-l", 0.96, 8_000.0, 18_000.0),
    ("detect-x", 1.00, 10_000.0, 31_000.0),
];
const CAR: [Row; 5] = [
    ("car-0", 0.92, 2_500.0, 1_000.0),
    ("car-2", 0.95, 3_000.0, 1_500.0),
    ("car-4", 0.98, 4_000.0, 3_200.0),
    ("car-5", 0.99, 5_000.0, 5_000.0),
    ("car-6", 1.00, 6_000.0, 7_000.0),
];
const FACE: [Row; 3] = [
    ("face-11", 0.95, 4_000.0, 1_000.0),
    ("face-16", 0.97, 5_000.0, 1_900.0),
    ("face-19", 1.00, 6_000.0, 2_300.0),
];

/// Finds cars and faces: every detector makes 2.5 requests of one, four in five of them cars.
fn sample() -> Pipeline {
    let batches = vec![1, 2, 4, 8];
    let variant = |(name, accuracy, base_us, request_us): &Row, ratios: &[(&str, f64)]| TaskVariant {
        name: (*name).into(),
        checkpoint: None,
        accuracy: *accuracy,
        latency: batches
            .iter()
            .map(|batch| BatchLatency {
                batch: *batch,
                us: base_us + request_us * f64::from(*batch),
            })
            .collect(),
        multiplicative_factor: if ratios.is_empty() { 1.0 } else { 2.5 },
        branch_ratios: ratios
            .iter()
            .map(|(child, share)| ((*child).into(), *share))
            .collect(),
    };
    let task = |name: &str, rows: &[Row], ratios: &[(&str, f64)]| Task {
        name: name.into(),
        children: ratios.iter().map(|(child, _)| (*child).into()).collect(),
        variants: rows.iter().map(|row| variant(row, ratios)).collect(),
    };
    Pipeline {
        name: "traffic".into(),
        slo_us: 250_000,
        hop_us: 1_000,
        tasks: vec![
            task("detect", &FIND, &[("car", 0.8), ("face", 0.2)]),
            task("car", &CAR, &[]),
            task("face", &FACE, &[]),
        ],
        batches,
        path_accuracy: PathAccuracy::Product,
    }
}

fn problem(change: impl FnOnce(&mut Pipeline)) -> (String, Problem) {
    let mut pipeline = sample();
    change(&mut pipeline);
    let invalid = pipeline.validate().unwrap_err();
    (invalid.path, invalid.problem)
}

#[test]
fn a_sound_pipeline_is_accepted_and_reads_back() {
    let pipeline = sample();
    let text = serde_json::to_string(&pipeline).unwrap();
    assert_eq!(Pipeline::from_json(&text).unwrap(), pipeline);
    let tree = TaskTree::new(&pipeline).unwrap();
    assert_eq!((tree.order, tree.sinks), (vec![0, 1, 2], vec![1, 2]));
    let cars = pipeline.tasks[0].variants[0].multiplicity("car");
    assert!((cars - 2.0).abs() < 1e-12);
}

#[test]
fn unknown_fields_are_refused() {
    let text = serde_json::to_string(&sample()).unwrap();
    let text = text.replace("\"slo_us\"", "\"slo\"");
    assert!(
        Pipeline::from_json(&text)
            .unwrap_err()
            .to_string()
            .contains("slo")
    );
}

#[test]
fn what_is_no_tree_is_refused_by_name() {
    let (path, found) = problem(|p| p.tasks[1].children = vec!["face".into()]);
    assert_eq!(path, "tasks[1].children[0]");
    assert!(
        found
            .to_string()
            .contains("`face` is a child of `detect` and of `car`")
    );
    let (_, found) = problem(|p| p.tasks[1].children = vec!["detect".into()]);
    assert_eq!(
        found,
        Problem::Cycle {
            task: "detect".into()
        }
    );
    let (_, found) = problem(|p| p.tasks[0].children = vec!["car".into()]);
    let (first, second) = ("detect".into(), "face".into());
    assert_eq!(found, Problem::SecondRoot { first, second });
    let (path, found) = problem(|p| p.tasks[0].children[1] = "plate".into());
    let name = "plate".into();
    assert_eq!(path, "tasks[0].children[1]");
    assert_eq!(found, Problem::Unknown { what: "task", name });
    let (_, found) = problem(|p| p.tasks[0].children[1] = "car".into());
    assert!(matches!(found, Problem::SecondParent { .. }));
}

#[test]
fn a_circle_beside_the_root_is_found() {
    let (_, found) = problem(|p| {
        p.tasks[0].children = vec![];
        p.tasks[1].children = vec!["face".into()];
        p.tasks[2].children = vec!["car".into()];
    });
    assert_eq!(found, Problem::Cycle { task: "car".into() });
}

#[test]
fn bad_figures_are_refused_with_their_path() {
    for (change, expected) in [
        (
            (|p| p.tasks[1].variants[0].accuracy = f64::NAN) as fn(&mut Pipeline),
            "tasks[1].variants[0].accuracy",
        ),
        (|p| p.tasks[1].variants.clear(), "tasks[1].variants"),
        (|p| p.tasks.clear(), "tasks"),
        (|p| p.slo_us = 0, "slo_us"),
        (|p| p.batches[0] = 2, "batches[0]"),
        (|p| p.batches[2] = 2, "batches[2]"),
        (|p| p.tasks[1].name = "detect".into(), "tasks[1].name"),
        (
            |p| p.tasks[1].variants[0].name = "face-11".into(),
            "tasks[2].variants[0].name",
        ),
        (
            |p| p.tasks[0].variants[0].multiplicative_factor = -1.0,
            "tasks[0].variants[0].multiplicative_factor",
        ),
        // The plan of it was refused, by a field of the plan.
        (
            |p| p.tasks[0].variants[0].multiplicative_factor = 1e6,
            "tasks[0].variants[0].multiplicative_factor",
        ),
        (
            |p| {
                p.tasks[0].variants[0].branch_ratios.clear();
            },
            "tasks[0].variants[0].branch_ratios[\"car\"]",
        ),
        (
            |p| {
                p.tasks[1].variants[0].branch_ratios.insert("sink".into(), 1.0);
            },
            "tasks[1].variants[0].branch_ratios",
        ),
        // A misspelt child was "NaN is not in [0, 1]" at the child that it should be.
        (
            |p| {
                p.tasks[0].variants[0].branch_ratios.remove("car");
                p.tasks[0].variants[0].branch_ratios.insert("cra".into(), 0.5);
            },
            "tasks[0].variants[0].branch_ratios",
        ),
        (
            |p| {
                p.tasks[1].variants[0].latency.remove(2);
            },
            "tasks[1].variants[0].latency[2].batch",
        ),
        (
            |p| p.tasks[1].variants[0].latency[1].us = 0.0,
            "tasks[1].variants[0].latency[1].us",
        ),
        (
            |p| p.tasks[1].variants[0].latency.clear(),
            "tasks[1].variants[0].latency",
        ),
    ] {
        assert_eq!(problem(change).0, expected);
    }
}

#[test]
fn memory_may_end_the_batches_early() {
    let mut pipeline = sample();
    pipeline.tasks[1].variants[0].latency.truncate(3);
    pipeline.validate().unwrap();
}

fn profiled() -> Pipeline {
    let mut pipeline = sample();
    let path = |variants: &[&str]| ProfiledPath {
        variants: variants.iter().map(|name| (*name).to_owned()).collect(),
        accuracy: 0.5,
    };
    let mut paths = Vec::new();
    for root in &pipeline.tasks[0].variants {
        for sink in &pipeline.tasks[1..] {
            paths.extend(
                sink.variants
                    .iter()
                    .map(|variant| path(&[&root.name, &variant.name])),
            );
        }
    }
    pipeline.path_accuracy = PathAccuracy::Profiled { paths };
    pipeline
}

#[test]
fn profiled_paths_are_all_there_or_refused() {
    let sound = profiled();
    sound.validate().unwrap();
    assert_eq!(sound.profiled().unwrap().len(), 40);
    let broken = |change: fn(&mut Vec<ProfiledPath>)| {
        let mut pipeline = profiled();
        let PathAccuracy::Profiled { paths } = &mut pipeline.path_accuracy else {
            panic!("it is profiled")
        };
        change(paths);
        pipeline.validate().unwrap_err().problem
    };
    let (found, expected) = (39, 40);
    assert_eq!(
        broken(|paths| {
            paths.pop();
        }),
        Problem::Paths { found, expected }
    );
    assert!(matches!(
        broken(|paths| paths[1] = paths[0].clone()),
        Problem::Twice { .. }
    ));
    assert!(matches!(
        broken(|paths| {
            paths[0].variants.pop();
        }),
        Problem::NotAPath { .. }
    ));
    assert!(matches!(
        broken(|paths| paths[0].variants.reverse()),
        Problem::NotAPath { .. }
    ));
    assert!(matches!(
        broken(|paths| paths[0].variants[0] = "x".into()),
        Problem::Unknown { .. }
    ));
}

#[test]
fn the_simulators_profile_has_every_variant_and_the_paths_that_were_profiled() {
    let pipeline = profiled();
    let profile = pipeline.profile();
    profile.validate().unwrap();
    assert_eq!(profile.variants.len(), 13);
    let car = profile
        .variants
        .iter()
        .find(|variant| variant.name == "car-4")
        .unwrap();
    assert!(
        (car.costs[2].latency_s - 0.0168).abs() < 1e-12,
        "4 ms and 4 times 3.2"
    );
    let paths = pipeline.path_accuracies();
    let step = |task: &str, variant: &str| (task.to_owned(), variant.to_owned());
    assert_eq!(paths.len(), 40);
    assert_eq!(
        paths.get(&vec![step("detect", "detect-n"), step("face", "face-19")]),
        Some(&0.5)
    );
    assert!(sample().path_accuracies().is_empty());
}
