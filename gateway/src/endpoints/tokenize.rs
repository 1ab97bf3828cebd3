//! `/tokenize` in the forms of vLLM (`prompt` or `messages`) and text-embeddings-inference (`inputs`), vLLM's
//! `/detokenize` and text-embeddings-inference's `/decode`. The gateway answers by itself, without a request to the
//! app.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::endpoints::oip::json_response;
use crate::endpoints::openai::tokens as vllm;
use crate::endpoints::tei::tokens as tei;
use crate::http::api::Api;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::json_body;
use crate::state::GatewayState;

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<GatewayState>> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/decode", post(decode))
}

/// Detects a text-embeddings-inference body by its field.
#[derive(Deserialize)]
#[serde(expecting = "an object with the field `prompt`, `messages` or `inputs`")]
struct Form {
    inputs: Option<IgnoredAny>,
}

async fn tokenize(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let read = async {
        let body = shared.read_body(&parts, body).await?;
        let form: Form = process(body.clone()).await?;
        Ok::<_, Failure>((body, form.inputs.is_some()))
    };
    match read.await {
        Err(failure) => failure.response(Api::OpenAi),
        Ok((body, true)) => {
            let answered = async { tei::tokenize(&shared, &parts, process(body).await?).await };
            respond(answered.await, Api::Tei)
        }
        Ok((body, false)) => {
            let answered = async { vllm::tokenize(&shared, process(body).await?).await };
            respond(answered.await, Api::OpenAi)
        }
    }
}

async fn detokenize(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answered = async {
        let body = shared.read_body(&parts, body).await?;
        vllm::detokenize(&shared, process(body).await?).await
    };
    respond(answered.await, Api::OpenAi)
}

async fn decode(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answered = async {
        let body = shared.read_body(&parts, body).await?;
        tei::decode(&shared, &parts, process(body).await?).await
    };
    respond(answered.await, Api::Tei)
}

async fn process<T: DeserializeOwned + Send + 'static>(body: axum::body::Bytes) -> Result<T, Failure> {
    body::process(body, |body| json_body::read(body)).await
}

/// Returns the response of an answer (JSON text with headers).
fn respond(answered: Result<(String, HeaderMap), Failure>, api: Api) -> Response<Body> {
    match answered {
        Ok((json, headers)) => {
            let mut response = json_response(StatusCode::OK, json);
            response.headers_mut().extend(headers);
            response
        }
        Err(failure) => failure.response(api),
    }
}
