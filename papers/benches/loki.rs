//! How good and how fast Loki's allocator and balancer are.
//!
//! ```text
//! cargo bench -p kaskade-papers --bench loki -- [--data DIR] [--without VARIANT] [--exact]
//! cargo bench -p kaskade-papers --features highs --bench loki -- [--data DIR] --exact --highs
//! ```
//!
//! `DIR` holds what the Loki authors published: `traffic_analysis.json`, `branching.csv`, `simulator_runtimes.csv`, `variants/*.txt`.
//! Without it the stated pipeline is used. `--without` leaves a variant out: without `yolov5s` the chain is the instance of the
//! research notes. With `--exact` the optima of the paper's program (F1) and of the flow over all columns (F2) are printed too: for the chain
//! by the embedded solver, which takes minutes, and for the tree as well by HiGHS, which takes seconds.

#![expect(clippy::print_stdout, reason = "it prints tables")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark that fails shows why"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use kaskade_planners::allocate::{AllocateOptions, Allocator, Scaling};
use kaskade_planners::balance::Balancer;
use kaskade_planners::lp::Solver;
use kaskade_planners::reference::{exact_accuracy, flow_accuracy};
use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task, TaskVariant};
use kaskade_stated::artefact::ArtefactFiles;
use kaskade_stated::pipelines::stated;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let data = arguments.iter().position(|argument| argument == "--data");
    let data = data.and_then(|at| arguments.get(at + 1));
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let (exact, highs) = (has("--exact"), has("--highs"));
    let solver = if highs { Solver::Highs } else { Solver::Embedded };
    let mut pipeline = data.map_or_else(stated, |folder| published(Path::new(folder)));
    let left_out = arguments.iter().position(|argument| argument == "--without");
    if let Some(name) = left_out.and_then(|at| arguments.get(at + 1)) {
        for task in &mut pipeline.tasks {
            task.variants.retain(|variant| &variant.name != name);
        }
    }
    let chain = chain_of(&pipeline);
    for (name, pipeline) in [("tree", &pipeline), ("chain of the first two tasks", &chain)] {
        println!(
            "\n{name} of {}, 20 workers, SLO {} ms",
            pipeline.name,
            pipeline.slo_us / 1000
        );
        sweep(pipeline);
        if exact && (highs || name != "tree") {
            optima(pipeline, solver);
        }
    }
    println!("\n1,000 workers, the published pipeline");
    speed(&pipeline, &[20_000.0, 50_000.0, 80_000.0], 1_000);
    for (name, pipeline) in [("chain", invented(false)), ("tree", invented(true))] {
        for workers in [20, 100, 1_000] {
            println!("\n{name} of 3 tasks x 10 variants, {workers} workers");
            let demand = f64::from(workers);
            speed(
                &pipeline,
                &[2.0 * demand, 4.0 * demand, 8.0 * demand, 12.0 * demand],
                workers,
            );
        }
    }
    balancer(&pipeline);
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn published(folder: &Path) -> Pipeline {
    let variants = std::fs::read_dir(folder.join("variants")).expect("the folder has `variants`");
    let accuracies: BTreeMap<String, String> = variants
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                read(&path),
            )
        })
        .collect();
    let files = ArtefactFiles {
        graph: &read(&folder.join("traffic_analysis.json")),
        branching: &read(&folder.join("branching.csv")),
        accuracies: &accuracies,
        runtimes: &read(&folder.join("simulator_runtimes.csv")),
        accelerator: "onnxruntime_gpu_pascal",
        batches: &[1, 2, 4, 8, 16, 32, 64],
        hop_us: 0,
    };
    let artefact = files.read().unwrap();
    for note in &artefact.notes {
        println!("note: {note}");
    }
    artefact.pipeline
}

/// The root and its first child alone, as in the research notes' figures.
fn chain_of(pipeline: &Pipeline) -> Pipeline {
    let mut chain = pipeline.clone();
    chain.tasks.truncate(2);
    let dropped: Vec<String> = chain.tasks[0].children.drain(1..).collect();
    for variant in &mut chain.tasks[0].variants {
        variant.branch_ratios.retain(|child, _| !dropped.contains(child));
    }
    chain
}

/// Demands from 250 to 2,000 requests/s in steps of 50.
fn sweep(pipeline: &Pipeline) {
    let begun = Instant::now();
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
    println!("prepared in {:.2} ms", begun.elapsed().as_secs_f64() * 1e3);
    let (mut times, mut gaps) = (Vec::new(), Vec::new());
    for step in 5..=40 {
        let demand = f64::from(step) * 50.0;
        let begun = Instant::now();
        let allocation = allocator.allocate(demand, 20).unwrap();
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        if allocation.scaling == Scaling::Accuracy {
            gaps.push(allocation.gap());
        }
        if step % 5 == 0 || step == 6 {
            println!(
                "D={demand:<6} {:?} served {:.0} used {} accuracy {:.4} bound {:.4} gap {:.3} % in {:.2} ms {}",
                allocation.scaling,
                allocation.served_qps,
                allocation.used,
                100.0 * allocation.accuracy,
                100.0 * allocation.bound,
                100.0 * allocation.gap(),
                times.last().unwrap(),
                allocation
                    .solver_error
                    .map(|fault| fault.to_string())
                    .unwrap_or_default()
            );
        }
    }
    println!(
        "allocator: {} ms; gap: {} %",
        mean_and_worst(&times, 1.0),
        mean_and_worst(&gaps, 100.0)
    );
}

fn mean_and_worst(values: &[f64], scale: f64) -> String {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let worst = values.iter().copied().fold(0.0, f64::max);
    format!("mean {:.3}, worst {:.3}", scale * mean, scale * worst)
}

/// The optima that the research notes have.
fn optima(pipeline: &Pipeline, solver: Solver) {
    let options = AllocateOptions {
        solver,
        ..AllocateOptions::default()
    };
    let allocator = Allocator::new(pipeline.clone(), options).unwrap();
    for demand in [300.0, 1000.0, 2000.0, 500.0, 750.0, 1250.0, 1500.0, 1750.0] {
        let timed = |name: &str, run: &dyn Fn() -> Result<f64, kaskade_planners::allocate::AllocateError>| {
            let begun = Instant::now();
            let found = run().map_or_else(|error| error.to_string(), |found| format!("{:.4}", 100.0 * found));
            format!("{name} {found} ({:.2} s)", begun.elapsed().as_secs_f64())
        };
        println!(
            "D={demand:<6} {}, {}, {}, planner {}",
            timed("F1", &|| exact_accuracy(&allocator, demand, 20)),
            timed("F2", &|| flow_accuracy(&allocator, demand, 20, false)),
            timed("F2 single batch", &|| flow_accuracy(&allocator, demand, 20, true)),
            timed("", &|| allocator
                .allocate(demand, 20)
                .map(|allocation| allocation.accuracy)),
        );
    }
}

fn speed(pipeline: &Pipeline, demands: &[f64], workers: u32) {
    let begun = Instant::now();
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
    println!("prepared in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    for demand in demands {
        let begun = Instant::now();
        let allocation = allocator.allocate(*demand, workers).unwrap();
        println!(
            "D={demand:<8} {:?} used {} accuracy {:.4} gap {:.3} % in {:.1} ms",
            allocation.scaling,
            allocation.used,
            100.0 * allocation.accuracy,
            100.0 * allocation.gap(),
            begun.elapsed().as_secs_f64() * 1e3
        );
    }
}

/// Three tasks of ten variants with invented figures: the better, the slower.
fn invented(tree: bool) -> Pipeline {
    let batches = [1, 2, 4, 8, 16, 32, 64];
    let names = ["a", "b", "c"];
    let task = |place: usize| {
        let children: Vec<String> = match (tree, place) {
            (true, 0) => vec!["b".into(), "c".into()],
            (false, 0) => vec!["b".into()],
            (false, 1) => vec!["c".into()],
            _ => Vec::new(),
        };
        let variant = |rank: u32| {
            let worth = f64::from(rank) / 9.0;
            let request_us = 700.0 * f64::from(rank + 1).powf(1.3) * (1.0 + place as f64 / 7.0);
            let sample = |batch: u32| BatchLatency {
                batch,
                us: 2_500.0 + 300.0 * f64::from(rank) + request_us * f64::from(batch),
            };
            TaskVariant {
                name: format!("{}{rank}", names[place]),
                checkpoint: None,
                accuracy: 0.6 + 0.4 * worth.powf(0.6 + 0.2 * place as f64),
                latency: batches.map(sample).to_vec(),
                multiplicative_factor: 1.0 + 3.0 * worth,
                branch_ratios: children
                    .iter()
                    .map(|child| (child.clone(), 1.0 / children.len() as f64))
                    .collect(),
            }
        };
        Task {
            name: names[place].into(),
            variants: (0..10).map(variant).collect(),
            children,
        }
    };
    Pipeline {
        name: "invented".into(),
        slo_us: 400_000,
        hop_us: 500,
        batches: batches.to_vec(),
        tasks: (0..3).map(task).collect(),
        path_accuracy: PathAccuracy::Product,
    }
}

fn balancer(pipeline: &Pipeline) {
    println!("\nbalancer");
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default()).unwrap();
    for (workers, demand) in [(20, 500.0), (100, 2_500.0), (1_000, 25_000.0)] {
        let allocation = allocator.allocate(demand, workers).unwrap();
        let balancer = Balancer::new(pipeline, &allocation.instances);
        let rounds = 20_000;
        let begun = Instant::now();
        let mut tables = 0;
        for round in 0..rounds {
            let qps = demand * (0.9 + f64::from(round % 7) / 70.0);
            tables += std::hint::black_box(balancer.balance(std::hint::black_box(qps)))
                .tables
                .len();
        }
        let each = begun.elapsed().as_secs_f64() / f64::from(rounds) * 1e6;
        println!(
            "{workers} workers, {} variants in use, {} tables: {each:.2} us",
            allocation.instances.len(),
            tables / rounds as usize
        );
    }
}
