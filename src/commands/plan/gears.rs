//! `kaskade plan gears`: plans a cascade for each range of load.

use std::iter::once;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use kaskade_app::charts::panels;
use kaskade_app::config::App;
use kaskade_app::config::guarantee::Share;
use kaskade_app::config::scalar::{ByteSize, HumanDuration};
use kaskade_app::load::trace_args::{TraceArgs, positive};
use kaskade_app::planning::{self, gears, initial, read_profile};
use kaskade_app::report;
use kaskade_app::report::progress::{Progress, say};
use kaskade_app::report::units;
use kaskade_planners::gears::{GearOptions, GearPlan, Prior, plan_gears};
use kaskade_policy::plan::Slo;
use kaskade_policy::profile::Profile;
use kaskade_simulator::trace::Trace;
use serde::Serialize;

use crate::args::{GuaranteeArgs, Overwrite, read_trace, utilisation};
use crate::failure::Usage;
use crate::output;

/// Plans a cascade for each range of load. Use it for one task whose load varies, on fixed hardware.
///
/// The method is CascadeServe's: each gear is a cascade with its batching. All gears share one placement. The service shifts between gears as the load changes and keeps its objective. The same profile and
/// options give the same plan.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Profile, as `kaskade profile` writes it.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// Latency objective: the 95th percentile; accuracy is maximised [default: the app's `slo`].
    #[arg(long, value_name = "TIME", conflicts_with = "slo_accuracy")]
    slo_p95: Option<HumanDuration>,
    /// Accuracy objective: mean share of right answers, such as `98%`; latency is minimised.
    #[arg(long, value_name = "SHARE")]
    slo_accuracy: Option<Share>,
    #[command(flatten)]
    guarantee: GuaranteeArgs,
    /// Highest utilisation of the busiest device, above 0 and at most 1. The rest is headroom for run times that vary [default: by the
    /// variance of the profiled run times, or 0.85].
    #[arg(long, value_name = "NUMBER", value_parser = utilisation)]
    max_utilisation: Option<f64>,
    /// Highest load, requests per second [default: the busiest second of `--trace`].
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: Option<f64>,
    /// Number of ranges of equal width from zero to the highest load.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranges: u32,
    /// Distribution of the load, if no trace is given.
    #[arg(long, value_enum, default_value = "zipf")]
    prior: PriorKind,
    #[command(flatten)]
    trace: TraceArgs,
    /// TOML file of the app: its workers are the devices.
    #[arg(long, value_name = "FILE")]
    app: Option<PathBuf>,
    /// Number of devices, one per worker `w0`, `w1`, ..., if no app is given.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    devices: u32,
    /// Memory of each device.
    #[arg(long, value_name = "SIZE", default_value = "16GB")]
    memory: ByteSize,
    /// Time of a message between two actors [default: drawn from the quantiles of the profile; 100us if it has none].
    #[arg(long, value_name = "TIME")]
    hop_latency: Option<HumanDuration>,
    /// Time from the end of a batch to the start of the next while requests wait [default: the profile's; none if it has none].
    #[arg(long, value_name = "TIME")]
    turnaround: Option<HumanDuration>,
    /// Plan file to write.
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// SVG file to write: accuracy, latency and utilisation by load.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Seed of the search and of the simulated arrivals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Assumed distribution of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PriorKind {
    /// Low loads are common.
    Zipf,
    /// All loads are equally common.
    Uniform,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    files: Vec<&'a Path>,
    #[serde(flatten)]
    planned: &'a GearPlan,
}

/// Plans gears, writes and prints them.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.overwrite
        .check(once(args.out.as_path()).chain(args.svg.as_deref()))?;
    let app = args.app.as_deref().map(App::load_to_plan).transpose()?;
    let profile = read_profile(&args.profile)?;
    let options = options(args, &profile, app.as_ref())?;
    let planned = plan(&profile, &options, args)?;
    if let Some(app) = &app {
        initial::check(app, &planned.plan)?;
    }
    report::write_file(&args.out, &planned.plan.to_json()?)?;
    let mut files = vec![args.out.as_path()];
    if let Some(path) = &args.svg {
        report::write_file(path, &panels::svg(&gears::picture(&planned.plan))?)?;
        files.push(path);
    }
    if args.json {
        return output::print_json(&Report {
            files,
            planned: &planned,
        });
    }
    let text = gears::as_text(&profile, &planned);
    let written: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    output::print(&format!("{text}\n\nwritten to {}", written.join(", ")))
}

fn options(args: &Args, profile: &Profile, app: Option<&App>) -> anyhow::Result<GearOptions> {
    let trace = read_trace(&args.trace)?;
    let peak = trace.as_ref().map(|trace| trace.statistics().peak_qps);
    let qps_max = args.rate.or(peak);
    let qps_max = qps_max
        .ok_or_else(|| Usage::new("give the highest load: `--rate`, or `--trace` with the expected load"))?;
    let slo = match (args.slo_p95, args.slo_accuracy, app) {
        (Some(limit), ..) => latency(limit),
        (None, Some(at_least), _) => Slo::Accuracy {
            at_least: at_least.get(),
        },
        (None, None, Some(app)) => gears::objective(app)?,
        (None, None, None) => {
            let missing = "give an objective: `--slo-p95`, `--slo-accuracy`, or an app that has one";
            return Err(Usage::new(missing).into());
        }
    };
    let memory = args.memory.bytes();
    let devices = app.map_or_else(
        || Ok(planning::fleet(profile, args.devices as usize, memory)),
        |app| gears::devices(app, memory),
    )?;
    let mut options = GearOptions {
        ranges: args.ranges,
        prior: prior(args, trace.as_ref(), qps_max)?,
        seed: args.seed,
        guarantee: args.guarantee.certify(app)?,
        ..GearOptions::serving(profile, slo, qps_max, devices)
            .with_hop(profile, args.hop_latency.map(HumanDuration::as_micros))
    };
    options.turnaround_us = args
        .turnaround
        .map_or(options.turnaround_us, HumanDuration::as_micros);
    options.max_utilisation = args.max_utilisation.unwrap_or(options.max_utilisation);
    if let Some(app) = app {
        gears::limit_batches(&mut options, app);
    }
    Ok(options)
}

fn latency(limit: HumanDuration) -> Slo {
    Slo::Latency {
        p95_us: limit.duration().as_micros() as u64,
    }
}

fn prior(args: &Args, trace: Option<&Trace>, qps_max: f64) -> anyhow::Result<Prior> {
    let Some(trace) = trace else {
        return Ok(match args.prior {
            PriorKind::Zipf => Prior::Zipf { s: 1.0 },
            PriorKind::Uniform => Prior::Uniform,
        });
    };
    let weights = trace.load_distribution(args.ranges as usize, qps_max);
    ensure!(
        weights.iter().any(|weight| *weight > 0.0),
        Usage::new("no second of the trace has a load below `--rate`; give a higher one")
    );
    Ok(Prior::Measured { weights })
}

/// Plans, and shows progress.
///
/// # Errors
/// When an input is unusable, or the objective cannot be met.
fn plan(profile: &Profile, options: &GearOptions, args: &Args) -> anyhow::Result<GearPlan> {
    let mut progress = Progress::begin("plan gears", u64::from(options.ranges), args.json);
    let planned = plan_gears(profile, options, |step| {
        if let Some(violation) = step
            .violation
            .as_ref()
            .filter(|_| !args.json && step.call % 50 == 0)
        {
            say(&format!("plan gears: searching; {violation}"));
        }
    })?;
    progress.advance(u64::from(options.ranges));
    progress.end(&units::count_of(planned.plan.gears.len(), "gear", "gears"));
    Ok(planned)
}
