//! `kaskade profile`: measures a family, so that planners can decide about it.

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade::models::Slice;
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::measure::{Profiler, text};
use kaskade_app::report;
use serde::Serialize;

use super::weigh;
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
    let profiler = Profiler::new(&app)
        .batches(args.batches.iter().copied())
        .rounds(args.rounds)
        .stretch(args.stretch.duration())
        .quiet(args.quiet);
    profiler.check().with_context(|| args.app.display().to_string())?;
    if app.pipeline.is_some() {
        let pipeline = profiler.run_pipeline()?.pipeline;
        report::write_file(&args.out, &(serde_json::to_string_pretty(&pipeline)? + "\n"))?;
        return show(args, &pipeline, &text::pipeline(&pipeline));
    }
    let profile = profiler
        .run_with_memory(|member, batches| weigh::apart(&args.app, &member.name, Slice::WHOLE, batches))?;
    report::write_file(&args.out, &profile.to_json()?)?;
    show(args, &profile, &text::profile(&profile))
}

/// Prints what was measured, as JSON or as a table.
fn show(args: &Args, measured: &impl Serialize, table: &str) -> anyhow::Result<()> {
    if args.json {
        return output::print_json(measured);
    }
    output::print(table)?;
    output::print(&format!("\nwritten to {}", args.out.display()))
}
