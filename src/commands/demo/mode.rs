//! Serves the test set by one plan through a broker, and measures it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade_actors::bus::BusConfig;
use kaskade_app::config::App;
use kaskade_app::data::Samples;
use kaskade_app::data::text_metric::Grading;
use kaskade_app::family::Family;
use kaskade_app::load::generator::{self, Until};
use kaskade_app::load::record::{Figures, Record};
use kaskade_app::load::requests::{RequestSender, RequestSet};
use kaskade_app::measure::meter::Meter;
use kaskade_app::report::progress::Progress;
use kaskade_app::report::units;
use kaskade_app::serving::{Client, Service};
use kaskade_policy::plan::Plan;
use serde::Serialize;

/// Concurrent clients: enough to fill a batch of the app.
const CLIENTS: usize = 32;

/// Requests that warm the app up and measure its speed.
const WARM_UP: u64 = 128;

/// Approximate serving time per plan: long enough for an energy meter.
const SERVE_FOR: Duration = Duration::from_secs(4);

/// Most passes over the test set.
const MAX_PASSES: f64 = 40.0;

/// Deadline of a request: long enough for a slow machine, because the demo measures cost and not deadlines.
const BUDGET: Duration = Duration::from_mins(1);

/// Interval at which progress is shown and sampled energy sources are read.
const TICK: Duration = Duration::from_millis(100);

/// Figures of serving by one plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mode {
    /// Share of right answers on the test set.
    pub(crate) accuracy: f64,
    /// Energy of the whole process per reply (models, actors, broker, clients), idle included, joules.
    pub(crate) joules_per_request: Option<f64>,
    /// Share of the replies per variant.
    pub(crate) distribution: BTreeMap<String, f64>,
    /// Median latency, milliseconds.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the latency, milliseconds.
    pub(crate) p99_ms: f64,
    /// Requests sent.
    pub(crate) sent: u64,
    /// Requests answered with a result.
    pub(crate) answered: u64,
    /// Requests that were refused, timed out or lost.
    pub(crate) errors: u64,
}

/// Serves the whole test set by a plan through the ingress, `passes` times or as often as a measurement needs, and measures it.
/// The warm-up is not counted.
///
/// # Errors
/// When the app does not start, or nothing is answered.
pub(crate) fn serve(
    name: &str,
    app: &App,
    family: &Family,
    plan: Plan,
    test: &Samples,
    passes: Option<u32>,
    quiet: bool,
) -> anyhow::Result<Mode> {
    let bus = BusConfig::new(app.name.as_str());
    let meter = Meter::open(app.device, &(&app.power).into())?;
    let service = Service::builder(app)
        .family(family.clone())
        .on_first_worker()
        .plan(plan)
        .bus(bus.clone())
        .start()?;
    // One thread sends all requests, so that its energy is the same in every mode.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let asked = runtime.block_on(ask(name, app, bus, test, passes, meter, quiet));
    service.stop();
    let mut mode = asked.with_context(|| format!("serving {name}"))?;
    for member in &family.members {
        mode.distribution.entry(member.name.clone()).or_insert(0.0);
    }
    Ok(mode)
}

async fn ask(
    name: &str,
    app: &App,
    bus: BusConfig,
    test: &Samples,
    passes: Option<u32>,
    mut meter: Meter,
    quiet: bool,
) -> anyhow::Result<Mode> {
    let client = Client::connect_with(bus, app.name.as_str()).await?.budget(BUDGET);
    let run = |requests: u64| {
        let asked = RequestSender::new(client.clone(), RequestSet::Samples(test.clone()));
        let asked = Arc::new(asked.graded(Grading::from_data_sets(&app.data)));
        let record = Arc::new(Mutex::new(Record::new(app.slo.duration())?));
        let (sent, none) = (Until::Sent(requests), Duration::ZERO);
        let run = generator::closed_loop(Arc::clone(&asked), CLIENTS, sent, none, Arc::clone(&record));
        anyhow::Ok((asked, record, run))
    };
    let (.., warm_up) = run(WARM_UP)?;
    let pass = warm_up.await.as_secs_f64() * test.len() as f64 / WARM_UP as f64;
    let enough = (SERVE_FOR.as_secs_f64() / pass).ceil().clamp(1.0, MAX_PASSES);
    let requests = test.len() as u64 * passes.map_or(enough as u64, u64::from);
    let mut progress = Progress::begin(format!("serve {name}"), requests, quiet);
    let (asked, record, run) = run(requests)?;
    let begun = meter.begin();
    let length = watched(run, &asked, &mut meter, &mut progress).await;
    let joules = meter.end(begun).joules;
    let figures = record
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .figures(length);
    let mode = mode(figures, asked.accuracy(), joules)?;
    progress.end(&format!(
        "accuracy {}, {} per request",
        units::percent(mode.accuracy),
        units::joules(mode.joules_per_request)
    ));
    Ok(mode)
}

/// Awaits a run while its progress is shown.
async fn watched(
    run: impl Future<Output = Duration>,
    asked: &RequestSender,
    meter: &mut Meter,
    progress: &mut Progress,
) -> Duration {
    let mut run = std::pin::pin!(run);
    let mut tick = tokio::time::interval(TICK);
    let mut shown = 0;
    loop {
        tokio::select! {
            length = &mut run => return length,
            _ = tick.tick() => {
                meter.touch();
                let answered = asked.answered();
                progress.advance(answered - shown);
                shown = answered;
            }
        }
    }
}

fn mode(figures: Figures, accuracy: Option<f64>, joules: Option<f64>) -> anyhow::Result<Mode> {
    ensure!(figures.answered > 0, "nothing was answered: {:?}", figures.errors);
    let answered = figures.answered as f64;
    let latency = figures.latency_ms;
    Ok(Mode {
        accuracy: accuracy.context("nothing was answered")?,
        joules_per_request: joules.map(|joules| joules / answered),
        distribution: figures.variants,
        p50_ms: latency.p50.context("no latency was recorded")?,
        p99_ms: latency.p99.context("no latency was recorded")?,
        sent: figures.sent,
        answered: figures.answered,
        errors: figures.sent - figures.answered,
    })
}
