//! Formats profiles as text.

use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task as PipelineTask};
use kaskade_policy::profile::Profile;

use crate::report::profile_warnings;
use crate::report::table::{Align, table};
use crate::report::units;

/// Formats the profile of a pipeline.
pub fn pipeline(pipeline: &Pipeline) -> String {
    let of_task = |task: &PipelineTask| {
        let rows = task.variants.iter().map(|variant| {
            let latency = |sample: Option<&BatchLatency>| {
                sample.map_or_else(String::new, |sample| units::seconds(sample.us / 1e6))
            };
            let widest = variant.latency.last();
            let throughput = widest.map_or(0.0, |sample| f64::from(sample.batch) * 1e6 / sample.us);
            let factors = task
                .children
                .iter()
                .map(|child| format!("{:.2} {child}", variant.multiplicity(child)));
            [
                task.name.clone(),
                variant.name.clone(),
                units::percent(variant.accuracy),
                factors.collect::<Vec<_>>().join(", "),
                latency(variant.latency.first()),
                latency(widest),
                format!("{throughput:.0} /s"),
            ]
        });
        rows.collect::<Vec<_>>()
    };
    let widest = pipeline.batches.last().copied().unwrap_or_default();
    let latency = format!("batch of {widest}");
    let variants = table(
        [
            ("task", Align::Left),
            ("variant", Align::Left),
            ("accuracy", Align::Right),
            ("makes of one", Align::Left),
            ("batch of 1", Align::Right),
            (latency.as_str(), Align::Right),
            ("at most", Align::Right),
        ],
        pipeline.tasks.iter().flat_map(of_task),
    );
    let PathAccuracy::Profiled { paths } = &pipeline.path_accuracy else {
        return variants;
    };
    let paths = table(
        [("path", Align::Left), ("accuracy", Align::Right)],
        paths
            .iter()
            .map(|path| [path.variants.join(" -> "), units::percent(path.accuracy)]),
    );
    format!("{variants}\n\n{paths}")
}

/// Formats a profile.
pub fn profile(profile: &Profile) -> String {
    let rows = profile.variants.iter().map(|variant| {
        let right = variant.validation.correct.iter().filter(|right| **right).count();
        let single = variant.costs.first();
        let widest = variant.costs.last();
        let energy = widest.and_then(|cost| Some(cost.energy_j? / f64::from(cost.batch)));
        [
            variant.name.clone(),
            units::count(variant.parameters),
            units::percent(right as f64 / profile.samples.max(1) as f64),
            format!("{:.3}", variant.calibration.temperature),
            format!("{:.3} -> {:.3}", variant.ece.before, variant.ece.after),
            single.map_or_else(String::new, |cost| units::seconds(cost.latency_s)),
            widest.map_or_else(String::new, |cost| units::seconds(cost.latency_s)),
            units::joules(energy),
            widest
                .and_then(|cost| cost.utilisation)
                .map_or_else(|| "unknown".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            widest
                .and_then(|cost| cost.memory_bytes)
                .map_or_else(|| "unknown".to_owned(), units::bytes),
        ]
    });
    let widest = profile.variants.iter().filter_map(|variant| variant.costs.last());
    let widest = widest.map(|cost| cost.batch).max().unwrap_or_default();
    let (latency, busy) = (format!("batch of {widest}"), format!("busy at {widest}"));
    let memory = format!("memory at {widest}");
    let table = table(
        [
            ("variant", Align::Left),
            ("weights", Align::Right),
            ("accuracy", Align::Right),
            ("T", Align::Right),
            ("ECE", Align::Right),
            ("batch of 1", Align::Right),
            (latency.as_str(), Align::Right),
            ("joules/request", Align::Right),
            (busy.as_str(), Align::Right),
            (memory.as_str(), Align::Right),
        ],
        rows,
    );
    let note = profile_warnings::remarks(profile);
    format!(
        "{} on {}: {}, energy {}\n{table}{note}",
        profile.app,
        profile.device,
        units::count_of(profile.samples, "validation sample", "validation samples"),
        profile.energy_source
    )
}
