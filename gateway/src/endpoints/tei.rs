//! The endpoints of text-embeddings-inference, `/predict`, `/rerank`, `/embed` and `/similarity`, and `/`, which
//! answers like Hugging Face's Inference API. They serve the gateway's only app, or the one named in the header
//! `x-kaskade-app`.

mod embed;
mod hugging_face;
mod predict;
mod rerank;
pub(crate) mod tokens;
mod truncation;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_models::{Tensor, tokens_of};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::json_body;
use crate::requests::call::Call;
use crate::state::{GatewayState, ServedApp};

/// Largest number of texts in one request.
const MAX_TEXTS: usize = 2_048;

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<GatewayState>> {
    Router::new()
        .route("/", post(hugging_face::root))
        .route("/predict", post(predict::create))
        .route("/rerank", post(rerank::texts))
        .route("/v1/rerank", post(rerank::documents))
        .route("/v2/rerank", post(rerank::documents))
        .route("/embed", post(embed::create))
        .route("/similarity", post(embed::similarity))
}

/// An answer with the headers of text-embeddings-inference on the computation, and those that describe how a single
/// request was answered.
struct Answered {
    described: HeaderMap,
    value: Value,
    characters: usize,
    tokens: Option<u64>,
}

impl Answered {
    fn new(call: &Call, value: Value, characters: usize, replies: &[InferReply]) -> Self {
        let mut described = HeaderMap::new();
        if let [reply] = replies {
            call.describe(reply, &mut described);
        }
        Self {
            described,
            value,
            characters,
            tokens: tokens(replies),
        }
    }
}

/// Returns the number of tokens that the answers used; `None` if one answer does not count them.
fn tokens(replies: &[InferReply]) -> Option<u64> {
    let mut counts = replies.iter().map(|reply| tokens_of(&reply.outputs));
    counts.try_fold(0, |sum: u64, count| Some(sum.saturating_add(count?[0])))
}

fn respond(result: Result<Answered, Failure>) -> Response<Body> {
    let answered = match result {
        Ok(answered) => answered,
        Err(failure) => return failure.response(Api::Tei),
    };
    let mut response = json_response(StatusCode::OK, answered.value.to_string());
    let headers = response.headers_mut();
    headers.extend(answered.described);
    headers.insert("x-compute-characters", answered.characters.into());
    if let Some(tokens) = answered.tokens {
        headers.insert("x-compute-tokens", tokens.into());
    }
    response
}

/// Returns the number of characters in texts.
fn characters<'a>(texts: impl IntoIterator<Item = &'a String>) -> usize {
    texts.into_iter().map(|text| text.chars().count()).sum()
}

/// Reads a body and finds its app: named in the header, else in the body, else the only one.
async fn begin<T: DeserializeOwned + Send + 'static>(
    shared: &GatewayState,
    request: Request,
    model: impl FnOnce(&T) -> Option<&str>,
) -> Result<(Call, T), Failure> {
    let (parts, body) = request.into_parts();
    let body = shared.read_body(&parts, body).await?;
    let asked: T = body::process(body, |body| json_body::read(body)).await?;
    Ok((call(shared, &parts, model(&asked))?, asked))
}

/// Starts the request of a body that may name its app.
fn call(shared: &GatewayState, parts: &Parts, named: Option<&str>) -> Result<Call, Failure> {
    let app = app_of(shared, parts, named)?;
    let fallback = app.options.default_budget;
    Call::new(app, &parts.headers, &parts.extensions, fallback)
}

/// Finds the app of a request: named in the header, else in the body, else the only one.
fn app_of(shared: &GatewayState, parts: &Parts, named: Option<&str>) -> Result<Arc<ServedApp>, Failure> {
    let header = parts.headers.get("x-kaskade-app");
    let header = header.and_then(|name| name.to_str().ok());
    shared.app_or_only(header.or(named))
}

async fn ask_all(call: &Call, inputs: Vec<Vec<Tensor>>) -> Result<Vec<InferReply>, Failure> {
    check_count(inputs.len())?;
    let requests = inputs.into_iter().map(|inputs| InferRequest {
        inputs,
        ..InferRequest::default()
    });
    let requests: Vec<InferRequest> = requests.collect();
    if requests.len() > 1 {
        return call.clone().of_many_parts().ask_all(requests).await;
    }
    call.ask_all(requests).await
}

/// Checks that there are texts, but not too many.
fn check_count(texts: usize) -> Result<(), Failure> {
    if (1..=MAX_TEXTS).contains(&texts) {
        return Ok(());
    }
    Err(Failure::malformed(format!("send from 1 to {MAX_TEXTS} texts")))
}

/// Returns the scores of the classes.
fn scores(reply: &InferReply) -> Result<Vec<f32>, Failure> {
    let logits = reply
        .outputs
        .iter()
        .find(|output| output.name == "logits")
        .map(Tensor::to_f32)
        .transpose()?;
    logits
        .filter(|logits| !logits.is_empty())
        .ok_or_else(|| Failure::wrong_kind("the app gives no `logits`; is it a classifier of texts?"))
}

fn probabilities(logits: &[f32]) -> Vec<f32> {
    if let [one] = logits {
        return vec![1.0 / (1.0 + (-one).exp())];
    }
    softmax(logits)
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_logit_is_a_sigmoid_and_several_a_softmax() {
        assert_eq!(probabilities(&[0.0]), [0.5]);
        let two = probabilities(&[1000.0, 1000.0]);
        assert_eq!(two, [0.5, 0.5], "large logits do not overflow");
    }
}
