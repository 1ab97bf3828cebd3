//! `kaskade profile`: measures the variants of an app, for planners.

mod channels;
mod memory;

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade::models::Partition;
use kaskade_app::config::App;
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::measure::judge::JudgeProgram;
use kaskade_app::measure::{Judge, Profiler, text};
use serde::Serialize;

use crate::args::Overwrite;
use crate::failure::Usage;
use crate::{interrupt, output};

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
    measure_for: HumanDuration,
    /// Rounds over all batch sizes, of which the medians are reported.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory for the answers of remote variants: each sample is sent once, also if profiling is repeated.
    #[arg(long, value_name = "DIR", default_value = "answers")]
    answers: PathBuf,
    /// Money that may be spent on answers of all remote variants together, by their prices in the app's file [default: no limit].
    #[arg(long, value_name = "AMOUNT", value_parser = not_negative)]
    spend_limit: Option<f64>,
    /// What makes an answer right: `labels`, the labels of the validation set; `largest`, the same answer by the largest variant, which
    /// needs no labels; or a program with its arguments, which reads one JSON object per line, `{"sample", "input", "answer",
    /// "reference"}`, and writes `{"right": true}`, `{"right": false}` or `{"score": NUMBER}` for each.
    #[arg(long, value_name = "JUDGE", default_value = "labels", value_parser = judge)]
    judge: Judge,
    /// Longest time that the program of `--judge` may go without writing a line.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    judge_timeout: HumanDuration,
    /// Print no progress.
    #[arg(long)]
    quiet: bool,
    /// Print the profile as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Parses a number that is not negative.
fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() && number >= 0.0 {
        return Ok(number);
    }
    Err(format!("{number} is not zero or above"))
}

/// Reads what makes an answer right.
fn judge(written: &str) -> Result<Judge, String> {
    match written {
        "labels" => Ok(Judge::Labels),
        "largest" => Ok(Judge::Largest),
        command => JudgeProgram::new(command)
            .map(Judge::Program)
            .map_err(|error| error.to_string()),
    }
}

/// Measurements of one kind only.
#[derive(Debug, clap::Subcommand)]
enum Part {
    Memory(memory::Args),
    Channels(channels::Args),
}

/// Measures and writes the profile.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.part {
        Some(Part::Memory(args)) => return memory::run(args),
        Some(Part::Channels(args)) => return channels::run(args),
        None => {}
    }
    let file = args.app.as_deref();
    let file = file.ok_or_else(|| Usage::new("`--app` is required"))?;
    args.overwrite.check([args.out.as_path()])?;
    let app = App::load_to_plan(file)?;
    let profiler = Profiler::new(&app)
        .batches(args.batches.iter().copied())
        .rounds(args.rounds)
        .measure_for(args.measure_for.duration())
        .record(&args.answers, args.spend_limit)
        .judge(match args.judge.clone() {
            Judge::Program(program) => Judge::Program(program.with_timeout(args.judge_timeout.duration())),
            other => other,
        })
        .quiet(args.quiet);
    profiler.check().with_context(|| file.display().to_string())?;
    let ending = interrupt::end_with(format!("{} was not written", args.out.display()), args.json)?;
    let write = |text: &str| {
        let written = format!("{} is written", args.out.display());
        ending.after(written, || output::write_measured(&args.out, text))
    };
    if app.pipeline.is_some() {
        let pipeline = profiler.run_pipeline()?.pipeline;
        write(&(serde_json::to_string_pretty(&pipeline)? + "\n"))?;
        return show(args, &pipeline, &text::pipeline(&pipeline));
    }
    let profile = profiler.run_with_memory(|member, batches| {
        memory::in_subprocess(file, &member.name, Partition::WHOLE, batches)
    })?;
    write(&profile.to_json()?)?;
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
