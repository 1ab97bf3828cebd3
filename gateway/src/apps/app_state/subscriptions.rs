//! The task that follows an app through its broker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Message;
use async_nats::service::Stats;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kaskade_actors::bus::{Bus, BusError};
use kaskade_actors::metrics::Snapshot as Counters;
use kaskade_actors::metrics::histogram;
use kaskade_actors::plan::store::{self, StoreError};
use kaskade_actors::wire::{
    CertificateReport, EnergyReport, GearShift, Heartbeat, IngressState, Message as _, ShiftReport,
    describes_models,
};
use kaskade_actors::{App, ids, subjects};

use super::{AppState, HISTORY, Point, RouteCounts, Shift, WINDOW, now_ms};
use crate::apps::latency::LatencyHistograms;
use crate::apps::overview::Counts;

/// Interval at which heartbeats of one actor are decoded, at most; actors send ten per second.
const DECODE: Duration = Duration::from_millis(500);

/// Number of gear shifts kept.
const SHIFTS: usize = 20;

/// Pause before a failed watch of the plan store is retried.
const AGAIN: Duration = Duration::from_secs(2);

/// A message published by an app, by its subject.
enum AppMessage {
    Beat(Message),
    Energy(Message),
    Gear(Message),
    Shifted(Message),
    Certificates(Message),
    Ingress(Message),
    Stats(Message),
}

/// Subscribes to the messages of an app, and follows them until the connection closes. `times` are the latencies of the
/// app's requests at this gateway.
///
/// # Errors
/// An error if a subscription fails.
pub(crate) async fn follow(
    bus: &Bus,
    app: &App,
    app_state: &Arc<AppState>,
    times: Arc<LatencyHistograms>,
) -> Result<(), BusError> {
    let inbox = bus.client().new_inbox();
    let [_, question, _] = subjects::discovery("STATS", app.name(), &ids::unique_token())?;
    let streams: Vec<BoxStream<'static, AppMessage>> = vec![
        bus.subscribe(app.beats(), None)
            .await?
            .map(AppMessage::Beat)
            .boxed(),
        bus.subscribe(app.event(subjects::event::ENERGY)?, None)
            .await?
            .map(AppMessage::Energy)
            .boxed(),
        bus.subscribe(app.event(subjects::event::GEAR)?, None)
            .await?
            .map(AppMessage::Shifted)
            .boxed(),
        bus.subscribe(app.event(subjects::event::CERTIFICATE_STATUS)?, None)
            .await?
            .map(AppMessage::Certificates)
            .boxed(),
        bus.subscribe(app.gear(), None)
            .await?
            .map(AppMessage::Gear)
            .boxed(),
        bus.subscribe(app.ingresses(), None)
            .await?
            .map(AppMessage::Ingress)
            .boxed(),
        bus.subscribe(inbox.as_str().into(), None)
            .await?
            .map(AppMessage::Stats)
            .boxed(),
    ];
    let mut messages = futures::stream::select_all(streams);
    tokio::spawn(plans(bus.clone(), app.clone(), Arc::clone(app_state)));
    let (bus, app_state) = (bus.clone(), Arc::clone(app_state));
    tokio::spawn(async move {
        let mut decoded: HashMap<String, Instant> = HashMap::new();
        let mut second = tokio::time::interval(Duration::from_secs(1));
        let mut before = histogram::Counts::default();
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => take(&app_state, &mut decoded, &message),
                    None => return,
                },
                _ = second.tick() => {
                    decoded.retain(|_, at| at.elapsed() < DECODE);
                    before = tick(&app_state, &times, &before);
                    let reply = Some(inbox.as_str().into());
                    if let Err(error) = bus.publish(question.clone(), reply, None, Bytes::new()).await {
                        tracing::debug!(%error, "asking the ingresses for their counters failed");
                    }
                }
            }
        }
    });
    Ok(())
}

/// Follows the plan store. Without one, the wiring stays unknown.
async fn plans(bus: Bus, app: App, app_state: Arc<AppState>) {
    loop {
        let followed = async {
            let Some(store) = store::find(&bus, &app).await? else {
                return Ok(());
            };
            // Ingresses may still admit under an older plan than the newest.
            for past in store.history().await? {
                app_state
                    .state()
                    .plans
                    .stored(past.stored.epoch, past.stored.plan);
            }
            let mut plans = store.watch().await?;
            while let Some(stored) = plans.next().await {
                match stored {
                    Ok(stored) => app_state.state().plans.stored(stored.epoch, stored.plan),
                    Err(error) => tracing::warn!(%error, "a stored plan cannot be shown"),
                }
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = followed.await {
            tracing::debug!(%error, "the plan store cannot be followed");
            // The broker may be embedded in another process.
            let may_be_embedded = matches!(error, StoreError::NeedsJetStream { .. });
            if may_be_embedded && let Ok(Some(stored)) = store::ask(&bus, &app).await {
                app_state.state().plans.stored(stored.epoch, stored.plan);
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Processes a message. Ignores one that cannot be decoded, such as that of another version.
fn take(app_state: &AppState, decoded: &mut HashMap<String, Instant>, message: &AppMessage) {
    match message {
        AppMessage::Beat(message) => {
            let at = decoded.get(message.subject.as_str());
            if at.is_some_and(|at| at.elapsed() < DECODE) && !describes_models(&message.payload) {
                return;
            }
            decoded.insert(message.subject.to_string(), Instant::now());
            if let Ok(beat) = Heartbeat::decode(&message.payload) {
                app_state.state().beat(beat);
            }
        }
        AppMessage::Energy(message) => {
            if let Ok(report) = EnergyReport::decode(&message.payload) {
                let mut state = app_state.state();
                let now = state.begun.elapsed();
                state.overview.energy(now, report);
            }
        }
        AppMessage::Gear(message) => {
            if let Ok(shift) = GearShift::decode(&message.payload) {
                let mut state = app_state.state();
                state.plans.shifted(shift);
                state.overview.shifted(shift);
            }
        }
        AppMessage::Shifted(message) => {
            if let Ok(report) = ShiftReport::decode(&message.payload) {
                let mut state = app_state.state();
                state.shifts.push_back(Shift {
                    at_ms: now_ms(),
                    from: report.from,
                    to: report.to,
                    qps: report.qps,
                });
                if state.shifts.len() > SHIFTS {
                    state.shifts.pop_front();
                }
            }
        }
        AppMessage::Certificates(message) => {
            if let Ok(report) = CertificateReport::decode(&message.payload) {
                app_state.state().overview.record_certificates(report);
            }
        }
        AppMessage::Ingress(message) => {
            if let Ok(state) = IngressState::decode(&message.payload) {
                app_state.state().ingress(state);
            }
        }
        AppMessage::Stats(message) => stats(app_state, &message.payload),
    }
}

/// Updates the counters of an ingress from its NATS service statistics.
fn stats(app_state: &AppState, payload: &[u8]) {
    let Ok(stats) = serde_json::from_slice::<Stats>(payload) else {
        return;
    };
    let Some(endpoint) = stats.endpoints.into_iter().next() else {
        return;
    };
    let counters = endpoint.data.map(serde_json::from_value::<Counters>);
    let Some(Ok(counters)) = counters else { return };
    let counts = Counts {
        arrived: counters.arrived,
        answered: counters.answered,
        errors: counters.faults.values().sum(),
        retried: counters.retried,
        processing: endpoint.processing_time,
        latencies: counters.latencies,
    };
    let mut known = app_state.state();
    let now = known.begun.elapsed();
    known.overview.counts(now, &stats.id, counts);
    known.last_error = endpoint
        .last_error
        .map(|error| error.status)
        .or(known.last_error.take());
}

/// Ends a second: computes the overview, adds a history point, and sends an update. Returns the current latency counts.
fn tick(app_state: &AppState, times: &LatencyHistograms, before: &histogram::Counts) -> histogram::Counts {
    let until_now = times.request.read();
    let last = until_now.since(before);
    let mut state = app_state.state();
    let now = state.begun.elapsed();
    let snapshot = state.overview.snapshot(&app_state.app, now);
    let point = Point {
        at_ms: now_ms(),
        arrived_per_s: snapshot.ingresses.map_or(0.0, |rates| rates.arrived_per_s),
        gear: snapshot.gear,
        p50_s: last.quantile(0.5),
        p95_s: last.quantile(0.95),
        p99_s: last.quantile(0.99),
        joules_per_request: snapshot.joules_per_request,
        money_per_request: snapshot.money_per_request,
    };
    state.snapshot = Some(snapshot);
    state.history.push_back(point);
    if state.history.len() > HISTORY {
        state.history.pop_front();
    }
    state.forget_silent();
    // Serialise only if there are readers.
    if app_state.updates.receiver_count() > 0 {
        let (number, update) = state.next_update(&app_state.app);
        app_state.updates.send_replace((number, Arc::from(update)));
    } else {
        state.forget_readers();
    }
    state.routes.push_back(RouteCounts::default());
    if state.routes.len() > WINDOW {
        state.routes.pop_front();
    }
    until_now
}
