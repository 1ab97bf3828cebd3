//! Ablations are never better than the whole planner (CascadeServe §6.6), neither by the planner's estimate nor as served.

use proptest::prelude::*;

use super::options::{Ablation, CascadeSearch, GearOptions, Prior};
use super::planner::{GearPlan, plan_gears, plan_gears_with};
use crate::device::DeviceSpec;
use crate::reference::Fluid;
use kaskade_policy::plan::{Plan, Slo};
use kaskade_policy::profile::Profile;
use kaskade_policy::shifting::ShiftConfig;
use kaskade_simulator::trace::{ArrivalProcess, Trace};
use kaskade_simulator::{SimConfig, Simulator};
use kaskade_stated::workloads::{StatedWorkload, bert, llama};

const ABLATIONS: [Ablation; 3] = [Ablation::NoSwitching, Ablation::NoCascade, Ablation::Neither];

/// Accuracy that chance in the arrivals may cost, as a share of 1.
const NOISE: f64 = 1e-3;

fn ablated(options: &GearOptions, ablation: Ablation) -> GearOptions {
    GearOptions {
        ablation,
        ..options.clone()
    }
}

/// Twenty minutes like those around the busiest second of the Twitter trace: low, then high, neither ever near the peak, which
/// is one second long.
fn busy_minutes(peak_qps: f64) -> Trace {
    let low = (0..500).map(|second| 0.12 + 0.3 * f64::from(second) / 500.0);
    let high = (0..700).map(|second| match second {
        350 => 1.0,
        _ => 0.58 + 0.08 * f64::from(second % 7) / 7.0,
    });
    let rates = low.chain(high).map(|share| share * peak_qps);
    Trace::per_second(rates.collect()).unwrap()
}

/// Options for a trace's own distribution of requests.
fn options_for(trace: &Trace, p95_us: u64, devices: usize, memory_bytes: u64) -> GearOptions {
    let qps_max = trace.statistics().peak_qps;
    let time = trace.load_distribution(10, qps_max);
    let requests = (0..)
        .zip(time)
        .map(|(range, time)| time * (f64::from(range) + 0.5));
    GearOptions {
        ranges: 10,
        prior: Prior::Measured {
            weights: requests.collect(),
        },
        search: CascadeSearch {
            max_cascades: 32,
            ..CascadeSearch::default()
        },
        seed: 1,
        ..GearOptions::new(
            Slo::Latency { p95_us },
            qps_max,
            DeviceSpec::fleet(devices, memory_bytes),
        )
    }
}

/// Share of right answers over all requests of a trace.
fn served(profile: &Profile, plan: &Plan, trace: &Trace) -> f64 {
    let config = SimConfig {
        seed: 1,
        shift: Some(ShiftConfig::default()),
        ..SimConfig::default()
    };
    let simulator = Simulator::new(plan, profile, &config).unwrap();
    let report = simulator.run(trace.arrivals(ArrivalProcess::Poisson, 1), &mut ());
    report.accuracy().unwrap()
}

#[test]
fn no_ablation_is_served_more_accurately_than_the_full_plan() {
    let workload = llama();
    let profile = workload.profile();
    let trace = busy_minutes(workload.peak_qps);
    for devices in [2, 3] {
        let options = options_for(&trace, 4_000_000, devices, workload.memory_bytes);
        let accuracy = |ablation| {
            let found = plan_gears(&profile, &ablated(&options, ablation), |_| {}).unwrap();
            let served = served(&profile, &found.plan, &trace);
            assert!(
                (served - found.accuracy).abs() < 3.0 * NOISE,
                "{devices} devices, {ablation:?}: judged {}, served {served}",
                found.accuracy
            );
            served
        };
        let full = accuracy(Ablation::Full);
        for ablation in ABLATIONS {
            let less = accuracy(ablation);
            assert!(
                full >= less - NOISE,
                "{devices} devices: {full} full, {less} {ablation:?}"
            );
        }
    }
}

/// Whether a plan is at least as good as another by what is not promised.
fn at_least_as_good(slo: Slo, one: &GearPlan, other: &GearPlan) -> bool {
    match slo {
        Slo::Latency { .. } => one.accuracy >= other.accuracy - 1e-9,
        Slo::Accuracy { .. } => one.p95_us <= other.p95_us * (1.0 + 1e-6),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn no_ablation_is_ahead_of_the_full_planner(
        large in any::<bool>(),
        variants in 2..5_usize,
        latency in any::<bool>(),
        level in 0.2..1.0_f64,
        load in 0.1..2.0_f64,
        weights in prop::collection::vec(0.0..1.0_f64, 4),
        memory in prop::collection::vec(6..40_u64, 1..5),
        seed in 0..4_u64,
    ) {
        prop_assume!(weights.iter().any(|weight| *weight > 0.0));
        let workload = if large { llama() } else { bert() };
        let (peak_qps, slowest_ms) = if large { (30.0, 4_000.0) } else { (3_000.0, 100.0) };
        let workload = StatedWorkload {
            samples: 300,
            variants: workload.variants.into_iter().take(variants).collect(),
            ..workload
        };
        let profile = workload.profile();
        let slo = if latency {
            Slo::Latency { p95_us: (level * slowest_ms * 1e3) as u64 }
        } else {
            let accuracy = |variant: Option<&kaskade_stated::workloads::StatedVariant>| variant.unwrap().accuracy;
            let (low, high) = (accuracy(workload.variants.first()), accuracy(workload.variants.last()));
            Slo::Accuracy { at_least: low + (high - low) * level }
        };
        let mut options = GearOptions {
            ranges: 4,
            prior: Prior::Measured { weights },
            search: CascadeSearch { thresholds: 4, max_stages: 3, max_cascades: 10, ..CascadeSearch::default() },
            seed,
            ..GearOptions::new(slo, peak_qps * load * memory.len() as f64, DeviceSpec::fleet(memory.len(), 1))
        };
        for (device, gigabytes) in options.devices.iter_mut().zip(&memory) {
            device.memory_bytes = gigabytes * 1_000_000_000;
        }
        let plan = |ablation| plan_gears_with(&profile, &ablated(&options, ablation), Fluid::new(&profile), |_| {});
        let full = plan(Ablation::Full);
        for ablation in ABLATIONS {
            let Ok(less) = plan(ablation) else { continue };
            let Ok(full) = &full else {
                return Err(TestCaseError::fail(format!("{ablation:?} has a plan, and the full planner has none")));
            };
            prop_assert!(
                at_least_as_good(slo, full, &less),
                "{:?}: accuracy {} p95 {}, and in full {} {}", ablation, less.accuracy, less.p95_us, full.accuracy, full.p95_us,
            );
        }
    }
}
