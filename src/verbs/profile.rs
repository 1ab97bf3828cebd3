//! `kaskade profile`: measures the variants of an app, for planners.

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade::models::Slice;
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::measure::{Profiler, text};
use kaskade_app::report;
use serde::Serialize;

use super::{channels, weigh};
use crate::args::Overwrite;
use crate::output;

/// Measures every variant of an app on its validation set.
///
/// A profile has answers, calibrated confidence, latency, energy, utilisation and memory by batch size. The profile of a pipeline
/// has latency by batch size, the requests that each variant makes of one, and the end-to-end accuracy of every path.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// TOML file of the app.
    #[arg(long, value_name = "FILE", required = true)]
    app: Option<PathBuf>,
    /// Profile file to write.
    #[arg(long, value_name = "FILE", default_value = "profile.json")]
    out: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Batch sizes to measure; a pipeline has its own.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,2,4,8,16,32,64",
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    batches: Vec<u32>,
    /// Measuring time of each batch size in each round.
    #[arg(long, value_name = "TIME", default_value = "150ms")]
    measure_for: Span,
    /// Rounds over all batch sizes, of which the medians are reported.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory for the answers of remote variants: each sample is asked once, also if profiling is repeated.
    #[arg(long, value_name = "DIR", default_value = "answers")]
    record: PathBuf,
    /// Money that may be spent on answers of each remote variant, by its price in the app's file [default: no limit].
    #[arg(long, value_name = "AMOUNT")]
    spend_limit: Option<f64>,
    /// What makes an answer right: the labels of the validation set, or the same answer by the largest variant, which needs no labels.
    #[arg(long, value_enum, default_value_t = Judge::Labels)]
    judge: Judge,
    /// Print no progress.
    #[arg(long)]
    quiet: bool,
    /// Print the profile as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// What makes an answer right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Judge {
    /// The labels of the validation set.
    Labels,
    /// The answers of the largest variant.
    Largest,
}

/// Measurements of one kind only.
#[derive(Debug, clap::Subcommand)]
enum Part {
    Memory(weigh::Args),
    Channels(channels::Args),
}

/// Measures and writes the profile.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.part {
        Some(Part::Memory(args)) => return weigh::run(args),
        Some(Part::Channels(args)) => return channels::run(args),
        None => {}
    }
    let file = args.app.as_deref().context("`--app` is required")?;
    args.overwrite.check([args.out.as_path()])?;
    let app = App::load(file)?;
    let profiler = Profiler::new(&app)
        .batches(args.batches.iter().copied())
        .rounds(args.rounds)
        .stretch(args.measure_for.duration())
        .record(&args.record, args.spend_limit)
        .judged_by_largest(args.judge == Judge::Largest)
        .quiet(args.quiet);
    profiler.check().with_context(|| file.display().to_string())?;
    if app.pipeline.is_some() {
        let pipeline = profiler.run_pipeline()?.pipeline;
        report::write_file(&args.out, &(serde_json::to_string_pretty(&pipeline)? + "\n"))?;
        return show(args, &pipeline, &text::pipeline(&pipeline));
    }
    let profile = profiler
        .run_with_memory(|member, batches| weigh::apart(file, &member.name, Slice::WHOLE, batches))?;
    report::write_file(&args.out, &profile.to_json()?)?;
    show(args, &profile, &text::profile(&profile))
}

/// Prints the measurements, as JSON or as a table.
fn show(args: &Args, measured: &impl Serialize, table: &str) -> anyhow::Result<()> {
    if args.json {
        return output::print_json(measured);
    }
    output::print(table)?;
    output::print(&format!("\nwritten to {}", args.out.display()))
}
