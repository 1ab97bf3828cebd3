//! Ways to handle late requests of pipelines, and to provide for a rise of the demand, on even and on bursty loads.
//!
//! `cargo run --release -p kaskade-planners --example dropping_study -- [--seconds N] [--seeds N,N,...] [--trace FILE] [--data DIRECTORY] [--also CONTESTANT]
//! [--only LOAD] [--json]` prints a table or JSON: per pipeline and load, over all seeds, the share of requests that missed their objective
//! and the mean accuracy of the answers. `FILE` holds requests per second, separated by spaces; a part around the busiest second of a day
//! is replayed, and another part that is made bursty. `DIRECTORY` holds the measurements that the Loki authors published, for the traffic
//! pipeline. `--also slack,rise=3` adds a contestant with other options (see
//! [`Contestant::read`]). Every contestant manages the same pipeline on 20 workers under the same arrivals; the busiest second has 2.5 times
//! what the most accurate variants serve.
#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a study that fails shows why"
)]

mod contestants;
mod loads;
#[expect(unreachable_pub, reason = "the peer is public where it belongs")]
#[path = "../../../../papers/src/peers/proteus.rs"]
mod proteus;

use contestants::{Contestant, WORKERS, standard};
use kaskade_planners::allocate::{AllocateOptions, AllocationPolicy, Allocator};
use kaskade_policy::pipeline::Pipeline;
use kaskade_simulator::trace::Trace;
use kaskade_stated::pipelines::{stated, stated_social};
use serde_json::json;

/// The busiest second, in multiples of what the most accurate variants serve.
const PEAK: f64 = 2.5;

/// The result of a contestant, summed over seeds.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    requests: f64,
    missed: f64,
    accuracy: f64,
    answered: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let flags = |name: &'static str| {
        let pairs = arguments.windows(2);
        pairs
            .filter(move |pair| pair[0] == name)
            .map(|pair| pair[1].clone())
    };
    let seconds: usize = flags("--seconds")
        .next()
        .map_or(300, |text| text.parse().unwrap());
    let published = flags("--data").next();
    let traffic = published.map_or_else(stated, |folder| contestants::published(&folder));
    let seeds = flags("--seeds").next().unwrap_or_else(|| "1".to_owned());
    let seeds: Vec<u64> = seeds.split(',').map(|seed| seed.parse().unwrap()).collect();
    let only: Vec<String> = flags("--only").collect();
    let text = flags("--trace").next();
    let text = text.map(|path| std::fs::read_to_string(path).expect("the trace can be read"));
    let mut contestants = standard();
    contestants.extend(flags("--also").map(|text| Contestant::read(&text)));
    let mut rows = Vec::new();
    for pipeline in [traffic, stated_social()] {
        let served = served_qps(&pipeline);
        for (load, name) in names(seconds, text.as_deref()).iter().enumerate() {
            if !only.is_empty() && !only.contains(name) {
                continue;
            }
            let mut sums = vec![Sum::default(); contestants.len()];
            for seed in &seeds {
                let trace = &loads(seconds, *seed, text.as_deref())[load].1;
                let trace = trace.scale_to_peak(PEAK * served).unwrap();
                for (sum, contestant) in sums.iter_mut().zip(&contestants) {
                    sum.add(&contestant.play(&pipeline, &trace, *seed));
                }
            }
            rows.push((pipeline.name.clone(), name.clone(), sums));
        }
    }
    if arguments.iter().any(|argument| argument == "--json") {
        print_json(&contestants, &rows, (seconds, &seeds));
    } else {
        print_table(&contestants, &rows);
    }
}

fn loads(seconds: usize, seed: u64, measured: Option<&str>) -> Vec<(String, Trace)> {
    let mut all = loads::generated(seconds, seed);
    all.extend(
        measured
            .into_iter()
            .flat_map(|text| loads::measured(text, seconds, seed)),
    );
    all
}

fn names(seconds: usize, measured: Option<&str>) -> Vec<String> {
    let all = loads(seconds, 0, measured).into_iter();
    all.map(|(name, _)| name).collect()
}

/// Capacity of the cluster with the most accurate variants, requests/s.
fn served_qps(pipeline: &Pipeline) -> f64 {
    let hardware = AllocateOptions {
        policy: AllocationPolicy::HardwareOnly,
        ..AllocateOptions::default()
    };
    let hardware = Allocator::new(pipeline.clone(), hardware).unwrap();
    hardware.allocate(1e9, WORKERS).unwrap().served_qps
}

impl Sum {
    fn add(&mut self, report: &kaskade_simulator::Report) {
        let answered = report.answered as f64;
        self.requests += report.requests as f64;
        self.missed += report.slo_violation_ratio().unwrap() * report.requests as f64;
        self.accuracy += report.path_accuracy().unwrap_or(0.0) * answered;
        self.answered += answered;
    }

    fn missed_percent(self) -> f64 {
        100.0 * self.missed / self.requests
    }

    fn accuracy_percent(self) -> f64 {
        100.0 * self.accuracy / self.answered
    }
}

type Row = (String, String, Vec<Sum>);

fn print_table(contestants: &[Contestant], rows: &[Row]) {
    let names: Vec<&str> = contestants
        .iter()
        .map(|contestant| contestant.name.as_str())
        .collect();
    println!("| pipeline | load | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for (pipeline, load, sums) in rows {
        let cells = sums
            .iter()
            .map(|sum| format!("{:.2} % ({:.1})", sum.missed_percent(), sum.accuracy_percent()));
        println!(
            "| {pipeline} | {load} | {} |",
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
}

fn print_json(contestants: &[Contestant], rows: &[Row], (seconds, seeds): (usize, &[u64])) {
    let rows = rows.iter().map(|(pipeline, load, sums)| {
        let each = contestants.iter().zip(sums).map(|(contestant, sum)| {
            json!({
                "system": contestant.name,
                "requests": sum.requests,
                "missed_percent": (1e4 * sum.missed_percent()).round() / 1e4,
                "accuracy_percent": (1e4 * sum.accuracy_percent()).round() / 1e4,
            })
        });
        json!({ "pipeline": pipeline, "load": load, "systems": each.collect::<Vec<_>>() })
    });
    let all = json!({
        "study": "dropping",
        "seconds": seconds,
        "seeds": seeds,
        "workers": WORKERS,
        "rows": rows.collect::<Vec<_>>(),
    });
    println!("{}", serde_json::to_string_pretty(&all).unwrap());
}
