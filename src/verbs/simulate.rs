//! `kaskade simulate`: what a plan would do with a load, without serving it.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use kaskade::config::scalar::Span;
use kaskade::plans::plan::{Plan, Slo};
use kaskade::plans::profile::Profile;
use kaskade::plans::shifting::ShiftConfig;
use kaskade::plans::simulator::{Bucket, Power, Report, SimConfig, Simulator, Timeline};
use kaskade::plans::trace::Trace;
use serde::Serialize;

use crate::load::arrivals::Spacing;
use crate::load::tracefile::{self, TraceArgs, positive};
use crate::report::panels::{Panel, Panels, Series, Shape, svg};
use crate::report::table::{Align, table};
use crate::report::{self, units};

/// Simulates an app under load: queues, batches, devices, cascades and gear shifts, by the policies that serve it and the
/// latencies and confidences that were measured. Millions of requests take seconds. The same seed gives the same report.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The plan file.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// The profile, as `kaskade profile` writes it.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    #[command(flatten)]
    trace: TraceArgs,
    /// An even load instead of a trace, requests per second.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "trace", value_parser = positive)]
    rate: Option<f64>,
    /// How long the even load lasts.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    duration: Span,
    /// How requests are spaced within a second.
    #[arg(long, value_enum, default_value = "poisson")]
    spacing: Spacing,
    /// From the client to the first queue and back, together.
    #[arg(long, value_name = "TIME", default_value = "400us")]
    entry_hop: Span,
    /// From one stage to the next.
    #[arg(long, value_name = "TIME", default_value = "100us")]
    hop: Span,
    /// Time budget of every request; without one, nothing expires.
    #[arg(long, value_name = "TIME")]
    budget: Option<Span>,
    /// Requests that may wait in each replica's queue.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    queue_capacity: usize,
    /// No shift down while the load is below this many times the first queue's length, per second.
    #[arg(long, value_name = "PER_SECOND", default_value_t = ShiftConfig::default().alpha)]
    alpha: f64,
    /// No shift down for this long after a shift up.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    hold: Span,
    /// Stay in this gear instead of shifting.
    #[arg(long, value_name = "GEAR")]
    gear: Option<u32>,
    /// Seed of the arrivals and of every draw.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Length of the buckets of the picture and of `--json`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    bucket: Span,
    /// Where to draw load, gear, latency and accuracy over time.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is printed for machines.
#[derive(Serialize)]
struct Printed<'a> {
    app: &'a str,
    made_by: &'a str,
    accuracy: Option<f64>,
    #[serde(flatten)]
    report: &'a Report,
    course: &'a [Bucket],
    /// Wall-clock time of the simulation, seconds.
    took_s: f64,
}

/// Simulates and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let plan = read_plan(&args.plan)?;
    let profile = super::plan::read(&args.profile)?;
    let trace = load(args)?;
    let begun = Instant::now();
    let (report, course) = simulate(args, &plan, &profile, &trace)?;
    let took_s = begun.elapsed().as_secs_f64();
    if let Some(path) = &args.svg {
        let title = format!("{}: {}", plan.app, plan.made_by);
        report::write_file(path, &svg(&picture(&title, &course, plan.slo))?)?;
    }
    if args.json {
        return report::print_json(&Printed {
            app: &plan.app,
            made_by: &plan.made_by,
            accuracy: report.accuracy(),
            report: &report,
            course: &course,
            took_s,
        });
    }
    report::print(&as_text(&plan, &report, took_s))
}

fn read_plan(path: &std::path::Path) -> anyhow::Result<Plan> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read; `kaskade plan` writes one", path.display()))?;
    Plan::from_json(&text).with_context(|| path.display().to_string())
}

fn load(args: &Args) -> anyhow::Result<Trace> {
    if let Some(trace) = args.trace.read()? {
        return Ok(trace);
    }
    let rate = args
        .rate
        .context("there is no load; give `--rate` or `--trace`")?;
    let seconds = args.duration.duration().as_secs_f64().round() as usize;
    ensure!(seconds > 0, "`--duration` is shorter than a second");
    Ok(Trace::constant(rate, seconds)?)
}

fn simulate(
    args: &Args,
    plan: &Plan,
    profile: &Profile,
    trace: &Trace,
) -> anyhow::Result<(Report, Vec<Bucket>)> {
    let micros = |span: Span| span.duration().as_micros() as u64;
    let shift = ShiftConfig {
        alpha: args.alpha,
        hold_us: micros(args.hold),
        ..ShiftConfig::default()
    };
    let config = SimConfig {
        seed: args.seed,
        entry_hop_us: micros(args.entry_hop),
        hop_us: micros(args.hop),
        shift: args.gear.is_none().then_some(shift),
        start_gear: args.gear.unwrap_or(0),
        budget_us: args.budget.map(micros),
        queue_capacity: args.queue_capacity,
        power: Some(Power::Profiled { idle_watts: 0.0 }),
        ..SimConfig::default()
    };
    let simulator = Simulator::new(plan, profile, &config)?;
    let mut course = Timeline::new(micros(args.bucket));
    let arrivals = trace.arrivals(tracefile::spacing(args.spacing), args.seed);
    let report = simulator.run(arrivals, &mut course);
    Ok((report, course.finish()))
}

/// Load, gear, latency and accuracy over time (CascadeServe Figures 8 and 9).
pub(crate) fn picture(title: &str, course: &[Bucket], slo: Option<Slo>) -> Panels {
    let series = |name: &str, of: &dyn Fn(&Bucket) -> f64| Series {
        name: name.to_owned(),
        points: course
            .iter()
            .map(|bucket| (bucket.from_us as f64 / 1e6, of(bucket)))
            .collect(),
        shape: Shape::Line,
    };
    let level = match slo {
        Some(Slo::Latency { p95_us }) => Some((p95_us as f64 / 1e3, "objective".to_owned())),
        _ => None,
    };
    let panel = |axis: &str, series: Series, level| Panel {
        axis: axis.to_owned(),
        series: vec![series],
        level,
        top: None,
    };
    let share = |share: Option<f64>| share.map_or(f64::NAN, |share| share * 100.0);
    let millis = |us: Option<u64>| us.map_or(f64::NAN, |us| us as f64 / 1e3);
    Panels {
        title: title.to_owned(),
        axis: "time (s)".to_owned(),
        rows: vec![
            panel("load (requests/s)", series("load", &|bucket| bucket.qps), None),
            panel("gear", series("gear", &|bucket| bucket.gear), None),
            panel("p95 (ms)", series("p95", &|bucket| millis(bucket.p95_us)), level),
            panel(
                "accuracy (%)",
                series("accuracy", &|bucket| share(bucket.accuracy)),
                None,
            ),
        ],
    }
}

/// A simulation for people.
fn as_text(plan: &Plan, report: &Report, took_s: f64) -> String {
    let micros = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| units::seconds(us as f64 / 1e6));
    let latency = &report.latency;
    let quantiles = table(
        ["p50", "p95", "p99", "p99.9", "max"].map(|head| (head, Align::Right)),
        [[
            micros(latency.quantile(0.5)),
            micros(latency.p95()),
            micros(latency.quantile(0.99)),
            micros(latency.quantile(0.999)),
            micros(latency.quantile(1.0)),
        ]],
    );
    let share = |count: u64| units::percent(count as f64 / report.answered.max(1) as f64);
    let variants = report
        .variants
        .iter()
        .filter(|variant| variant.runs > 0)
        .map(|variant| {
            [
                variant.name.clone(),
                share(variant.answered),
                units::count(variant.runs),
                format!("{:.1}", variant.mean_batch().unwrap_or(0.0)),
            ]
        });
    let variants = table(
        [
            ("variant", Align::Left),
            ("answered", Align::Right),
            ("runs", Align::Right),
            ("mean batch", Align::Right),
        ],
        variants,
    );
    let joules = report
        .energy_j
        .map(|joules| joules / report.answered.max(1) as f64);
    format!(
        "{}: {}, {:.0} s simulated in {}\n\
         {} requests: {} answered, {} expired, {} refused, {} failed; {} shifts\n{quantiles}\n{variants}\n\
         accuracy: {}; busiest device: {}; busy energy per request: {}",
        plan.app,
        plan.made_by,
        report.duration_us as f64 / 1e6,
        units::seconds(took_s),
        units::count(report.requests),
        units::count(report.answered),
        units::count(report.expired),
        units::count(report.refused),
        units::count(report.failed),
        units::count(report.shifts),
        report
            .accuracy()
            .map_or_else(|| "unknown".to_owned(), units::percent),
        units::percent(report.max_utilisation()),
        units::joules(joules),
    )
}
