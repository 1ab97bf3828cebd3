//! How long planning takes, and how it grows: `cargo bench -p kaskade-papers --bench gears -- [bert|llama|ranges|devices|quality]`.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Instant;

use kaskade_planners::gears::{DeviceSpec, GearOptions, Simulated, plan_gears};
use kaskade_planners::reference::{CascadeOutcomes, constrained};
use kaskade_policy::plan::Slo;
use kaskade_stated::workloads::{StatedWorkload, bert, llama};

fn options(workload: &StatedWorkload, slo: Slo, qps_max: f64, devices: usize, ranges: u32) -> GearOptions {
    GearOptions {
        ranges,
        ..GearOptions::new(slo, qps_max, DeviceSpec::fleet(devices, workload.memory_bytes))
    }
}

/// One line: what was planned, how long it took, what came out.
fn row(what: &str, workload: &StatedWorkload, options: &GearOptions) {
    let profile = workload.profile();
    let start = Instant::now();
    let found = plan_gears(&profile, options, |_| {});
    let seconds = start.elapsed().as_secs_f64();
    match found {
        Ok(found) => println!(
            "{what:<34} {seconds:>8.2} s  calls {:>5}  simulations {:>5}  gears {:>3}  accuracy {:.4}  p95 {:>7.1} ms",
            found.effort.calls(),
            found.effort.simulations,
            found.plan.gears.len(),
            found.accuracy,
            found.p95_us / 1e3,
        ),
        Err(error) => println!("{what:<34} {seconds:>8.2} s  {error}"),
    }
}

const LATENCY: Slo = Slo::Latency { p95_us: 100_000 };

fn full_workload() {
    let workload = bert();
    for devices in [4, 8, 16] {
        for (name, slo) in [
            ("p95 <= 50 ms", Slo::Latency { p95_us: 50_000 }),
            ("p95 <= 100 ms", LATENCY),
            ("p95 <= 400 ms", Slo::Latency { p95_us: 400_000 }),
            ("accuracy >= 0.83", Slo::Accuracy { at_least: 0.83 }),
        ] {
            let options = options(&workload, slo, workload.peak_qps, devices, 16);
            row(&format!("bert, {devices} devices, {name}"), &workload, &options);
        }
    }
}

fn large_models() {
    let workload = llama();
    for devices in [4, 8, 16] {
        for (name, slo) in [
            ("p95 <= 1 s", Slo::Latency { p95_us: 1_000_000 }),
            ("p95 <= 3 s", Slo::Latency { p95_us: 3_000_000 }),
            ("accuracy >= 0.60", Slo::Accuracy { at_least: 0.60 }),
        ] {
            let options = options(&workload, slo, workload.peak_qps, devices, 16);
            row(&format!("llama, {devices} devices, {name}"), &workload, &options);
        }
    }
}

fn growth_with_ranges() {
    let workload = bert();
    for ranges in [4, 8, 16, 32, 64] {
        let options = options(&workload, LATENCY, workload.peak_qps, 8, ranges);
        row(&format!("bert, 8 devices, N = {ranges}"), &workload, &options);
    }
}

/// The load grows with the fleet, so that the plans stay alike.
fn growth_with_devices() {
    for workload in [bert(), llama()] {
        let (slo, each) = match workload.name.as_str() {
            "bert" => (LATENCY, 950.0),
            _ => (Slo::Latency { p95_us: 3_000_000 }, 7.5),
        };
        for devices in [4, 16, 64, 250, 1_000] {
            let options = options(&workload, slo, each * devices as f64, devices, 16);
            row(
                &format!("{}, {devices} devices", workload.name),
                &workload,
                &options,
            );
        }
    }
}

/// Figure 10: the constrained space, with the planner, all assignments, and random ones for twice the planner's simulations.
fn quality() {
    const RANGES: u32 = 5;
    let latencies = |p95_ms: &[u64]| -> Vec<Slo> {
        p95_ms
            .iter()
            .map(|ms| Slo::Latency { p95_us: ms * 1_000 })
            .collect()
    };
    let accuracies = |levels: &[f64]| -> Vec<Slo> {
        levels
            .iter()
            .map(|at_least| Slo::Accuracy { at_least: *at_least })
            .collect()
    };
    let cases = [
        (
            bert(),
            2,
            [
                latencies(&[15, 20, 30, 50, 100, 200]),
                accuracies(&[0.77, 0.79, 0.80, 0.81, 0.82, 0.83]),
            ],
        ),
        (
            llama(),
            4,
            [
                latencies(&[150, 300, 600, 1_200, 2_400, 5_000]),
                accuracies(&[0.52, 0.55, 0.58, 0.60, 0.62, 0.64]),
            ],
        ),
    ];
    for (workload, devices, slos) in cases {
        let profile = workload.profile();
        for slo in slos.into_iter().flatten() {
            let options = constrained(&options(&workload, slo, workload.peak_qps, devices, RANGES), 12);
            let start = Instant::now();
            let landscape = CascadeOutcomes::new(&profile, &options, Simulated::new(&profile, &options));
            let best = landscape
                .as_ref()
                .ok()
                .and_then(|landscape| landscape.exhaustive().ok().flatten());
            let exhaustive_s = start.elapsed().as_secs_f64();
            let start = Instant::now();
            let planned = plan_gears(&profile, &options, |_| {});
            let planned_s = start.elapsed().as_secs_f64();
            let (Ok(landscape), Some(best), Ok(planned)) = (landscape, best, planned) else {
                println!("{} {slo:?}: out of reach", workload.name);
                continue;
            };
            let assignments = (2 * planned.effort.simulations).div_ceil(u64::from(RANGES));
            let sampled: Vec<f64> = (0..20)
                .map(|seed| landscape.random(assignments, seed))
                .map(|found| {
                    found.map_or(f64::NAN, |found| match slo {
                        Slo::Latency { .. } => found.accuracy,
                        Slo::Accuracy { .. } => found.p95_us / 1e3,
                    })
                })
                .filter(|found| !found.is_nan())
                .collect();
            let mean = sampled.iter().sum::<f64>() / sampled.len() as f64;
            let (ours, theirs) = match slo {
                Slo::Latency { .. } => (planned.accuracy, best.accuracy),
                Slo::Accuracy { .. } => (planned.p95_us / 1e3, best.p95_us / 1e3),
            };
            println!(
                "{:<6} {slo:<34?} planner {ours:>9.4} ({planned_s:.2} s)  all {theirs:>9.4} ({exhaustive_s:.2} s)  off by {:>6.2} %  \
                 random {mean:>9.4}, {} of 20 found any",
                workload.name,
                100.0 * (ours / theirs - 1.0),
                sampled.len(),
            );
        }
    }
}

fn main() {
    let arguments = std::env::args().skip(1);
    let wanted: Vec<String> = arguments.filter(|argument| argument != "--bench").collect();
    let all: [(&str, fn()); 5] = [
        ("bert", full_workload),
        ("llama", large_models),
        ("ranges", growth_with_ranges),
        ("devices", growth_with_devices),
        ("quality", quality),
    ];
    for (name, run) in all {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run();
        }
    }
}
