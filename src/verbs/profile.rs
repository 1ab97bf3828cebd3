//! `kaskade profile`: measures a family, so that planners can decide about it.
use std::path::PathBuf;

use anyhow::Context as _;
use kaskade::models::Slice;
use kaskade_app::config::data::DataSet;
use kaskade_app::config::pipeline::PipelineRule;
use kaskade_app::config::scalar::Span;
use kaskade_app::config::{App, Task};
use kaskade_app::data::Samples;
use kaskade_app::family::Family;
use kaskade_app::measure::cost::Effort;
use kaskade_app::measure::tree::TreePlan;
use kaskade_app::measure::{self, memory, text};
use kaskade_app::report;

use crate::output;

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
        return output::print_json(&profile);
    }
    output::print(&text::profile(&profile))?;
    output::print(&format!("\nwritten to {}", args.out.display()))
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
        return output::print_json(&pipeline);
    }
    output::print(&text::pipeline(&pipeline))?;
    output::print(&format!("\nwritten to {}", args.out.display()))
}
