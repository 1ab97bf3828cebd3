//! `kaskade profile`: measures a family, so that planners can decide about it.

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade::App;
use kaskade::config::Task;
use kaskade::config::data::DataSet;
use kaskade::config::pipeline::PipelineRule;
use kaskade::config::scalar::Span;
use kaskade::models::Slice;
use kaskade::policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task as PipelineTask};
use kaskade::policy::profile::Profile;

use crate::data::Samples;
use crate::family::Family;
use crate::measure::{self, cost::Effort, memory, tree::TreePlan};
use crate::report::table::{Align, table};
use crate::report::{self, units};

/// Measures every variant of an app on its validation set: answers, calibrated confidence, latency, energy, utilisation and memory
/// by batch size. Of a pipeline: latency by batch size (its own sizes), how many requests each variant makes of one, and the accuracy of
/// every path from end to end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    /// Where to write the profile.
    #[arg(long, value_name = "FILE", default_value = "profile.json")]
    out: PathBuf,
    /// Batch sizes to measure.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,2,4,8,16,32,64",
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    batches: Vec<u32>,
    /// How long each batch size is run, in each of the rounds.
    #[arg(long, value_name = "TIME", default_value = "150ms")]
    stretch: Span,
    /// How often all batch sizes are gone through; medians over the rounds are reported.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Say nothing while working.
    #[arg(long)]
    quiet: bool,
    /// Print the profile as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measures and writes the profile.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let app = App::load(&args.app)?;
    let set = app.data.validation.as_ref().with_context(|| {
        format!(
            "{}: data.validation: is missing; name the labelled set to measure on",
            args.app.display()
        )
    })?;
    if let Some(rule) = &app.pipeline {
        return of_pipeline(args, &app, rule, set);
    }
    anyhow::ensure!(
        app.task != Task::QuestionAnswering,
        "{}: task: extractive answers have no labelled data format yet; write the profile of another task yourself \
         (`kaskade schema profile`)",
        args.app.display()
    );
    let mut batches = args.batches.clone();
    batches.sort_unstable();
    batches.dedup();
    let effort = Effort {
        batches,
        rounds: args.rounds,
        stretch: args.stretch.duration(),
    };
    let plan = measure::Plan {
        app: app.name.as_str(),
        estimator: app.estimator(),
        effort: &effort,
        power: &(&app.power).into(),
        quiet: args.quiet,
    };
    let mut profile = measure::profile(&plan, &Family::of(&app), |signature| {
        Samples::read(set, signature)
    })?;
    for variant in &mut profile.variants {
        let weighed = memory::apart(&args.app, &variant.name, Slice::WHOLE, &effort.batches)?;
        for (cost, measured) in variant.costs.iter_mut().zip(weighed.batches) {
            cost.memory_bytes = Some(measured.bytes);
        }
    }
    report::write_file(&args.out, &profile.to_json()?)?;
    if args.json {
        return report::print_json(&profile);
    }
    report::print(&as_text(&profile))?;
    report::print(&format!("\nwritten to {}", args.out.display()))
}

/// Measures and writes what an app that is a pipeline does.
fn of_pipeline(args: &Args, app: &App, rule: &PipelineRule, set: &DataSet) -> anyhow::Result<()> {
    let plan = TreePlan {
        app,
        rule,
        rounds: args.rounds,
        stretch: args.stretch.duration(),
        quiet: args.quiet,
    };
    let pipeline = plan.measure(set)?.pipeline;
    report::write_file(&args.out, &(serde_json::to_string_pretty(&pipeline)? + "\n"))?;
    if args.json {
        return report::print_json(&pipeline);
    }
    report::print(&pipeline_as_text(&pipeline))?;
    report::print(&format!("\nwritten to {}", args.out.display()))
}

/// A pipeline's profile for people.
fn pipeline_as_text(pipeline: &Pipeline) -> String {
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

/// A profile for people.
pub(crate) fn as_text(profile: &Profile) -> String {
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
    format!(
        "{} on {}: {} validation samples, energy {}\n{table}",
        profile.app, profile.device, profile.samples, profile.energy_source
    )
}
