use super::*;
use crate::invalid::Problem;

fn problem(change: impl FnOnce(&mut Pipeline)) -> (String, Problem) {
    let mut pipeline = stated();
    change(&mut pipeline);
    let invalid = pipeline.validate().unwrap_err();
    (invalid.path, invalid.problem)
}

#[test]
fn the_stated_pipeline_is_sound_and_reads_back() {
    let pipeline = stated();
    let text = serde_json::to_string(&pipeline).unwrap();
    assert_eq!(Pipeline::from_json(&text).unwrap(), pipeline);
    let tree = Tree::of(&pipeline).unwrap();
    assert_eq!((tree.order, tree.sinks), (vec![0, 1, 2], vec![1, 2]));
    let cars = pipeline.tasks[0].variants[0].multiplicity("car");
    assert!((cars - 2.0).abs() < 1e-12);
}

#[test]
fn the_social_pipeline_is_a_sound_chain() {
    let pipeline = stated_social();
    pipeline.validate().unwrap();
    assert_eq!(Tree::of(&pipeline).unwrap().sinks, vec![1]);
    let captions = pipeline.tasks[0].variants[4].multiplicity("caption");
    assert!((captions - 1.0).abs() < 1e-12);
}

#[test]
fn unknown_fields_are_refused() {
    let text = serde_json::to_string(&stated()).unwrap();
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
    let mut pipeline = stated();
    pipeline.tasks[1].variants[0].latency.truncate(3);
    pipeline.validate().unwrap();
}

fn profiled() -> Pipeline {
    let mut pipeline = stated();
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

const GRAPH: &str = r#"{"appName": "t", "latencySLOInMSec": 250, "root": {"task": "find", "model_variants": ["s", "m"],
 "children": [{"task": "car", "model_variants": ["b0", "b7"], "children": [{"task": "sink", "model_variants": ["sink"], "children": []}]}]}}"#;
const BRANCHING: &str = ",model,mult_factor,car\n0,s,2.0,0.5\n1,m,4.0,0.25\n";
const RUNTIMES: &str = ",Model,Accel,batchsize,avg,50th_pct\n0,s,gpu,1,9,10\n1,s,gpu,2,9,15\n2,m,gpu,1,9,20\n3,m,cpu,2,9,1\n4,b0,gpu,1,9,5\n";

fn artefact(branching: &str, runtimes: &str) -> Result<Artefact, ArtefactError> {
    let accuracies = BTreeMap::from([
        ("find".to_owned(), "s,90\nm,80".to_owned()),
        ("car".to_owned(), "b0,91.5\nb7,100".to_owned()),
    ]);
    let files = ArtefactFiles {
        graph: GRAPH,
        branching,
        accuracies: &accuracies,
        runtimes,
        accelerator: "gpu",
        batches: &[1, 2, 4],
        hop_us: 0,
    };
    files.read()
}

#[test]
fn the_published_files_are_read_and_their_oddities_told() {
    let Artefact { pipeline, notes } = artefact(BRANCHING, RUNTIMES).unwrap();
    assert_eq!((pipeline.slo_us, pipeline.tasks.len()), (250_000, 2));
    let find = &pipeline.tasks[0];
    assert_eq!(
        (find.variants[0].latency.len(), find.variants[1].latency.len()),
        (2, 1)
    );
    assert!((find.variants[1].multiplicity("car") - 1.0).abs() < 1e-12);
    assert_eq!(pipeline.tasks[1].variants.len(), 1, "one was not measured");
    assert!(notes.iter().any(|note| note.contains("`b7`")));
    assert!(notes.iter().any(|note| note.contains("look swapped")));
}

#[test]
fn a_bad_file_is_named_with_its_line() {
    let error = artefact(BRANCHING, &RUNTIMES.replace("9,15", "9,fast")).unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("simulator_runtimes.csv", 3));
    let error = artefact(&BRANCHING.replace("mult_factor", "factor"), RUNTIMES).unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("branching.csv", 1));
    let error = artefact(",model,mult_factor,car\n0,s,2.0,0.5\n", RUNTIMES).unwrap_err();
    assert_eq!(error.fault, ArtefactFault::Missing("m".into()));
    let error = artefact(&BRANCHING.replace("0.25", "NaN"), RUNTIMES).unwrap_err();
    assert!(matches!(error.fault, ArtefactFault::NotANumber { .. }));
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
    assert!(stated().path_accuracies().is_empty());
}

#[test]
fn a_thinned_pipeline_has_the_same_shape() {
    for pipeline in [stated(), profiled()] {
        let thin = pipeline.thinned(3, &[1, 4, 16]);
        thin.validate().unwrap();
        assert_eq!((thin.batches.as_slice(), thin.tasks.len()), (&[1, 4, 16][..], 3));
        let names: Vec<&str> = thin.tasks[1]
            .variants
            .iter()
            .map(|variant| variant.name.as_str())
            .collect();
        assert_eq!(names, ["car-0", "car-4", "car-6"]);
    }
    let one = stated().thinned(1, &[1]);
    assert_eq!(one.tasks[0].variants[0].name, "detect-x", "the best");
    assert_eq!(stated().thinned(9, &[1, 2, 4, 8, 16, 32, 64]), stated());
}
