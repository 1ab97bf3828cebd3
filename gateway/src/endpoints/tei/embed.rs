//! `/embed` and `/similarity`: embeddings of texts, and their similarity.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use kaskade_actors::wire::InferReply;
use kaskade_models::Tensor;
use serde::Deserialize;
use serde_json::{Value, json};

use super::truncation::Truncation;
use super::{Answered, ask_all, begin, characters, respond};
use crate::endpoints::openai::{NOT_EMBEDDING, embedding, normalise, of_dimensions, prompt_name};
use crate::http::failure::Failure;
use crate::http::json_body::or_default;
use crate::requests::call::Call;
use crate::state::GatewayState;

#[derive(Deserialize)]
struct Embed {
    inputs: Texts,
    #[serde(flatten)]
    truncation: Truncation,
    #[serde(flatten)]
    form: VectorForm,
}

/// Options of a text embedding.
#[derive(Deserialize, Default)]
pub(super) struct VectorForm {
    #[serde(default)]
    normalize: Option<bool>,
    /// Number of leading dimensions to keep.
    #[serde(default)]
    dimensions: Option<NonZeroUsize>,
    /// Name of a prompt of the model.
    #[serde(default)]
    prompt_name: Option<String>,
}

/// A text, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`inputs` must be a text or a list of texts")]
pub(super) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    pub(super) fn list(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

/// A text, and the texts that it is compared with.
#[derive(Deserialize)]
pub(super) struct Comparison {
    source_sentence: String,
    sentences: Vec<String>,
}

#[derive(Deserialize)]
struct Similarity {
    inputs: Comparison,
    #[serde(default, deserialize_with = "or_default")]
    parameters: VectorForm,
}

/// Answers `/embed`.
pub(super) async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, Embed) = begin(&shared, request, |_| None).await?;
        call.app.check_answer_kind(&NOT_EMBEDDING)?;
        let texts = asked.inputs.list();
        let sequences = texts.iter().map(|text| vec![text.as_str()]);
        let (truncation, prompt) = (&asked.truncation, asked.form.prompt_name.as_deref());
        truncation.check(&shared, &call.app, sequences, prompt).await?;
        let inputs = texts.iter().map(|text| asked.form.inputs(text));
        let replies = ask_all(&call, inputs.collect::<Result<_, Failure>>()?).await?;
        let value = vectors(&replies, &asked.form)?;
        Ok(Answered::new(&call, value, characters(texts), &replies))
    };
    respond(answered.await)
}

/// Answers `/similarity`.
pub(super) async fn similarity(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, Similarity) = begin(&shared, request, |_| None).await?;
        call.app.check_answer_kind(&NOT_EMBEDDING)?;
        compared(&call, &asked.inputs, &asked.parameters).await
    };
    respond(answered.await)
}

/// Returns the cosine similarity of the first text to each of the others.
pub(super) async fn compared(
    call: &Call,
    asked: &Comparison,
    form: &VectorForm,
) -> Result<Answered, Failure> {
    if asked.sentences.is_empty() {
        return Err(Failure::param(
            "sentences",
            "send at least one text to compare with",
        ));
    }
    let texts = || std::iter::once(&asked.source_sentence).chain(&asked.sentences);
    let inputs = texts().map(|text| form.inputs(text));
    let replies = ask_all(call, inputs.collect::<Result<_, Failure>>()?).await?;
    let mut vectors = Vec::with_capacity(replies.len());
    for reply in &replies {
        let mut vector = of_dimensions(embedding(reply)?, form.dimensions)?;
        normalise(&mut vector);
        vectors.push(vector);
    }
    let (source, others) = vectors
        .split_first()
        .map_or((&[][..], &[][..]), |(source, others)| (source, others));
    let cosine = |other: &Vec<f32>| {
        source
            .iter()
            .zip(other)
            .map(|(one, other)| one * other)
            .sum::<f32>()
    };
    let cosines: Vec<f32> = others.iter().map(cosine).collect();
    Ok(Answered::new(call, json!(cosines), characters(texts()), &replies))
}

impl VectorForm {
    /// Returns the inputs of an embedding request.
    pub(super) fn inputs(&self, text: &str) -> Result<Vec<Tensor>, Failure> {
        let text = Tensor::from_texts("text", &[text])?;
        let prompt = prompt_name(self.prompt_name.as_deref())?;
        Ok([text].into_iter().chain(prompt).collect())
    }
}

/// Returns the embeddings, normalised to unit length unless `normalize` is false.
pub(super) fn vectors(replies: &[InferReply], form: &VectorForm) -> Result<Value, Failure> {
    let vectors = replies.iter().map(|reply| {
        let mut vector = of_dimensions(embedding(reply)?, form.dimensions)?;
        if form.normalize.unwrap_or(true) {
            normalise(&mut vector);
        }
        Ok(vector)
    });
    Ok(json!(vectors.collect::<Result<Vec<_>, Failure>>()?))
}
