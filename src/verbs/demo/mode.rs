//! One way of serving the test set: its actors started, the set asked over the bus, the figures taken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kaskade::App;
use kaskade::actors::bus::BusConfig;
use kaskade::plans::plan::Plan;
use serde::Serialize;

use crate::data::Samples;
use crate::family::Family;
use crate::load::drive::{self, Until};
use crate::load::record::{Figures, Record};
use crate::measure::meter::Meter;
use crate::report::progress::Progress;
use crate::report::units;
use crate::serving::{self, Asker, Questions, Role};

/// Clients that ask at once: as many as fill a batch of the app.
const CLIENTS: usize = 32;

/// How often progress is shown and sampled energy sources are read.
const TICK: Duration = Duration::from_millis(100);

/// What came of one way of serving.
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
    pub(crate) requests: u64,
    /// Replies received, each a result.
    pub(crate) replies: u64,
    /// Requests that failed, and refusals, of all codes.
    pub(crate) errors: u64,
    /// Time that it took, seconds.
    #[serde(skip)]
    pub(crate) seconds: f64,
}

/// Serves `passes` times the whole test set by a plan, through the doors, and takes the figures. One more pass before that warms
/// up and is not counted.
///
/// # Errors
/// When the app does not start, or nothing is answered.
pub(crate) fn serve(
    name: &str,
    app: &App,
    family: &Family,
    plan: Plan,
    test: &Samples,
    passes: u32,
    quiet: bool,
) -> anyhow::Result<Mode> {
    let worker = app
        .workers
        .first()
        .context("the app has no workers")?
        .name
        .as_str();
    let bus = BusConfig::new(app.name.as_str());
    let mut meter = Meter::of(app.device, &(&app.energy).into())?;
    let node = serving::start(app, family.clone(), Role::All, worker, Some(plan), bus.clone())?;
    let requests = test.len() as u64 * u64::from(passes);
    let mut progress = Progress::begin(format!("serve {name}"), requests, quiet);
    let asked = ask(app, bus, test, requests, &mut meter, &mut progress);
    node.stop();
    let mut mode = asked.with_context(|| format!("serving {name}"))?;
    for member in &family.members {
        mode.distribution.entry(member.name.clone()).or_insert(0.0);
    }
    progress.end(&format!(
        "{} right, {} per request",
        units::percent(mode.accuracy),
        units::joules(mode.joules_per_request)
    ));
    Ok(mode)
}

fn ask(
    app: &App,
    bus: BusConfig,
    test: &Samples,
    requests: u64,
    meter: &mut Meter,
    progress: &mut Progress,
) -> anyhow::Result<Mode> {
    // One thread asks: what it spends is on the account of every mode alike.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let budget = app.ingress.default_budget.duration();
        let asker = Asker::connect(app.name.as_str(), bus, budget).await?;
        let questions = || {
            Arc::new(Questions::new(
                asker.clone(),
                test.inputs.clone(),
                test.labels.clone(),
            ))
        };
        let record = || anyhow::Ok(Arc::new(Mutex::new(Record::new(app.slo.duration())?)));
        let warm_up = Until::Sent(test.len() as u64);
        drive::closed_loop(questions(), CLIENTS, warm_up, Duration::ZERO, record()?).await;
        let (counted, recorded) = (questions(), record()?);
        let run = drive::closed_loop(
            Arc::clone(&counted),
            CLIENTS,
            Until::Sent(requests),
            Duration::ZERO,
            Arc::clone(&recorded),
        );
        let begun = meter.begin();
        let length = watched(run, &counted, meter, progress).await;
        let joules = meter.end(begun).joules;
        let figures = recorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .figures(length);
        mode(figures, counted.right(), joules)
    })
}

/// Awaits a run while its progress is shown.
async fn watched(
    run: impl Future<Output = Duration>,
    asked: &Questions,
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

fn mode(figures: Figures, right: u64, joules: Option<f64>) -> anyhow::Result<Mode> {
    ensure!(figures.replies > 0, "nothing was answered: {:?}", figures.errors);
    let replies = figures.replies as f64;
    let latency = figures.latency_ms;
    Ok(Mode {
        accuracy: right as f64 / replies,
        joules_per_request: joules.map(|joules| joules / replies),
        distribution: figures.variants,
        p50_ms: latency.p50.context("no latency was recorded")?,
        p99_ms: latency.p99.context("no latency was recorded")?,
        requests: figures.requests,
        replies: figures.replies,
        errors: figures.errors.values().sum(),
        seconds: figures.seconds,
    })
}
