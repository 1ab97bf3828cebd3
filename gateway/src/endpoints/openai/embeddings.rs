//! `/v1/embeddings`: vectors as floats, or as base64 of little-endian f32.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_actors::{Code, Fault};
use kaskade_models::{EMBEDDING_OUTPUTS, PROMPT_NAME, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::choice;
use super::completions::{Prompts, begin};
use crate::answer_kind::AnswerKind;
use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::failure::Failure;
use crate::state::GatewayState;

/// Kinds of apps that give no embeddings.
pub(crate) const NOT_EMBEDDING: [AnswerKind; 3] = [AnswerKind::Text, AnswerKind::Relevance, AnswerKind::Span];

#[derive(Deserialize)]
struct Embeddings {
    #[serde(default)]
    model: Option<String>,
    input: Prompts,
    #[serde(default)]
    encoding_format: Option<String>,
    #[serde(default)]
    dimensions: Option<NonZeroUsize>,
    /// Not of OpenAI: a prompt of the model.
    #[serde(default)]
    prompt_name: Option<String>,
    /// Of vLLM: tokens after which a text is cut off.
    #[serde(default)]
    truncate_prompt_tokens: Option<i64>,
}

/// The `truncate_prompt_tokens` that means those that the model reads.
const ALL_TOKENS: i64 = -1;

/// The answer; as a value of its own, because a float of 32 bits has fewer digits than the same one of 64.
#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: Vec<Item>,
    model: &'a str,
    usage: Value,
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

/// Returns the embedding in a reply.
///
/// # Errors
/// `KSK0003` if the app gives none.
pub(crate) fn embedding(reply: &InferReply) -> Result<Vec<f32>, Failure> {
    let found = EMBEDDING_OUTPUTS
        .iter()
        .find_map(|name| reply.outputs.iter().find(|output| output.name == *name));
    let vector = found.map(Tensor::to_f32).transpose()?;
    vector.ok_or_else(|| {
        let names: Vec<&str> = reply.outputs.iter().map(|output| output.name.as_str()).collect();
        let message = format!(
            "the app gives no embedding (an output of one of the names {EMBEDDING_OUTPUTS:?}), but {names:?}"
        );
        Failure::wrong_kind(message)
    })
}

/// Returns the first dimensions of a vector, as a vector of length 1: Matryoshka representations (Kusupati et al. 2022) keep most of
/// their meaning. A vector of as many dimensions, or without a wish, stays as it is.
///
/// # Errors
/// `KSK0001` if the vector has fewer dimensions.
pub(crate) fn of_dimensions(
    mut vector: Vec<f32>,
    dimensions: Option<NonZeroUsize>,
) -> Result<Vec<f32>, Failure> {
    let Some(wanted) = dimensions.map(NonZeroUsize::get) else {
        return Ok(vector);
    };
    if wanted > vector.len() {
        let message = format!("the model gives {} dimensions, not {wanted}", vector.len());
        return Err(Failure::param("dimensions", message));
    }
    if wanted < vector.len() {
        vector.truncate(wanted);
        normalise(&mut vector);
    }
    Ok(vector)
}

/// Divides a vector by its length, unless that is 0.
pub(crate) fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        for value in vector {
            *value /= length;
        }
    }
}

/// Returns the input that names a prompt of the model.
pub(crate) fn prompt_name(name: Option<&str>) -> Result<Option<Tensor>, Failure> {
    let input = name.map(|name| Tensor::from_texts(PROMPT_NAME, &[name]));
    Ok(input.transpose()?)
}

pub(super) async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = embed(&shared, request).await;
    answered.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

async fn embed(shared: &GatewayState, request: Request) -> Result<Response<Body>, Failure> {
    let (call, asked): (_, Embeddings) =
        begin(shared, request, |asked: &Embeddings| asked.model.as_deref()).await?;
    call.app.check_answer_kind(&NOT_EMBEDDING)?;
    if asked
        .truncate_prompt_tokens
        .is_some_and(|count| count != ALL_TOKENS)
    {
        let message = "`truncate_prompt_tokens` is not supported; shorten the texts: the model cuts off the end of longer ones";
        return Err(Failure::param("truncate_prompt_tokens", message));
    }
    let in_base64 = match asked.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(Failure::param(
                "encoding_format",
                "it must be `float` or `base64`",
            ));
        }
    };
    let prompts = asked.input.each("input")?;
    let sent: Vec<Option<i64>> = prompts.iter().map(super::completions::Prompt::tokens).collect();
    let inputs = prompts
        .iter()
        .map(super::completions::Prompt::input)
        .collect::<Result<Vec<_>, _>>()?;
    let prompt_name = prompt_name(asked.prompt_name.as_deref())?;
    let requests = inputs.into_iter().map(|input| InferRequest {
        inputs: [input].into_iter().chain(prompt_name.clone()).collect(),
        ..InferRequest::default()
    });
    let replies = call.ask_all(requests.collect()).await?;
    let mut data = Vec::new();
    for (index, reply) in replies.iter().enumerate() {
        let vector = of_dimensions(embedding(reply)?, asked.dimensions)?;
        let embedding = if in_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            Vector::Base64(BASE64.encode(bytes))
        } else {
            Vector::Floats(vector)
        };
        data.push(Item {
            object: "embedding",
            index,
            embedding,
        });
    }
    let counts = sent.into_iter().zip(&replies);
    let tokens: Option<Vec<i64>> = counts
        .map(|(sent, reply)| sent.or_else(|| choice::usage(reply).map(|[prompt, _]| prompt)))
        .collect();
    // Clients add counts up and fail at null.
    let tokens = tokens
        .unwrap_or_default()
        .into_iter()
        .fold(0, i64::saturating_add);
    let kaskade: Vec<Value> = replies.iter().map(|reply| call.description(reply)).collect();
    let body = Answer {
        object: "list",
        data,
        model: &call.app.options.name,
        usage: json!({"prompt_tokens": tokens, "total_tokens": tokens, "kaskade": kaskade}),
    };
    let body = serde_json::to_vec(&body)
        .map_err(|error| Failure::from(Fault::new(Code::BadOutput, error.to_string())))?;
    let mut response = json_response(StatusCode::OK, body);
    if let [reply] = replies.as_slice() {
        call.describe(reply, response.headers_mut());
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_dimensions_are_the_first_ones_of_length_one() {
        let of = |wanted: usize| of_dimensions(vec![3.0, 4.0, 12.0], NonZeroUsize::new(wanted));
        assert_eq!(of(2), Ok(vec![0.6, 0.8]));
        assert_eq!(of(3), Ok(vec![3.0, 4.0, 12.0]));
        assert_eq!(of(4).unwrap_err().param.as_deref(), Some("dimensions"));
        assert_eq!(of_dimensions(vec![0.0, 0.0], NonZeroUsize::new(1)), Ok(vec![0.0]));
        assert_eq!(of_dimensions(vec![3.0], None), Ok(vec![3.0]));
    }
}
