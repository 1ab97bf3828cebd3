//! `kaskade bench`: puts an app under load and says what became of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::App;
use kaskade_app::config::scalar::Span;
use kaskade_app::load::arrivals::Arrivals;
use kaskade_app::load::drive::{self, Until};
use kaskade_app::load::questions::{Questions, Set};
use kaskade_app::load::record::{Figures, Record};
use kaskade_app::measure::meter::Meter;
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_app::serving::{self, Client, Service};
use serde::Serialize;

use crate::args::{Broker, Spacing, TraceArgs, positive};
use crate::output;

/// Puts an app under load: an open loop (`--rate`, `--trace`) sends when requests are due, whatever the app does; a closed loop
/// (`--concurrency`) has clients that wait for their answers. Latencies count from when a request was due. Without a
/// nats-server, the app is started in this process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The TOML file of the app.
    #[arg(long, value_name = "FILE")]
    app: PathBuf,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    trace: TraceArgs,
    /// How requests are spaced, of `--rate` and within the seconds of a trace that counts per second.
    #[arg(long, value_enum, default_value = "poisson")]
    spacing: Spacing,
    /// How many times faster than written a trace is played.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    speed: f64,
    /// How long load is recorded.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: Span,
    /// How long load is made before it is recorded.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    warm_up: Span,
    /// Time budget of every request; the app's own where absent.
    #[arg(long, value_name = "TIME")]
    budget: Option<Span>,
    /// Latency objective that goodput counts by; the app's own where absent.
    #[arg(long, value_name = "TIME")]
    slo: Option<Span>,
    /// A plan file, instead of the one that the app names.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Seed of the arrivals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Submit every request to be kept until it is answered (`[durable]`), and count until its result has come.
    #[arg(long)]
    durable: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: Broker,
}

/// What makes the load.
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

/// What came of a run.
#[derive(Debug, Serialize)]
struct Report {
    app: String,
    load: String,
    accuracy: Option<f64>,
    joules_per_request: Option<f64>,
    energy_source: Option<String>,
    #[serde(flatten)]
    figures: Figures,
}

/// Makes the load and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let loads = [
        args.load.rate.is_some(),
        args.load.concurrency.is_some(),
        args.trace.trace.is_some(),
    ];
    ensure!(
        loads.iter().filter(|given| **given).count() == 1,
        "give one load: `--rate`, `--trace` or `--concurrency`"
    );
    let app = App::load(&args.app)?;
    let samples = samples(&app)?;
    let bus = args.broker.connection().bus(&app, "bench");
    let service = match args.broker.connection().url(&app) {
        Some(_) => {
            ensure!(
                args.plan.is_none(),
                "`--plan` needs an app in this process; the one at {} has its own",
                bus_url(&bus)
            );
            None
        }
        None => Some(whole(&app, args, bus.clone())?),
    };
    let outcome = under_load(&app, args, samples, bus, service.is_some());
    if let Some(service) = service {
        service.stop();
    }
    let report = outcome?;
    if args.json {
        return output::print_json(&report);
    }
    output::print(&as_text(&report))
}

fn bus_url(bus: &BusConfig) -> &str {
    bus.url.as_deref().unwrap_or_default()
}

fn samples(app: &App) -> anyhow::Result<Set> {
    let set = app.data.test.as_ref().or(app.data.validation.as_ref());
    let set = set.context("the app names no labelled set (`data.test`) to ask from")?;
    Ok(Set::read(app, set)?)
}

fn whole(app: &App, args: &Args, bus: BusConfig) -> anyhow::Result<Service> {
    let plan = match &args.plan {
        Some(path) => initial::read(app, path)?,
        None => initial::of(app)?,
    };
    let worker = app
        .workers
        .first()
        .context("the app has no workers")?
        .name
        .as_str();
    say(&format!(
        "serving `{}` in this process, plan {}",
        app.name, plan.made_by
    ));
    let service = Service::builder(app).worker(worker).plan(plan).bus(bus);
    Ok(service.start()?)
}

/// Runs the load; `whole` says that the app is in this process, so that its energy can be told.
fn under_load(app: &App, args: &Args, samples: Set, bus: BusConfig, whole: bool) -> anyhow::Result<Report> {
    let slo = args.slo.unwrap_or(app.slo.limit()).duration();
    let budget = args.budget.unwrap_or(app.ingress.default_budget).duration();
    let record = Arc::new(Mutex::new(Record::new(slo)?));
    let device = app
        .workers
        .first()
        .map_or(app.device, |worker| app.device_of_worker(worker));
    let mut meter = whole
        .then(|| Meter::of(device, &(&app.power).into()))
        .transpose()?;
    let begun = meter.as_mut().map(Meter::begin);
    let runtime = serving::runtime()?;
    let mut client = runtime.block_on(Client::open(app.name.as_str(), bus, budget))?;
    if args.durable {
        client = client.durably();
    }
    let questions = Arc::new(Questions::new(client, samples));
    let length = runtime.block_on(drive(args, Arc::clone(&questions), Arc::clone(&record)))?;
    let spent = meter
        .as_mut()
        .zip(begun)
        .and_then(|(meter, begun)| meter.end(begun).joules);
    let figures = record
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .figures(length);
    let answered = questions.answered();
    let share = |joules: f64| (answered > 0).then(|| joules / answered as f64);
    Ok(Report {
        app: app.name.to_string(),
        load: describe(args),
        accuracy: questions.accuracy(),
        joules_per_request: spent.and_then(share),
        energy_source: meter.map(|meter| meter.source()),
        figures,
    })
}

async fn drive(
    args: &Args,
    questions: Arc<Questions>,
    record: Arc<Mutex<Record>>,
) -> anyhow::Result<Duration> {
    let (warm_up, length) = (args.warm_up.duration(), args.duration.duration());
    if let Some(clients) = args.load.concurrency {
        let until = Until::Elapsed(length);
        return Ok(drive::closed_loop(questions, clients as usize, until, warm_up, record).await);
    }
    let arrivals = match (args.trace.read()?, args.load.rate) {
        (Some(trace), _) => Arrivals::of_trace(&trace, args.spacing.into(), args.speed, args.seed),
        (None, rate) => {
            let rate = rate.context("there is no load; give `--rate`, `--trace` or `--concurrency`")?;
            Arrivals::generated(args.spacing.into(), rate, warm_up + length, args.seed)
        }
    };
    Ok(drive::open_loop(questions, drive::paced(arrivals), warm_up, record).await)
}

fn describe(args: &Args) -> String {
    let Load { rate, concurrency } = &args.load;
    match (rate, &args.trace.trace, concurrency) {
        (Some(rate), ..) => {
            let spacing = match args.spacing {
                Spacing::Poisson => "Poisson",
                Spacing::Constant => "constant",
            };
            format!("open loop, {rate} requests/s, {spacing}, seed {}", args.seed)
        }
        (_, Some(path), _) => format!("open loop, trace {} at {}x", path.display(), args.speed),
        (.., clients) => format!("closed loop, {} clients", clients.unwrap_or_default()),
    }
}

/// A run for people.
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
    let accuracy = report
        .accuracy
        .map_or_else(|| "unknown".to_owned(), units::percent);
    let source = report
        .energy_source
        .as_deref()
        .unwrap_or("the app is in another process");
    format!(
        "{}: {}, {:.1} s\n\
         {} requests, {} replies: {:.1} /s, of which {:.1} /s within {} ms\n{quantiles}\n\
         answered by: {}\nerrors: {}\naccuracy: {accuracy}\nenergy per request: {} ({source})",
        report.app,
        report.load,
        figures.seconds,
        units::count(figures.requests),
        units::count(figures.replies),
        figures.throughput_per_s,
        figures.goodput_per_s,
        figures.slo_ms,
        listed(shares.collect()),
        listed(errors.collect()),
        units::joules(report.joules_per_request),
    )
}
