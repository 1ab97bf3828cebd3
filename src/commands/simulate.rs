//! `kaskade simulate`: simulates a plan under load.

mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kaskade_app::charts::panels::{Panel, Panels, Series, Shape, svg};
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::load::arrivals::ArrivalProcess;
use kaskade_app::load::trace_args::{TraceArgs, positive};
use kaskade_app::planning::read_profile;
use kaskade_app::report::{self, units};
use kaskade_policy::plan::{Gear, Plan, Slo};
use kaskade_policy::profile::{HopTime, Profile};
use kaskade_policy::shifting::ShiftConfig;
use kaskade_simulator::trace::Trace;
use kaskade_simulator::{Bucket, Power, Report, SimConfig, Simulator, Timeline};
use serde::Serialize;

use crate::args::{Overwrite, PipelineArgs, read_trace};
use crate::failure::Usage;
use crate::output;

/// Transfer time from one stage to the next if none was measured, microseconds.
const DEFAULT_HOP_US: u64 = 100;

/// Transfer time from the client to the first queue and back if no message was measured, microseconds.
const DEFAULT_ENTRY_HOP_US: u64 = 400;

/// Most requests of a simulated load.
const MAX_REQUESTS: f64 = 2e8;

/// Longest simulated load, seconds: a year.
const MAX_SECONDS: usize = 366 * 86_400;

/// Simulates a plan under load.
///
/// The simulator models queues, batches, devices, cascades and gear shifts with the policies of serving and the measured latencies
/// and confidences. The same seed gives the same report.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plan to simulate.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Profile, as `kaskade profile` writes it; required except for the plan of a pipeline.
    #[arg(long, value_name = "FILE", conflicts_with = "pipeline")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// Constant load, requests per second, instead of a trace.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "trace", value_parser = positive)]
    rate: Option<f64>,
    /// Length of the constant load, in whole seconds.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    duration: HumanDuration,
    /// Arrival process of the requests within a second.
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: ArrivalProcess,
    /// Transfer time from the client to the first queue and back, together [default: twice the profile's median time of a message; 400us if
    /// the profile has none].
    #[arg(long, value_name = "TIME")]
    entry_latency: Option<HumanDuration>,
    /// Transfer time from one stage to the next, the same for every message; transfers then do not vary [default: sampled from the times that
    /// the profile measured at this load; 100us if the profile has none].
    #[arg(long, value_name = "TIME")]
    hop_latency: Option<HumanDuration>,
    /// Time from the end of a batch to the start of the next while requests wait [default: the profile's; none if it has none].
    #[arg(long, value_name = "TIME")]
    turnaround: Option<HumanDuration>,
    /// Time budget of every request, after which it expires; by default that of serving (`ingress.default_budget`), `none` for no budget.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    budget: Budget,
    /// Capacity of each replica's queue, requests.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one)]
    queue_capacity: usize,
    /// Shift down only while the load exceeds this factor times the length of the first queue, per second.
    #[arg(long, value_name = "PER_SECOND", default_value_t = ShiftConfig::default().alpha, value_parser = positive)]
    alpha: f64,
    /// Shortest time between a shift up and the next shift down.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    hold: HumanDuration,
    /// Stay in this gear of the plan, by its name or its number from 0, instead of shifting.
    #[arg(long, value_name = "GEAR")]
    gear: Option<String>,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Length of the intervals in the SVG file and in `--json`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    bucket: HumanDuration,
    /// SVG file to write: load, gear, latency and accuracy over time.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Parses a whole number of at least one.
fn at_least_one(text: &str) -> Result<usize, String> {
    let number: usize = text
        .parse()
        .map_err(|_| format!("`{text}` is not a whole number"))?;
    if number == 0 {
        return Err("0 is not at least 1".to_owned());
    }
    Ok(number)
}

/// Time budget of a request, if it has one.
#[derive(Debug, Clone, Copy)]
struct Budget(Option<HumanDuration>);

impl FromStr for Budget {
    type Err = <HumanDuration as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(match text {
            "none" => None,
            time => Some(time.parse()?),
        }))
    }
}

/// Output of `--json`. It has nothing of this run, so that equal inputs give equal outputs.
#[derive(Serialize)]
struct Printed<'a> {
    app: &'a str,
    made_by: &'a str,
    /// Share of right answers; of a pipeline, the mean end-to-end accuracy of its answers.
    accuracy: Option<f64>,
    /// Share of a pipeline's requests that missed its objective.
    slo_violation_ratio: Option<f64>,
    #[serde(flatten)]
    report: &'a Report,
    course: &'a [Bucket],
}

/// Measurements that a plan is simulated with.
struct Measured {
    profile: Profile,
    /// End-to-end accuracies of a pipeline's paths, as profiled.
    path_accuracies: BTreeMap<Vec<(String, String)>, f64>,
}

/// Simulates and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.overwrite.check(args.svg.as_deref())?;
    let plan = read_plan(&args.plan)?;
    let is_pipeline = serves_tasks(&plan);
    let measured = measured(args, is_pipeline)?;
    let trace = load(args)?;
    let begun = Instant::now();
    let (report, course) = simulate(args, &plan, &measured, &trace)?;
    let took_s = begun.elapsed().as_secs_f64();
    if let Some(path) = &args.svg {
        let title = format!("{}: {}", plan.app, plan.made_by);
        let drawn = if is_pipeline {
            pipeline_picture(&title, &course)
        } else {
            picture(&title, &course, plan.slo)
        };
        report::write_file(path, &svg(&drawn)?)?;
    }
    if args.json {
        return output::print_json(&Printed {
            app: &plan.app,
            made_by: &plan.made_by,
            accuracy: if is_pipeline {
                report.path_accuracy()
            } else {
                report.accuracy()
            },
            slo_violation_ratio: report.slo_violation_ratio().filter(|_| is_pipeline),
            report: &report,
            course: &course,
        });
    }
    let text = if is_pipeline {
        text::of_pipeline(&plan, &report, took_s)
    } else {
        text::of_cascade(&plan, &report, took_s)
    };
    output::print(&text)
}

fn read_plan(path: &std::path::Path) -> anyhow::Result<Plan> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read; `kaskade plan` writes one", path.display()))?;
    Plan::from_json(&text).with_context(|| path.display().to_string())
}

/// Returns whether a plan is a pipeline's: its stages serve tasks.
fn serves_tasks(plan: &Plan) -> bool {
    let mut stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
    stages.any(|stage| stage.task.is_some())
}

fn measured(args: &Args, is_pipeline: bool) -> anyhow::Result<Measured> {
    match &args.profile {
        Some(path) => Ok(Measured {
            profile: read_profile(path)?,
            path_accuracies: BTreeMap::new(),
        }),
        None if is_pipeline => {
            let pipeline = args.pipeline.read(None)?;
            Ok(Measured {
                profile: pipeline.profile(),
                path_accuracies: pipeline.path_accuracies(),
            })
        }
        None => Err(Usage::new("the plan of a cascade is simulated with a profile; give `--profile`").into()),
    }
}

fn load(args: &Args) -> anyhow::Result<Trace> {
    if let Some(trace) = read_trace(&args.trace)? {
        check_length(trace.rates().iter().sum(), trace.seconds(), "`--trace`")?;
        return Ok(trace);
    }
    let rate = args
        .rate
        .ok_or_else(|| Usage::new("give a load: `--rate` or `--trace`"))?;
    let seconds = whole_seconds(args.duration.duration())?;
    check_length(rate * seconds as f64, seconds, "`--rate` times `--duration`")?;
    Ok(Trace::constant(rate, seconds)?)
}

/// Returns the length of a constant load, which a trace counts in seconds.
fn whole_seconds(length: Duration) -> anyhow::Result<usize> {
    ensure!(
        length.subsec_nanos() == 0 && !length.is_zero(),
        Usage::new("`--duration` is not a whole number of seconds; the load is simulated by the second")
    );
    Ok(usize::try_from(length.as_secs()).unwrap_or(usize::MAX))
}

/// Refuses a load that would take hours and all memory.
fn check_length(requests: f64, seconds: usize, what: &str) -> anyhow::Result<()> {
    ensure!(
        requests <= MAX_REQUESTS && seconds <= MAX_SECONDS,
        Usage::new(format!(
            "{what} has {} requests in {}; simulate at most {} in {}",
            units::count(requests as u64),
            units::count_of(seconds, "second", "seconds"),
            units::count(MAX_REQUESTS as u64),
            units::count_of(MAX_SECONDS, "second", "seconds"),
        ))
    );
    Ok(())
}

fn simulate(
    args: &Args,
    plan: &Plan,
    measured: &Measured,
    trace: &Trace,
) -> anyhow::Result<(Report, Vec<Bucket>)> {
    let micros = |span: HumanDuration| span.duration().as_micros() as u64;
    let shift = ShiftConfig {
        alpha: args.alpha,
        hold_us: micros(args.hold),
        ..ShiftConfig::default()
    };
    let slo_us = match plan.slo {
        // A cascade promises a percentile, and a pipeline every request.
        Some(Slo::Latency { p95_us }) if serves_tasks(plan) => Some(p95_us),
        _ => None,
    };
    let profiled = measured.profile.hop.as_ref();
    let hop = profiled.filter(|_| args.hop_latency.is_none());
    let config = SimConfig {
        seed: args.seed,
        entry_hop_us: args
            .entry_latency
            .map(micros)
            .or(profiled.map(|hop| 2 * hop.median_us()))
            .unwrap_or(DEFAULT_ENTRY_HOP_US),
        hop_us: args
            .hop_latency
            .map(micros)
            .or(hop.map(HopTime::median_us))
            .unwrap_or(DEFAULT_HOP_US),
        hop_quantiles: hop.and_then(|hop| hop.quantiles),
        hop_by_rate: hop.map_or_else(Vec::new, |hop| hop.by_rate.clone()),
        turnaround_us: args.turnaround.map_or(measured.profile.turnaround_us(), micros),
        shift: args.gear.is_none().then_some(shift),
        start_gear: start_gear(args, plan)?,
        budget_us: args.budget.0.map(micros),
        slo_us,
        queue_capacity: args.queue_capacity,
        power: Some(Power::Profiled { idle_watts: 0.0 }),
        path_accuracies: measured.path_accuracies.clone(),
        ..SimConfig::default()
    };
    let simulator = Simulator::new(plan, &measured.profile, &config)?;
    let mut course = Timeline::new(micros(args.bucket));
    let arrivals = trace.arrivals(args.arrivals.into(), args.seed);
    let report = simulator.run(arrivals, &mut course);
    Ok((report, course.finish()))
}

/// Returns the number of the gear that `--gear` names; 0 without it.
fn start_gear(args: &Args, plan: &Plan) -> anyhow::Result<u32> {
    let Some(wanted) = &args.gear else { return Ok(0) };
    let number = wanted.parse::<usize>().ok();
    let is_wanted = |(place, gear): (usize, &Gear)| gear.name == *wanted || Some(place) == number;
    let found = plan.gears.iter().enumerate().position(is_wanted);
    let found = found.and_then(|place| u32::try_from(place).ok());
    found.ok_or_else(|| {
        let known: Vec<String> = plan.gears.iter().map(|gear| format!("`{}`", gear.name)).collect();
        Usage::new(format!(
            "--gear: the plan has no gear `{wanted}`; it has {}",
            known.join(", ")
        ))
        .into()
    })
}

/// Draws load, gear, latency and accuracy over time (CascadeServe Figures 8 and 9).
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
        ..Panel::default()
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

/// Draws load, accuracy, latency and violations over time (Loki Figure 5).
fn pipeline_picture(title: &str, course: &[Bucket]) -> Panels {
    let percent = |share: Option<f64>| share.map_or(f64::NAN, |share| share * 100.0);
    let panel = |axis: &str, of: &dyn Fn(&Bucket) -> f64| Panel {
        axis: axis.to_owned(),
        series: vec![Series {
            name: "simulated".to_owned(),
            points: course
                .iter()
                .map(|bucket| (bucket.from_us as f64 / 1e6, of(bucket)))
                .collect(),
            shape: Shape::Line,
        }],
        ..Panel::default()
    };
    Panels {
        title: title.to_owned(),
        axis: "time (s)".to_owned(),
        rows: vec![
            panel("load (requests/s)", &|bucket| bucket.qps),
            panel("accuracy (%)", &|bucket| percent(bucket.path_accuracy)),
            panel("p95 (ms)", &|bucket| {
                bucket.p95_us.map_or(f64::NAN, |us| us as f64 / 1e3)
            }),
            panel("violations (requests)", &|bucket| bucket.violations as f64),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1.5 s were simulated as 2.
    #[test]
    fn the_length_of_a_load_is_in_seconds() {
        assert_eq!(whole_seconds(Duration::from_mins(1)).unwrap(), 60);
        for length in [0, 400, 1_500] {
            let error = whole_seconds(Duration::from_millis(length)).unwrap_err();
            assert!(error.to_string().contains("whole number of seconds"), "{error}");
        }
    }
}
