//! The dashboard: one self-contained page, and the events that update it.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::endpoints::oip::json_response;
use crate::endpoints::oip::metadata::tensors;
use crate::http::api::Api;
use crate::http::failure::Failure;
use crate::http::path_params::Path;
use crate::limits::permits::Permits;
use crate::state::{GatewayState, ServedApp};

const PAGE: &str = include_str!("dashboard/page.html");

/// Prefix of the paths of events. If keys are needed, only an operator's key gives access, because the events show
/// error messages of all tenants, which quote parts of inputs.
pub(crate) const EVENTS: &str = "/dashboard/events/";

/// Content security policy: the page may load nothing from other origins.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(PAGE));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Returns the apps, with the data that the playground needs.
pub(crate) async fn apps(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    let apps = shared.apps();
    let mut listed = Vec::new();
    for app in &apps {
        let (inputs, _) = tensors(app).await;
        let inputs = inputs.into_iter().map(
            |input| json!({"name": input.name, "datatype": input.datatype.name(), "shape": input.shape}),
        );
        let inputs: Vec<Value> = inputs.collect();
        let chats = app.state.takes("messages");
        listed.push(json!({"name": app.options.name, "inputs": inputs, "chats": chats}));
    }
    json_response(StatusCode::OK, Value::from(listed).to_string())
}

/// Streams a snapshot of an app, then an update per second.
pub(crate) async fn events(
    State(shared): State<Arc<GatewayState>>,
    Extension(permits): Extension<Permits>,
    Path(app): Path<String>,
) -> Response<Body> {
    match stream_of(&shared, &app, permits) {
        Ok(response) => response,
        Err(failure) => failure.response(Api::Oip),
    }
}

fn stream_of(shared: &GatewayState, app: &str, permits: Permits) -> Result<Response<Body>, Failure> {
    let app = shared.app(app)?;
    let reader = Reader {
        updates: app.state.updates.subscribe(),
        stopping: shared.stopping.subscribe(),
        known: None,
        app,
        _permits: permits,
    };
    let events = stream::unfold(reader, |mut reader| async move {
        let event = Bytes::from(format!("data: {}\n\n", reader.next().await?));
        Some((Ok::<_, Infallible>(event), reader))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// A reader of an app's updates.
struct Reader {
    app: Arc<ServedApp>,
    updates: watch::Receiver<(u64, Arc<str>)>,
    stopping: watch::Receiver<bool>,
    /// Number of the newest update sent.
    known: Option<u64>,
    /// Permits: a stream counts as a request in progress until it ends.
    _permits: Permits,
}

impl Reader {
    /// Returns the next event: a snapshot first, and again if a slow reader missed an update. `None` when the gateway
    /// stops.
    async fn next(&mut self) -> Option<Arc<str>> {
        while let Some(known) = self.known {
            tokio::select! {
                changed = self.updates.changed() => changed.ok()?,
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            }
            let (number, update) = self.updates.borrow_and_update().clone();
            if number == known + 1 {
                self.known = Some(number);
                return Some(update);
            }
            if number > known {
                break;
            }
        }
        let (number, all) = self.app.state.snapshot();
        self.known = Some(number);
        Some(Arc::from(all))
    }
}
