//! What planners read and write: plans, profiles, pipelines, traces.

use std::fmt::Debug;

use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::fan_in::Branch;
use kaskade_policy::invalid::FileError;
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::{Plan, PlannedVariant};
use kaskade_policy::profile::{BatchCost, Profile, Validation, VariantProfile};
use kaskade_simulator::trace::{ArrivalProcess, MAX_SECONDS, Trace};
use kaskade_simulator::{SimConfig, Simulator};

use crate::edit::edited;
use crate::script::Script;

const PLANS: [&str; 4] = [
    include_str!("../../corpus/plan/cascade.json"),
    include_str!("../../corpus/plan/gears.json"),
    include_str!("../../corpus/plan/pipeline.json"),
    include_str!("../../corpus/plan/partitions.json"),
];
const PROFILES: [&str; 1] = [include_str!("../../corpus/profile/family.json")];
const PIPELINES: [&str; 1] = [include_str!("../../corpus/pipeline/traffic.json")];

/// A plan file: read, checked, written and read again as the same.
pub fn plan(input: &[u8]) {
    if let Some(plan) = read(input, Plan::from_json) {
        round(&plan, Plan::to_json, Plan::from_json);
    }
}

/// An edited plan; one that is still sound is also simulated.
pub fn plan_edited(input: &[u8]) {
    let text = edited(&PLANS, &mut Script::new(input)).to_string();
    if let Some(plan) = read(text.as_bytes(), Plan::from_json) {
        round(&plan, Plan::to_json, Plan::from_json);
        simulated(&plan);
    }
}

/// A profile: read, checked, written and read again as the same.
pub fn profile(input: &[u8]) {
    if let Some(profile) = read(input, Profile::from_json) {
        round(&profile, Profile::to_json, Profile::from_json);
    }
}

/// An edited profile.
pub fn profile_edited(input: &[u8]) {
    profile(edited(&PROFILES, &mut Script::new(input)).to_string().as_bytes());
}

/// A pipeline: read, checked, written and read again as the same. What is sound can be asked about itself.
pub fn pipeline(input: &[u8]) {
    let Some(pipeline) = read(input, Pipeline::from_json) else {
        return;
    };
    let to_json = |pipeline: &Pipeline| Ok(serde_json::to_string(pipeline)?);
    round(&pipeline, to_json, Pipeline::from_json);
    for variant in pipeline.tasks.iter().flat_map(|task| &task.variants) {
        let latency = variant.latency_us(u32::MAX).zip(variant.latency_us(3));
        assert!(latency.is_some(), "a sound variant has latencies");
    }
    let _ = (pipeline.profile(), pipeline.path_accuracies());
}

/// An edited pipeline.
pub fn pipeline_edited(input: &[u8]) {
    pipeline(edited(&PIPELINES, &mut Script::new(input)).to_string().as_bytes());
}

/// A trace, in each of its three formats. What is read can be measured, cut and scaled.
pub fn trace(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    for read in [Trace::from_counts, Trace::from_azure_llm, Trace::from_times] {
        match read(text) {
            Ok(trace) => measured(&trace),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// The name of a branch: what is read, is written and read again as the same.
pub fn branch(input: &[u8]) {
    let Some(branch) = read(input, str::parse::<Branch>) else {
        return;
    };
    let written = branch.to_string();
    assert_eq!(written.parse().as_ref(), Ok(&branch), "{written}");
}

/// What a text says; an error must say something.
fn read<T, E: std::fmt::Display>(input: &[u8], read: impl Fn(&str) -> Result<T, E>) -> Option<T> {
    let text = std::str::from_utf8(input).ok()?;
    match read(text) {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn round<T: PartialEq + Debug>(
    value: &T,
    write: impl Fn(&T) -> Result<String, FileError>,
    read: impl Fn(&str) -> Result<T, FileError>,
) {
    let written = write(value).expect("what was read can be written");
    let again = read(&written).expect("what was written can be read");
    assert_eq!(&again, value, "a round changed it");
}

fn measured(trace: &Trace) {
    let seconds = trace.seconds();
    if trace.times().is_some() {
        assert!(
            seconds as u64 <= MAX_SECONDS + 1,
            "{seconds} s of memory for a line of text"
        );
    }
    // Months of seconds take a tenth of a second to add up: too long for a run, and nothing new.
    if seconds > 20_000 {
        return;
    }
    let statistics = trace.statistics();
    assert_eq!(statistics.seconds, seconds);
    assert!(statistics.requests >= 0.0 && statistics.cv >= 0.0);
    let shares: f64 = trace
        .load_distribution(4, statistics.peak_qps.max(1.0))
        .iter()
        .sum();
    assert!((shares - 1.0).abs() < 1e-6, "the shares sum to {shares}");
    let times: Vec<u64> = trace.arrivals(ArrivalProcess::Poisson, 1).take(100).collect();
    assert!(times.is_sorted(), "arrivals go back in time");
    let (busiest, from) = trace.around_busiest(3).expect("a part of a trace");
    assert!(from + busiest.seconds() <= seconds);
    let _ = (
        trace.scale_to_peak(10.0),
        trace.excerpt(0, 1),
        trace.without_idle_seconds(),
    );
}

/// A sound plan can be simulated, or the simulator says why not; and then every request has one end.
fn simulated(plan: &Plan) {
    let config = SimConfig {
        budget_us: Some(100_000),
        queue_capacity: 16,
        ..SimConfig::default()
    };
    let profile = profile_of(plan);
    let Ok(simulator) = Simulator::new(plan, &profile, &config) else {
        return;
    };
    let report = simulator.run((0..50).map(|request| request * 1_000), &mut ());
    let ended = report.answered + report.expired + report.dropped + report.refused + report.failed;
    assert_eq!((report.requests, ended), (50, 50), "requests, and how many ended");
    assert_eq!(
        (report.lost, report.branches_left),
        (0, 0),
        "lost requests and branches"
    );
}

/// A profile that any plan can be simulated with.
fn profile_of(plan: &Plan) -> Profile {
    let estimator = plan.variants.iter().find_map(|variant| variant.calibration);
    let estimator = estimator.map_or(Estimator::MaxSquared, |calibration| calibration.estimator);
    Profile::new(&plan.app, estimator, plan.variants.iter().map(profiled).collect())
}

fn profiled(variant: &PlannedVariant) -> VariantProfile {
    let cost = |batch, latency_s| BatchCost {
        utilisation: Some(0.5),
        ..BatchCost::new(batch, latency_s)
    };
    let costs = vec![cost(1, 0.002), cost(32, 0.02)];
    let uncalibrated = Calibration::uncalibrated(Estimator::MaxSquared);
    let validation = Validation::new(
        vec![0, 1, 0, 1],
        vec![0.0, 0.3, 0.7, 1.0],
        vec![false, true, false, true],
    );
    VariantProfile::new(
        &variant.name,
        variant.calibration.unwrap_or(uncalibrated),
        costs,
        validation,
    )
}
