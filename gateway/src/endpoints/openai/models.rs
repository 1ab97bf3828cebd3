//! The model endpoints; the models are the apps of the gateway.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::path_params::Path;
use crate::state::{GatewayState, ServedApp};

pub(super) async fn all(State(shared): State<Arc<GatewayState>>) -> Response<Body> {
    let apps: Vec<Value> = shared.apps().iter().map(|app| describe(app)).collect();
    json_response(
        StatusCode::OK,
        json!({"object": "list", "data": apps}).to_string(),
    )
}

pub(super) async fn one(
    State(shared): State<Arc<GatewayState>>,
    Path(model): Path<String>,
) -> Response<Body> {
    match shared.app(&model) {
        Ok(app) => json_response(StatusCode::OK, describe(&app).to_string()),
        Err(failure) => failure.response(Api::OpenAi),
    }
}

fn describe(app: &ServedApp) -> Value {
    let variants = app.state.plan().map(|(_, plan)| {
        let variants = plan.variants.iter().map(|variant| variant.name.clone());
        variants.collect::<Vec<_>>()
    });
    json!({
        "id": app.options.name,
        "object": "model",
        "created": app.created,
        "owned_by": "kaskade",
        "variants": variants,
    })
}
