//! `/rerank` in the form of text-embeddings-inference, and in that of Cohere and Jina, which vLLM and `LiteLLM` have (`documents`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode, header};
use kaskade_actors::ids;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_models::Tensor;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::truncation::{Truncation, check_documents};
use super::{Answered, ask_all, begin, characters, check_count, probabilities, respond, scores, tokens};
use crate::answer_kind::AnswerKind;
use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::json_body::{self, or_default};
use crate::requests::call::Call;
use crate::state::GatewayState;

#[derive(Deserialize)]
struct TeiRequest {
    query: String,
    texts: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    raw_scores: bool,
    #[serde(default, deserialize_with = "or_default")]
    return_text: bool,
    #[serde(flatten)]
    truncation: Truncation,
}

/// The field by which a body of Cohere's form is recognised: some clients of vLLM and Infinity send it to `/rerank`.
#[derive(Deserialize)]
#[serde(expecting = "an object with the field `texts` or `documents`")]
struct Form {
    documents: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct CohereRequest {
    #[serde(default)]
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    /// Number of results; all if it is 0, as vLLM's clients send it.
    #[serde(default)]
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: Option<bool>,
    /// Tokens after which documents are cut off.
    #[serde(default)]
    max_tokens_per_doc: Option<usize>,
}

/// Documents that Cohere counts as one search.
const SEARCH_UNIT: usize = 100;

/// Kinds of apps that score no pairs of texts.
const NOT_RANKING: [AnswerKind; 3] = [AnswerKind::Text, AnswerKind::Embedding, AnswerKind::Span];

/// A document: a text, or an object that holds one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a document is a text or an object with a `text`")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// Answers as text-embeddings-inference does; a body with `documents` as Cohere does.
pub(super) async fn texts(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let read = async {
        let body = shared.read_body(&parts, body).await?;
        let form: Form = body::process(body.clone(), |body| json_body::read(body)).await?;
        Ok::<_, Failure>((body, form.documents.is_some()))
    };
    let read = read.await;
    // The body that was read is not compressed any more.
    parts.headers.remove(header::CONTENT_ENCODING);
    match read {
        Err(failure) => failure.response(Api::Tei),
        Ok((body, has_documents)) => {
            let request = Request::from_parts(parts, Body::from(body));
            if has_documents {
                documents(State(shared), request).await
            } else {
                of_texts(&shared, request).await
            }
        }
    }
}

async fn of_texts(shared: &GatewayState, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, TeiRequest) = begin(shared, request, |_| None).await?;
        call.app.check_answer_kind(&NOT_RANKING)?;
        let pairs = asked.texts.iter().map(|text| vec![asked.query.as_str(), text]);
        asked.truncation.check(shared, &call.app, pairs, None).await?;
        let call = call.of_many_parts();
        let (scores, replies) = ranked(&call, &asked.query, &asked.texts, asked.raw_scores).await?;
        let ranks = in_order(scores).into_iter().map(|(index, score)| {
            let text = asked.texts.get(index).filter(|_| asked.return_text);
            match text {
                Some(text) => json!({"index": index, "score": score, "text": text}),
                None => json!({"index": index, "score": score}),
            }
        });
        let value = Value::from(ranks.collect::<Vec<_>>());
        // As text-embeddings-inference counts: the query once.
        let texts = std::iter::once(&asked.query).chain(&asked.texts);
        Ok(Answered::new(&call, value, characters(texts), &replies))
    };
    respond(answered.await)
}

/// Answers as Cohere and Jina do.
pub(super) async fn documents(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, CohereRequest) =
            begin(&shared, request, |asked: &CohereRequest| asked.model.as_deref()).await?;
        call.app.check_answer_kind(&NOT_RANKING)?;
        let call = call.of_many_parts();
        let texts: Vec<String> = asked.documents.into_iter().map(Document::into_text).collect();
        check_count(texts.len())?;
        if let Some(max_tokens) = asked.max_tokens_per_doc {
            check_documents(&shared, &call.app, &texts, max_tokens).await?;
        }
        let (scores, replies) = ranked(&call, &asked.query, &texts, false).await?;
        let shown = asked.return_documents.unwrap_or(true);
        let results = in_order(scores)
            .into_iter()
            .take(asked.top_n.filter(|most| *most > 0).unwrap_or(usize::MAX));
        let results = results.map(|(index, score)| {
            let text = texts.get(index).filter(|_| shown);
            match text {
                Some(text) => json!({"index": index, "relevance_score": score, "document": {"text": text}}),
                None => json!({"index": index, "relevance_score": score}),
            }
        });
        let results: Vec<Value> = results.collect();
        let tokens = tokens(&replies);
        Ok(json!({
            "id": format!("rerank-{}", ids::unique_token()),
            "model": call.app.options.name,
            "results": results,
            "usage": {"total_tokens": tokens.unwrap_or_default()},
            "meta": {"billed_units": {"search_units": texts.len().div_ceil(SEARCH_UNIT)}},
        }))
    };
    let answered: Result<Value, Failure> = answered.await;
    match answered {
        Ok(value) => json_response(StatusCode::OK, value.to_string()),
        Err(failure) => failure.response(Api::OpenAi),
    }
}

/// Returns the scores with their places, the largest first.
fn in_order(scores: Vec<f32>) -> Vec<(usize, f32)> {
    let mut ranks: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranks.sort_by(|one, other| other.1.total_cmp(&one.1));
    ranks
}

/// Returns the scores of the texts, and the replies that gave them.
async fn ranked(
    call: &Call,
    query: &str,
    texts: &[String],
    raw_scores: bool,
) -> Result<(Vec<f32>, Vec<InferReply>), Failure> {
    check_count(texts.len())?;
    if !ranks_passages(call) {
        return pairs(call, query, texts, raw_scores).await;
    }
    let [only] = texts else {
        return passages(call, query, texts, raw_scores).await;
    };
    // A ranking takes at least two texts. Scores do not depend on the other texts, so that the first one is that of the text alone.
    let twice = [only.clone(), only.clone()];
    let (mut scores, replies) = passages(call, query, &twice, raw_scores).await?;
    scores.truncate(1);
    Ok((scores, replies))
}

/// Returns whether the app takes a query with all of its passages.
fn ranks_passages(call: &Call) -> bool {
    let signature = call.app.options.signature.as_ref();
    signature.is_some_and(|signature| signature.inputs.iter().any(|input| input.name == "passages"))
}

/// Returns the scores of the texts, by one request, and its reply.
async fn passages(
    call: &Call,
    query: &str,
    texts: &[String],
    raw_scores: bool,
) -> Result<(Vec<f32>, Vec<InferReply>), Failure> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let inputs = vec![
        Tensor::from_texts("query", &[query])?,
        Tensor::from_texts("passages", &texts)?,
    ];
    let reply = call.ask(InferRequest {
        inputs,
        ..InferRequest::default()
    });
    let reply = reply.await?;
    let name = if raw_scores { "logits" } else { "scores" };
    let scores = reply.outputs.iter().find(|output| output.name == name);
    let scores = scores.map(Tensor::to_f32).transpose()?;
    let scores = scores.filter(|scores| scores.len() == texts.len());
    let scores = scores
        .ok_or_else(|| Failure::wrong_kind(format!("the app gives no `{name}`, one for each passage")))?;
    Ok((scores, vec![reply]))
}

/// Returns the scores of the texts, by a request for each, and the replies.
async fn pairs(
    call: &Call,
    query: &str,
    texts: &[String],
    raw_scores: bool,
) -> Result<(Vec<f32>, Vec<InferReply>), Failure> {
    let inputs = texts.iter().map(|text| {
        let query = Tensor::from_texts("text", &[query])?;
        Ok(vec![query, Tensor::from_texts("text_pair", &[text])?])
    });
    let replies = ask_all(call, inputs.collect::<Result<_, Failure>>()?).await?;
    let score = |reply: &InferReply| {
        let logits = scores(reply)?;
        // The last class is the relevant one; a cross-encoder has one.
        let scores = if raw_scores {
            logits
        } else {
            probabilities(&logits)
        };
        Ok(scores.last().copied().unwrap_or_default())
    };
    let scores = replies.iter().map(score).collect::<Result<_, Failure>>()?;
    Ok((scores, replies))
}
