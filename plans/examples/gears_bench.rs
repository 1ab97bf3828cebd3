//! How long planning takes, and how it grows: `cargo run --release -p kaskade-plans --example gears_bench -- [bert|ranges|devices|llama]`.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Instant;

use kaskade_plans::gears::stated::{StatedWorkload, bert, llama};
use kaskade_plans::gears::{DeviceSpec, GearOptions, plan_gears};
use kaskade_plans::plan::Slo;

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

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let all: [(&str, fn()); 4] = [
        ("bert", full_workload),
        ("llama", large_models),
        ("ranges", growth_with_ranges),
        ("devices", growth_with_devices),
    ];
    for (name, run) in all {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run();
        }
    }
}
