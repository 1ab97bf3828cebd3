//! Probes and metrics: `/health`, `/live`, `/ready`, `/metrics`.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use kaskade_actors::metrics::CONTENT_TYPE;
use kaskade_actors::ops::health::{Health, unserved_text};

use crate::metric_names::{ACCEPT_FAILURES, FIRST_TOKEN, PER_TOKEN, REQUEST, SPANS, SPANS_DROPPED};
use crate::state::{GatewayState, ServedApp};

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<GatewayState>> {
    Router::new()
        .route("/health", get(ready))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
}

/// Returns why the process is not live; `None` if it is.
pub(crate) async fn not_live(shared: &GatewayState) -> Option<String> {
    let health = shared.health.borrow().clone();
    match health {
        Some(health) => health.live().await.err().map(|reason| reason.to_string()),
        None => None,
    }
}

/// Returns why the gateway cannot serve requests; `None` if it can, at least those of one app.
pub(crate) fn not_ready(shared: &GatewayState) -> Option<String> {
    if let Some(reason) = process_not_ready(shared) {
        return Some(reason);
    }
    let apps = shared.apps();
    let reasons: Vec<String> = apps.iter().filter_map(|app| unreachable(app)).collect();
    if apps.is_empty() {
        return Some("starting: connecting to the broker and loading models".to_owned());
    }
    (reasons.len() == apps.len()).then(|| reasons.join("; "))
}

/// Returns why requests of an app cannot be answered; `None` if they can.
pub(crate) fn app_not_ready(shared: &GatewayState, app: &ServedApp) -> Option<String> {
    process_not_ready(shared)
        .or_else(|| unreachable(app))
        .or_else(|| app.state.not_serving())
}

/// Returns why requests of an app to one variant cannot be answered; `None` if they can.
pub(crate) fn variant_not_ready(app: &ServedApp, variant: &str) -> Option<String> {
    let lives = app.state.live().contains_key(variant);
    (!lives).then(|| format!("no replica of variant `{variant}` lives"))
}

/// Returns what a ready gateway states beside that it is ready: the notes of the process, and which apps have no replicas.
pub(crate) fn notes(shared: &GatewayState) -> Vec<String> {
    let health = shared.health.borrow();
    let health = health.as_ref();
    let mut notes = health.map(Health::notes).unwrap_or_default();
    // An ingress of this process states which stages are not served.
    let follows = !health.is_some_and(Health::has_ingress);
    for app in shared.apps() {
        let app_state = &app.state;
        let stages = || unserved_text(&app_state.app, &app_state.unserved());
        let note = unreachable(&app).or_else(|| {
            let reason = follows.then(|| app_state.not_serving().or_else(stages));
            reason.flatten()
        });
        notes.extend(note);
    }
    notes
}

/// Returns why the process itself is not ready.
fn process_not_ready(shared: &GatewayState) -> Option<String> {
    if shared.is_leaving() {
        return Some("the gateway is shutting down".to_owned());
    }
    let health = shared.health.borrow();
    let reason = health.as_ref()?.ready().err()?;
    Some(reason.to_string())
}

/// Returns why the gateway does not reach an app.
fn unreachable(app: &ServedApp) -> Option<String> {
    let name = &app.options.name;
    if !app.bus.connection().is_up() {
        return Some(format!("there is no connection to the broker of app `{name}`"));
    }
    (!app.state.is_alive())
        .then(|| format!("no heartbeat from any process of app `{name}` in the last seconds"))
}

async fn live(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    verdict("live", not_live(&shared).await)
}

async fn ready(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    let mut said = vec!["ready".to_owned()];
    said.extend(notes(&shared));
    verdict(&said.join("; "), not_ready(&shared))
}

fn verdict(word: &str, reason: Option<String>) -> Response<Body> {
    match reason {
        None => (StatusCode::OK, format!("{word}\n")).into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    let mut page = match shared.health.borrow().as_ref() {
        Some(health) => health.page(),
        None => String::new(),
    };
    for (name, help) in [
        (
            REQUEST,
            "Time from a request at the gateway to its complete answer, seconds.",
        ),
        (
            FIRST_TOKEN,
            "Time from a streamed request to its first token, seconds.",
        ),
        (
            PER_TOKEN,
            "Mean time between two tokens of a streamed answer, seconds.",
        ),
    ] {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} histogram");
        for app in shared.apps() {
            let times = &app.times;
            let histogram = match name {
                REQUEST => &times.request,
                FIRST_TOKEN => &times.first_token,
                _ => &times.per_token,
            };
            let app = &app.options.name;
            histogram.samples(|suffix, bound, value| {
                let bound = bound.map(|bound| format!(",le=\"{bound}\"")).unwrap_or_default();
                let _ = writeln!(page, "{name}{suffix}{{app=\"{app}\"{bound}}} {value}");
            });
        }
    }
    let spans = kaskade_telemetry::counts();
    for (name, help, count) in [
        (SPANS, "Spans that the collector took.", spans.exported),
        (SPANS_DROPPED, "Spans that were dropped.", spans.dropped),
        (
            ACCEPT_FAILURES,
            "Failures to accept a connection.",
            shared.accept_failures.count(),
        ),
    ] {
        let _ = writeln!(
            page,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}"
        );
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response()
}
