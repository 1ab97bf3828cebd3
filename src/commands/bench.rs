//! `kaskade bench`: load generator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::App;
use kaskade_app::config::guarantee::AuditShare;
use kaskade_app::config::scalar::HumanDuration;
use kaskade_app::data::text_metric::Grading;
use kaskade_app::load::arrivals::{ArrivalProcess, Arrivals};
use kaskade_app::load::generator::{self, Until};
use kaskade_app::load::record::{Figures, Latency, Record};
use kaskade_app::load::requests::{RequestSender, RequestSet};
use kaskade_app::load::trace_args::{TraceArgs, positive};
use kaskade_app::measure::meter::Meter;
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving::{self, Client, Service};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::app_address::{Target, TargetArgs};
use crate::args::{Broker, Overwrite, read_trace};
use crate::failure::Interrupted;
use crate::failure::Usage;
use crate::{interrupt, output};

/// Sends a load to an app and reports throughput, latency and errors: an open loop (`--rate`, `--trace`) sends requests when they
/// are due, whatever the app does; in a closed loop (`--concurrency`) clients wait for their answers. Latencies count from when a
/// request was due. With `--app` and without `--nats`, starts the app in this process.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Texts to send in turn, one per line [default: the test set in the app's file].
    #[arg(long, value_name = "FILE", conflicts_with = "tensors")]
    texts: Option<PathBuf>,
    /// Requests to send in turn, as Open Inference Protocol JSON, one object after the other.
    #[arg(long, value_name = "FILE")]
    tensors: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    trace: TraceArgs,
    /// Arrival process of the requests of `--rate`, and within each second of a trace of counts.
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: ArrivalProcess,
    /// Factor by which a trace is played faster.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    speed: f64,
    /// Length of the recorded part of `--rate` and `--concurrency`; that of a trace is chosen by `--excerpt`.
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "trace")]
    duration: HumanDuration,
    /// Length of the load before the recorded part; `0s` records all of it.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = length_or_zero)]
    warm_up: Duration,
    /// Time budget of every request [default: that of the app's file, otherwise 2s].
    #[arg(long, value_name = "TIME")]
    budget: Option<HumanDuration>,
    /// Latency objective of the goodput [default: that of the app's file].
    #[arg(long, value_name = "TIME")]
    slo: Option<HumanDuration>,
    /// A plan file, instead of the plan in the app's file; for an app in this process.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Seed of the arrivals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Send durable requests (`[durable]` in the app's file); the latency ends with the stored result.
    #[arg(long)]
    durable: bool,
    /// Let language models send their answers in parts, and report the time to the first token (TTFT), the time per output token
    /// (TPOT) and tokens per second.
    #[arg(long, conflicts_with = "durable")]
    stream: bool,
    /// Send this many requests in a closed loop, instead of a length of time; all of them are recorded.
    #[arg(long, value_name = "N", requires = "concurrency", conflicts_with_all = ["duration", "rate", "trace"],
        value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// File for the report as JSON, besides what is printed.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Send each request once, so that refusals and losses are counted; by default the client sends it again within its budget.
    #[arg(long)]
    no_retry: bool,
    /// Largest share of the requests that may have no result, such as `1%`; the exit code is 1 above it.
    #[arg(long, value_name = "SHARE", value_parser = error_rate)]
    max_error_rate: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// The load.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Load {
    /// Open loop: requests per second.
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: Option<f64>,
    /// Closed loop: clients.
    #[arg(long, value_name = "CLIENTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: Option<u32>,
}

/// Parses a length of time that may be zero.
fn length_or_zero(text: &str) -> Result<Duration, String> {
    if humantime::parse_duration(text).is_ok_and(|length| length.is_zero()) {
        return Ok(Duration::ZERO);
    }
    text.parse::<HumanDuration>().map(HumanDuration::duration)
}

/// Parses a share of requests, from 0 to 1.
fn error_rate(text: &str) -> Result<f64, String> {
    let share = serde_json::from_value::<AuditShare>(text.into());
    share.map(AuditShare::get).map_err(|error| error.to_string())
}

/// Results of a run.
#[derive(Debug, Serialize)]
struct Report {
    app: String,
    load: String,
    /// Whether Ctrl-C ended the run early.
    interrupted: bool,
    accuracy: Option<f64>,
    joules_per_request: Option<f64>,
    energy_source: Option<String>,
    #[serde(flatten)]
    figures: Figures,
}

/// Generates the load and prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let loads = [
        args.load.rate.is_some(),
        args.load.concurrency.is_some(),
        args.trace.trace.is_some(),
    ];
    ensure!(
        loads.iter().filter(|given| **given).count() == 1,
        Usage::new("give one load: `--rate`, `--trace` or `--concurrency`")
    );
    // Before anything starts.
    args.overwrite.check(args.out.as_deref())?;
    read_trace(&args.trace)?;
    let target = args.target.read(&args.broker)?;
    let samples = samples(&target, args)?;
    let (bus, service) = if let Some(app) = target.in_process() {
        let bus = target.shared(app, "bench");
        (bus.clone(), Some(whole(app, args, bus)?))
    } else {
        let bus = target.client("bench");
        ensure!(
            args.plan.is_none(),
            Usage::new(format!(
                "`--plan` needs an app in this process; the one at {} has its own",
                bus_url(&bus)
            ))
        );
        (bus, None)
    };
    let outcome = under_load(&target, args, samples, bus);
    if let Some(service) = service {
        service.stop();
    }
    let report = outcome?;
    if let Some(path) = &args.out {
        output::write_measured(path, &(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&as_text(&report))?;
    }
    ensure!(
        !report.interrupted,
        Interrupted::new("the figures are of the load until then")
    );
    check(&report.figures, args)
}

/// Checks that something was measured, and that not too many requests failed.
///
/// # Errors
/// When no request was recorded, none was answered, or more failed than `--max-error-rate`; the message names the errors.
fn check(figures: &Figures, args: &Args) -> anyhow::Result<()> {
    ensure!(
        figures.sent > 0,
        "no request was recorded: none was due after the warm-up of {}; give a shorter `--warm-up` or a longer load",
        humantime::format_duration(args.warm_up)
    );
    let errors = figures
        .errors
        .iter()
        .map(|(code, count)| format!("{count} {code}"));
    let errors: Vec<String> = errors.collect();
    ensure!(
        figures.answered > 0,
        "none of {} was answered ({}); `kaskade explain CODE` says what an error means",
        units::count_with_separators(figures.sent, "request", "requests"),
        if errors.is_empty() {
            "no errors".to_owned()
        } else {
            errors.join(", ")
        }
    );
    let most = args.max_error_rate.unwrap_or(1.0);
    ensure!(
        figures.error_rate <= most,
        "{} of {} got no result, {}: more than `--max-error-rate` {}",
        units::count(figures.sent - figures.answered),
        units::count_with_separators(figures.sent, "request", "requests"),
        units::percent(figures.error_rate),
        units::percent(most)
    );
    Ok(())
}

fn bus_url(bus: &BusConfig) -> &str {
    bus.url.as_deref().unwrap_or_default()
}

fn samples(target: &Target, args: &Args) -> anyhow::Result<RequestSet> {
    if let Some(path) = &args.texts {
        return Ok(RequestSet::texts(path)?);
    }
    if let Some(path) = &args.tensors {
        return Ok(RequestSet::tensors(path)?);
    }
    let app = target
        .app()
        .ok_or_else(|| Usage::new("there are no requests to send; give `--texts`, `--tensors` or `--app`"))?;
    let set = app.data.test.as_ref().or(app.data.validation.as_ref());
    let set = set.context("the app has no labelled set (`data.test`); give `--texts` or `--tensors`")?;
    Ok(RequestSet::read(app, set)?)
}

fn whole(app: &App, args: &Args, bus: BusConfig) -> anyhow::Result<Service> {
    let plan = match &args.plan {
        Some(path) => initial::read(app, path)?,
        None => initial::of(app)?,
    };
    say(&format!(
        "serving `{}` in this process, plan {}",
        app.name, plan.made_by
    ));
    let service = Service::builder(app).on_first_worker().plan(plan).bus(bus);
    Ok(service.start()?)
}

/// Runs the load; measures energy if the app is in this process.
fn under_load(target: &Target, args: &Args, samples: RequestSet, bus: BusConfig) -> anyhow::Result<Report> {
    let slo = args
        .slo
        .or_else(|| target.app().map(|app| app.slo.limit()))
        .map(HumanDuration::duration);
    let budget = target.budget(args.budget);
    let record = Arc::new(Mutex::new(Record::new(slo)?));
    let mut meter = target
        .in_process()
        .map(|app| -> anyhow::Result<Meter> {
            let worker = app.workers.first();
            let device = worker.map_or(app.device, |worker| app.device_of_worker(worker));
            Ok(Meter::open(device, &(&app.power).into())?)
        })
        .transpose()?;
    let begun = meter.as_mut().map(Meter::begin);
    let runtime = serving::runtime()?;
    let client = runtime
        .block_on(Client::connect_with(bus, target.name()))?
        .budget(budget)
        .retry(!args.no_retry)
        .durable(args.durable);
    let grading = target.app().map(|app| Grading::from_data_sets(&app.data));
    let sender = Arc::new(
        RequestSender::new(client, samples)
            .graded(grading.unwrap_or_default())
            .streamed(args.stream),
    );
    let interrupt = interrupt::first()?;
    let (length, interrupted) = runtime.block_on(until_end(args, &sender, Arc::clone(&record), interrupt))?;
    let spent = meter
        .as_mut()
        .zip(begun)
        .and_then(|(meter, begun)| meter.end(begun).joules);
    let figures = record
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .figures(length);
    let answered = sender.answered();
    let share = |joules: f64| (answered > 0).then(|| joules / answered as f64);
    Ok(Report {
        app: target.name().to_owned(),
        load: describe(args),
        interrupted,
        accuracy: sender.accuracy(),
        joules_per_request: spent.and_then(share),
        energy_source: meter.map(|meter| meter.source()),
        figures,
    })
}

/// Runs the load to its end or to Ctrl-C. Returns the length of the recorded part, and whether Ctrl-C ended it.
///
/// # Errors
/// When the trace cannot be read, or no process takes the first requests.
async fn until_end(
    args: &Args,
    sender: &Arc<RequestSender>,
    record: Arc<Mutex<Record>>,
    interrupt: oneshot::Receiver<()>,
) -> anyhow::Result<(Duration, bool)> {
    let begun = Instant::now();
    tokio::select! {
        biased;
        fault = sender.unserved() => Err(fault.into()),
        Ok(()) = interrupt => {
            record
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .forget_in_flight();
            Ok((begun.elapsed().saturating_sub(args.warm_up), true))
        }
        length = drive(args, Arc::clone(sender), Arc::clone(&record)) => Ok((length?, false)),
    }
}

async fn drive(
    args: &Args,
    sender: Arc<RequestSender>,
    record: Arc<Mutex<Record>>,
) -> anyhow::Result<Duration> {
    let (warm_up, length) = (args.warm_up, args.duration.duration());
    if let Some(clients) = args.load.concurrency {
        let until = args.requests.map_or(Until::Elapsed(length), Until::Sent);
        // Each of a number of requests counts.
        let warm_up = if args.requests.is_some() {
            Duration::ZERO
        } else {
            warm_up
        };
        return Ok(generator::closed_loop(sender, clients as usize, until, warm_up, record).await);
    }
    let arrivals = match (read_trace(&args.trace)?, args.load.rate) {
        (Some(trace), _) => Arrivals::from_trace(&trace, args.arrivals, args.speed, args.seed),
        (None, rate) => {
            let missing = || Usage::new("there is no load; give `--rate`, `--trace` or `--concurrency`");
            let rate = rate.ok_or_else(missing)?;
            Arrivals::generated(args.arrivals, rate, warm_up + length, args.seed)
        }
    };
    Ok(generator::open_loop(sender, generator::spawn_pacer(arrivals), warm_up, record).await)
}

fn describe(args: &Args) -> String {
    let Load { rate, concurrency } = &args.load;
    match (rate, &args.trace.trace, concurrency) {
        (Some(rate), ..) => {
            let process = match args.arrivals {
                ArrivalProcess::Poisson => "Poisson",
                ArrivalProcess::Constant => "constant",
            };
            format!("open loop, {rate} requests/s, {process}, seed {}", args.seed)
        }
        (_, Some(path), _) => format!("open loop, trace {} at {}x", path.display(), args.speed),
        (.., clients) => {
            let clients = units::count_of(clients.unwrap_or_default(), "client", "clients");
            format!("closed loop, {clients}")
        }
    }
}

/// Returns the title of the table of latencies, with the requests that are not in it.
fn latency_title(figures: &Figures) -> String {
    let missing = [
        (figures.timed_out, "timed out"),
        (figures.refused, "refused"),
        (figures.lost, "lost"),
    ];
    let missing = missing.iter().filter(|(count, _)| *count > 0);
    let missing: Vec<String> = missing
        .map(|(count, what)| format!("{} {what}", units::count(*count)))
        .collect();
    let title = format!(
        "latency of the {}",
        units::count_with_separators(figures.answered, "answered request", "answered requests")
    );
    if missing.is_empty() {
        return title;
    }
    format!(
        "{title}, without the {} ({})",
        units::percent(figures.error_rate),
        missing.join(", ")
    )
}

/// Returns the times of answers that came in parts, as text; empty without any.
fn streamed(figures: &Figures) -> String {
    let Some(stream) = &figures.stream else {
        return String::new();
    };
    let time = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), units::seconds);
    let row = |name: &str, times: Latency| {
        let quantiles = [times.mean, times.p50, times.p90, times.p95, times.p99, times.max];
        let [mean, p50, p90, p95, p99, max] = quantiles.map(time);
        [name.to_owned(), mean, p50, p90, p95, p99, max]
    };
    let times = table(
        [
            ("", Align::Left),
            ("mean", Align::Right),
            ("p50", Align::Right),
            ("p90", Align::Right),
            ("p95", Align::Right),
            ("p99", Align::Right),
            ("max", Align::Right),
        ],
        [
            row("time to first token", stream.ttft_s),
            row("time per output token", stream.tpot_s),
        ],
    );
    format!(
        "\n{times}\n{}, {:.1} tokens/s",
        units::count_with_separators(stream.tokens, "token", "tokens"),
        stream.tokens_per_s
    )
}

/// Formats a report for people.
fn as_text(report: &Report) -> String {
    let figures = &report.figures;
    let millis = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} ms"));
    let latency = figures.latency_ms;
    let quantiles = table(
        ["mean", "p50", "p90", "p95", "p99", "p99.9", "max"].map(|head| (head, Align::Right)),
        [[
            millis(latency.mean),
            millis(latency.p50),
            millis(latency.p90),
            millis(latency.p95),
            millis(latency.p99),
            millis(latency.p999),
            millis(latency.max),
        ]],
    );
    let shares = figures
        .variants
        .iter()
        .map(|(name, share)| format!("{name} {}", units::percent(*share)));
    let errors = figures
        .errors
        .iter()
        .map(|(code, count)| format!("{code} {count}"));
    let listed = |items: Vec<String>| {
        if items.is_empty() {
            "none".to_owned()
        } else {
            items.join(", ")
        }
    };
    let degraded = if figures.degraded > 0.0 {
        format!(
            "{} of the answers: a later stage was unavailable; an earlier stage's below-threshold answer was returned",
            units::percent(figures.degraded)
        )
    } else {
        "none".to_owned()
    };
    let accuracy = report
        .accuracy
        .map_or_else(|| "unknown".to_owned(), units::percent);
    let source = report
        .energy_source
        .as_deref()
        .unwrap_or("the app runs in another process; see `kaskade top`");
    let lost = if figures.lost > 0 {
        format!(", {} lost", units::count(figures.lost))
    } else {
        String::new()
    };
    let goodput = figures.goodput_per_s.zip(figures.slo_ms);
    let goodput = goodput.map_or_else(String::new, |(goodput, slo)| {
        format!(", of which {goodput:.1} /s within {}", units::seconds(slo / 1e3))
    });
    let end = if report.interrupted { ", interrupted" } else { "" };
    format!(
        "{}: {}, {:.1} s{end}\n\
         {} sent, {} answered, {} refused, {} timed out{lost}: {:.1} answers/s{goodput}\n{}\n{quantiles}{}\n\
         answered by: {}\ndegraded: {degraded}\nerrors: {}\naccuracy: {accuracy}\nenergy per request: {} ({source})",
        report.app,
        report.load,
        figures.seconds,
        units::count(figures.sent),
        units::count(figures.answered),
        units::count(figures.refused),
        units::count(figures.timed_out),
        figures.throughput_per_s,
        latency_title(figures),
        streamed(figures),
        listed(shares.collect()),
        listed(errors.collect()),
        units::joules(report.joules_per_request),
    )
}

#[cfg(test)]
mod tests;
