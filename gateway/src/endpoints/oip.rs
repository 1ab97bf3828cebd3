//! The Open Inference Protocol v2 over REST, with the binary tensor extension. An app is a model; its variants are the
//! model's versions.

mod binary;
pub(crate) mod infer;
pub(crate) mod metadata;
pub(crate) mod stats;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::endpoints::health::{not_live, not_ready, notes};
use crate::http::api::Api;
use crate::http::failure::Failure;
use crate::state::GatewayState;

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<GatewayState>> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/", get(server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/stats", get(stats::all))
        .route("/v2/models/{model}", get(metadata::model))
        .route("/v2/models/{model}/ready", get(metadata::ready))
        .route("/v2/models/{model}/config", get(metadata::config))
        .route("/v2/models/{model}/stats", get(stats::model))
        .route("/v2/models/{model}/infer", post(infer::model))
        .route("/v2/models/{model}/versions/{version}", get(metadata::version))
        .route(
            "/v2/models/{model}/versions/{version}/ready",
            get(metadata::version_ready),
        )
        .route(
            "/v2/models/{model}/versions/{version}/config",
            get(metadata::version_config),
        )
        .route("/v2/models/{model}/versions/{version}/stats", get(stats::version))
        .route(
            "/v2/models/{model}/versions/{version}/infer",
            post(infer::version),
        )
        .route("/v2/repository/index", post(metadata::index).get(metadata::index))
}

/// Returns a response with a JSON body, or the failure in the protocol's form.
pub(crate) fn answer(result: Result<Value, Failure>) -> Response<Body> {
    match result {
        Ok(value) => json_response(StatusCode::OK, value.to_string()),
        Err(failure) => failure.response(Api::Oip),
    }
}

/// Headers of most answers.
const HEADERS: usize = 13;

pub(crate) fn json_response(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().reserve(HEADERS);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Extensions of the protocol that are served.
pub(crate) const EXTENSIONS: [&str; 4] = [
    "binary_tensor_data",
    "model_configuration",
    "statistics",
    "model_repository",
];

async fn server() -> Response<Body> {
    answer(Ok(json!({
        "name": "kaskade",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": EXTENSIONS,
    })))
}

async fn live(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    state("live", not_live(&shared).await, Vec::new())
}

/// The specification's text says `live` for a server that is ready, KServe's client reads `ready`: both are sent.
async fn ready(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    state("ready", not_ready(&shared), notes(&shared))
}

/// Returns the answer of a probe; `notes` are stated if all is fine.
fn state(word: &str, reason: Option<String>, notes: Vec<String>) -> Response<Body> {
    let fine = reason.is_none();
    let status = if fine {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut body = json!({"live": fine, word: fine});
    if let Some(body) = body.as_object_mut() {
        match reason {
            Some(reason) => _ = body.insert("error".to_owned(), reason.into()),
            None if !notes.is_empty() => _ = body.insert("notes".to_owned(), notes.into()),
            None => {}
        }
    }
    json_response(status, body.to_string())
}
