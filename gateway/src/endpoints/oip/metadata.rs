//! Metadata, readiness and configuration of models and their versions.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use kaskade_actors::{Code, Fault};
use kaskade_models::{Datatype, Extent};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{answer, json_response};
use crate::apps::observed_signature::{TensorInfo, merge};
use crate::endpoints::health::{app_not_ready, variant_not_ready};
use crate::http::failure::{Failure, shortened};
use crate::http::json_body::{self, or_default};
use crate::http::path_params::Path;
use crate::state::{GatewayState, ServedApp};

type Apps = State<Arc<GatewayState>>;

pub(super) async fn model(State(shared): Apps, Path(model): Path<String>) -> Response<Body> {
    let found = async {
        let app = shared.app(&model)?;
        Ok(metadata(&app, &versions(&app)).await)
    };
    answer(found.await)
}

pub(super) async fn version(
    State(shared): Apps,
    Path((model, version)): Path<(String, String)>,
) -> Response<Body> {
    let found = async {
        let app = of_version(&shared, &model, &version)?;
        Ok(metadata(&app, std::slice::from_ref(&version)).await)
    };
    answer(found.await)
}

pub(super) async fn ready(State(shared): Apps, Path(model): Path<String>) -> Response<Body> {
    match shared.app(&model) {
        Err(failure) => answer(Err(failure)),
        Ok(app) => model_state(&model, app_not_ready(&shared, &app)),
    }
}

pub(super) async fn version_ready(
    State(shared): Apps,
    Path((model, version)): Path<(String, String)>,
) -> Response<Body> {
    match of_version(&shared, &model, &version) {
        Err(failure) => answer(Err(failure)),
        Ok(app) => model_state(&model, variant_not_ready(&app, &version)),
    }
}

pub(super) async fn config(State(shared): Apps, Path(model): Path<String>) -> Response<Body> {
    let found = async {
        let app = shared.app(&model)?;
        Ok(configuration(&app).await)
    };
    answer(found.await)
}

pub(super) async fn version_config(
    State(shared): Apps,
    Path((model, version)): Path<(String, String)>,
) -> Response<Body> {
    let found = async {
        let app = of_version(&shared, &model, &version)?;
        Ok(configuration(&app).await)
    };
    answer(found.await)
}

#[derive(Deserialize, Default)]
struct Index {
    /// Whether only the versions that are ready are listed.
    #[serde(default, deserialize_with = "or_default")]
    ready: bool,
}

pub(super) async fn index(State(shared): Apps, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let asked = async {
        let body = shared.read_body(&parts, body).await?;
        if body.trim_ascii().is_empty() {
            return Ok(Index::default());
        }
        json_body::read(&body)
    };
    let asked = match asked.await {
        Ok(asked) => asked,
        Err(failure) => return answer(Err(failure)),
    };
    let mut rows = Vec::new();
    for app in shared.apps() {
        for version in versions(&app) {
            let reason = variant_not_ready(&app, &version);
            if asked.ready && reason.is_some() {
                continue;
            }
            let state = index_state(reason.as_ref());
            let reason = reason.unwrap_or_default();
            rows.push(
                json!({"name": app.options.name, "version": version, "state": state, "reason": reason}),
            );
        }
    }
    answer(Ok(rows.into()))
}

/// Returns the state of a version in the index, by the reason why it is not ready.
pub(crate) fn index_state(not_ready: Option<&String>) -> &'static str {
    if not_ready.is_none() {
        "READY"
    } else {
        "UNAVAILABLE"
    }
}

fn model_state(model: &str, not_ready: Option<String>) -> Response<Body> {
    let Some(reason) = not_ready else {
        let body = json!({"name": model, "ready": true});
        return json_response(StatusCode::OK, body.to_string());
    };
    let body = json!({"name": model, "ready": false, "error": reason});
    json_response(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
}

/// Returns the variants of an app's plan, or those that its workers report.
pub(crate) fn versions(app: &ServedApp) -> Vec<String> {
    match app.state.plan() {
        Some((_, plan)) => plan.variants.iter().map(|variant| variant.name.clone()).collect(),
        None => app.state.live().into_keys().collect(),
    }
}

/// Returns the app, if it has that version.
pub(crate) fn of_version(
    shared: &GatewayState,
    model: &str,
    version: &str,
) -> Result<Arc<ServedApp>, Failure> {
    let app = shared.app(model)?;
    let known = versions(&app);
    if known.iter().any(|name| name == version) {
        return Ok(app);
    }
    let message = format!(
        "app `{model}` has no version `{}`; its versions are its variants {known:?}",
        shortened(version)
    );
    Err(Fault::new(Code::UnknownApp, message).into())
}

/// Returns inputs and outputs: those that the app's options state or its workers announce, and those of answered requests.
pub(crate) async fn tensors(app: &ServedApp) -> (Vec<TensorInfo>, Vec<TensorInfo>) {
    let announced = app.announced_signature().await;
    let learned = app.learned_signature();
    let known = app
        .options
        .signature
        .iter()
        .flat_map(|signature| &signature.inputs);
    let mut inputs: Vec<TensorInfo> = known
        .map(|input| TensorInfo {
            name: input.name.clone(),
            datatype: input.datatype,
            shape: input
                .shape
                .iter()
                .map(|extent| match extent {
                    Extent::Exactly(size) => i64::try_from(*size).unwrap_or(-1),
                    Extent::UpTo(_) | Extent::AtMost(_) | Extent::Tokens(_) => -1,
                })
                .collect(),
        })
        .collect();
    if inputs.is_empty() {
        inputs = announced.inputs;
    }
    if inputs.is_empty() {
        inputs = learned.inputs;
    }
    let mut outputs = announced.outputs;
    merge(&mut outputs, &learned.outputs);
    (inputs, outputs)
}

async fn metadata(app: &ServedApp, versions: &[String]) -> Value {
    let (inputs, outputs) = tensors(app).await;
    let list = |tensors: Vec<TensorInfo>| -> Vec<Value> {
        let tensors = tensors.into_iter();
        tensors
            .map(|tensor| json!({"name": tensor.name, "datatype": tensor.datatype.name(), "shape": tensor.shape}))
            .collect()
    };
    json!({
        "name": app.options.name,
        "versions": versions,
        "platform": "kaskade",
        "inputs": list(inputs),
        "outputs": list(outputs),
    })
}

/// Returns the configuration as Triton's clients read it. Requests have no batch dimension: the app batches by itself.
async fn configuration(app: &ServedApp) -> Value {
    let (inputs, outputs) = tensors(app).await;
    let list = |tensors: Vec<TensorInfo>| -> Vec<Value> {
        let tensors = tensors.into_iter();
        tensors
            .map(|tensor| {
                let datatype = match tensor.datatype {
                    Datatype::Bytes => "TYPE_STRING".to_owned(),
                    other => format!("TYPE_{}", other.name()),
                };
                json!({"name": tensor.name, "data_type": datatype, "dims": tensor.shape})
            })
            .collect()
    };
    json!({
        "name": app.options.name,
        "platform": "kaskade",
        "backend": "kaskade",
        "max_batch_size": 0,
        "input": list(inputs),
        "output": list(outputs),
        "model_transaction_policy": {"decoupled": false},
    })
}
