//! The endpoints of text-embeddings-inference: `/predict`, `/rerank`, `/embed`, and `/` for the first and the last. They serve the gateway's only app, or the one
//! that the header `x-kaskade-app` names.

mod rerank;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::routing::post;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_models::entities::{self, AGGREGATION_STRATEGY, Entity};
use kaskade_models::{Tensor, tokens_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::Api;
use crate::body;
use crate::call::Call;
use crate::failure::Failure;
use crate::fields::{self, or_default};
use crate::oip::json_response;
use crate::openai::embedding;
use crate::shared::Shared;

/// Largest number of texts of one request.
const MAX_TEXTS: usize = 2_048;

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/", post(root))
        .route("/predict", post(predict))
        .route("/rerank", post(rerank::texts))
        .route("/v1/rerank", post(rerank::documents))
        .route("/v2/rerank", post(rerank::documents))
        .route("/embed", post(embed))
}

/// A text or a pair of texts, or many of them.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`inputs` must be a text, a pair of texts, or a list of these"
)]
enum Sequences {
    One(Sequence),
    Many(Vec<Sequence>),
}

/// A text, or an array of one text or two.
#[derive(Deserialize)]
#[serde(untagged)]
enum Sequence {
    Text(String),
    Array(Vec<String>),
}

impl Sequence {
    fn texts(&self) -> &[String] {
        match self {
            Self::Text(text) => std::slice::from_ref(text),
            Self::Array(texts) => texts,
        }
    }
}

#[derive(Deserialize)]
struct Predict {
    inputs: Sequences,
    #[serde(default, deserialize_with = "or_default")]
    raw_scores: bool,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
}

/// Parameters as the Inference API of Hugging Face takes them.
#[derive(Deserialize, Default)]
struct Parameters {
    /// How a token classifier finds entities.
    aggregation_strategy: Option<String>,
    /// Number of classes to name.
    top_k: Option<usize>,
    /// How logits become scores: `softmax`, `sigmoid` or `none`.
    function_to_apply: Option<String>,
    /// Of zero-shot classification, which an app with classes of its own cannot answer.
    candidate_labels: Option<Value>,
}

impl Parameters {
    /// Refuses parameters that would be answered wrongly.
    fn check(&self) -> Result<(), Failure> {
        if self
            .candidate_labels
            .as_ref()
            .is_some_and(|labels| !labels.is_null())
        {
            let message = "`candidate_labels`: the app has classes of its own; for zero-shot classification send each label as \
                           `text_pair` of a text to an app of a model of inference, such as bart-large-mnli";
            return Err(Failure::malformed(message));
        }
        match self.function_to_apply.as_deref() {
            None | Some("softmax" | "sigmoid" | "none") => Ok(()),
            Some(other) => Err(Failure::malformed(format!(
                "`function_to_apply` is `{other}`; it is one of `softmax`, `sigmoid` and `none`"
            ))),
        }
    }

    /// How logits become scores, if the client says so.
    fn function(&self, raw_scores: bool) -> Option<&str> {
        self.function_to_apply.as_deref().or(raw_scores.then_some("none"))
    }
}

#[derive(Deserialize)]
struct Embed {
    inputs: Texts,
    #[serde(default)]
    normalize: Option<bool>,
}

/// A body of `/`, which the answer of the app tells to be one of `/predict` or of `/embed`.
#[derive(Deserialize)]
struct Root {
    inputs: Texts,
    #[serde(default, deserialize_with = "or_default")]
    raw_scores: bool,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    #[serde(default)]
    normalize: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`inputs` must be a text or a list of texts")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    fn into_list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// An answer, with the headers of text-embeddings-inference that say how much was computed for it.
struct Answered {
    value: Value,
    characters: usize,
    tokens: Option<u64>,
}

impl Answered {
    fn new(value: Value, characters: usize, replies: &[InferReply]) -> Self {
        let mut counts = replies.iter().map(|reply| tokens_of(&reply.outputs));
        let tokens = counts.try_fold(0, |sum: u64, count| Some(sum.saturating_add(count?[0])));
        Self {
            value,
            characters,
            tokens,
        }
    }
}

fn respond(result: Result<Answered, Failure>) -> Response<Body> {
    let answered = match result {
        Ok(answered) => answered,
        Err(failure) => return failure.response(Api::Tei),
    };
    let mut response = json_response(StatusCode::OK, answered.value.to_string());
    let headers = response.headers_mut();
    headers.insert("x-compute-characters", answered.characters.into());
    if let Some(tokens) = answered.tokens {
        headers.insert("x-compute-tokens", tokens.into());
    }
    response
}

/// Returns the number of characters of texts.
fn characters<'a>(texts: impl IntoIterator<Item = &'a String>) -> usize {
    texts.into_iter().map(|text| text.chars().count()).sum()
}

/// Reads a body and finds its app: by the header, else by what the body names, else the only one.
async fn begin<T: DeserializeOwned + Send + 'static>(
    shared: &Shared,
    request: Request,
    model: impl FnOnce(&T) -> Option<&str>,
) -> Result<(Call, T), Failure> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, &shared.limits).await?;
    let asked: T = body::process(body, |body| fields::read(body)).await?;
    let name = parts
        .headers
        .get("x-kaskade-app")
        .and_then(|name| name.to_str().ok());
    let app = shared.app_or_only(name.or_else(|| model(&asked)))?;
    let fallback = app.options.default_budget;
    Ok((
        Call::new(app, &parts.headers, &parts.extensions, fallback)?,
        asked,
    ))
}

async fn ask_all(call: &Call, inputs: Vec<Vec<Tensor>>) -> Result<Vec<InferReply>, Failure> {
    if inputs.is_empty() || inputs.len() > MAX_TEXTS {
        return Err(Failure::malformed(format!("send from 1 to {MAX_TEXTS} texts")));
    }
    let requests = inputs.into_iter().map(|inputs| InferRequest {
        inputs,
        ..InferRequest::default()
    });
    call.ask_all(requests.collect()).await
}

fn tensors(sequence: &Sequence) -> Result<Vec<Tensor>, Failure> {
    let pair = match sequence.texts() {
        [one] => [Some(one), None],
        [one, two] => [Some(one), Some(two)],
        _ => {
            return Err(Failure::malformed(
                "an array in `inputs` is a text or a pair of texts",
            ));
        }
    };
    let named = ["text", "text_pair"].into_iter().zip(pair);
    let tensors = named.filter_map(|(name, text)| text.map(|text| Tensor::from_texts(name, &[text])));
    Ok(tensors.collect::<Result<_, _>>()?)
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

/// Returns the entities of a text as transformers' token classification does; `None` if the reply has none to find.
fn entities_of(reply: &InferReply, strategy: Option<&str>) -> Result<Option<Value>, Failure> {
    let key = if strategy == Some("none") {
        "entity"
    } else {
        "entity_group"
    };
    let found = entities::of_outputs(&reply.outputs)?;
    let listed = found.map(|found| {
        let one = |entity: Entity| {
            json!({
                key: entity.label,
                "score": entity.score,
                "word": entity.word,
                "start": entity.start,
                "end": entity.end,
            })
        };
        found.into_iter().map(one).collect()
    });
    Ok(listed)
}

async fn predict(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, Predict) = begin(&shared, request, |_| None).await?;
        let (sequences, single) = match asked.inputs {
            Sequences::One(one) => (vec![one], true),
            Sequences::Many(many) => (many, false),
        };
        asked.parameters.check()?;
        let strategy = asked.parameters.aggregation_strategy.as_deref();
        let inputs = sequences
            .iter()
            .map(|sequence| with_strategy(tensors(sequence)?, strategy));
        let replies = ask_all(&call, inputs.collect::<Result<_, Failure>>()?).await?;
        let value = predictions(&call, &replies, single, asked.raw_scores, &asked.parameters)?;
        let texts = sequences.iter().flat_map(Sequence::texts);
        Ok(Answered::new(value, characters(texts), &replies))
    };
    respond(answered.await)
}

/// Returns the prediction of the only text, or the predictions of several.
fn predictions(
    call: &Call,
    replies: &[InferReply],
    single: bool,
    raw_scores: bool,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    let labels = &call.app.options.labels;
    let mut answers = replies
        .iter()
        .map(|reply| prediction(reply, labels, raw_scores, parameters));
    if single {
        return answers
            .next()
            .unwrap_or_else(|| Err(Failure::malformed("send a text")));
    }
    answers.collect::<Result<Vec<Value>, Failure>>().map(Value::from)
}

fn with_strategy(mut inputs: Vec<Tensor>, strategy: Option<&str>) -> Result<Vec<Tensor>, Failure> {
    if let Some(strategy) = strategy {
        inputs.push(Tensor::from_texts(AGGREGATION_STRATEGY, &[strategy])?);
    }
    Ok(inputs)
}

/// Returns the entities of a text, or its classes with the most probable one first.
fn prediction(
    reply: &InferReply,
    labels: &[String],
    raw_scores: bool,
    parameters: &Parameters,
) -> Result<Value, Failure> {
    if let Some(entities) = entities_of(reply, parameters.aggregation_strategy.as_deref())? {
        return Ok(entities);
    }
    let scores = class_scores(reply, parameters.function(raw_scores))?;
    let names = Some(labels).filter(|labels| labels.len() == scores.len());
    let name = |class: usize| {
        let name = names.and_then(|names| names.get(class)).cloned();
        name.unwrap_or_else(|| format!("LABEL_{class}"))
    };
    let mut labelled: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    labelled.sort_by(|one, other| other.1.total_cmp(&one.1));
    labelled.truncate(parameters.top_k.unwrap_or(usize::MAX));
    let labelled = labelled.into_iter();
    Ok(labelled
        .map(|(class, score)| json!({"score": score, "label": name(class)}))
        .collect())
}

/// Returns the scores of the classes: logits after the function, or else the model's own probabilities, or else those of its logits.
fn class_scores(reply: &InferReply, function: Option<&str>) -> Result<Vec<f32>, Failure> {
    let logits = scores(reply)?;
    let sigmoid = |logit: &f32| 1.0 / (1.0 + (-logit).exp());
    Ok(match function {
        Some("none") => logits,
        Some("sigmoid") => logits.iter().map(sigmoid).collect(),
        Some(_) => softmax(&logits),
        None => {
            // A classifier of several labels judges each by itself.
            let own = reply.outputs.iter().find(|output| output.name == "probabilities");
            let own = own.map(Tensor::to_f32).transpose()?;
            let own = own.filter(|own| own.len() == logits.len());
            own.unwrap_or_else(|| probabilities(&logits))
        }
    })
}

/// Answers as `/embed` if the app gives embeddings and no `logits`, and else as `/predict`. Hugging Face's `InferenceClient` sends
/// the requests of all tasks to the address that it is given.
async fn root(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, Root) = begin(&shared, request, |_| None).await?;
        let single = matches!(asked.inputs, Texts::One(_));
        let texts = asked.inputs.into_list();
        asked.parameters.check()?;
        let strategy = asked.parameters.aggregation_strategy.as_deref();
        let inputs = texts
            .iter()
            .map(|text| with_strategy(vec![Tensor::from_texts("text", &[text])?], strategy));
        let replies = ask_all(&call, inputs.collect::<Result<_, Failure>>()?).await?;
        let embeds = replies.iter().all(|reply| {
            let has_logits = reply.outputs.iter().any(|output| output.name == "logits");
            !has_logits && embedding(reply).is_ok()
        });
        let value = if embeds {
            vectors(&replies, asked.normalize)?
        } else {
            predictions(&call, &replies, single, asked.raw_scores, &asked.parameters)?
        };
        Ok(Answered::new(value, characters(&texts), &replies))
    };
    respond(answered.await)
}

async fn embed(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, Embed) = begin(&shared, request, |_| None).await?;
        let texts = asked.inputs.into_list();
        let inputs = texts
            .iter()
            .map(|text| Ok(vec![Tensor::from_texts("text", &[text])?]));
        let replies = ask_all(&call, inputs.collect::<Result<_, Failure>>()?).await?;
        let value = vectors(&replies, asked.normalize)?;
        Ok(Answered::new(value, characters(&texts), &replies))
    };
    respond(answered.await)
}

/// Returns the embeddings, of length 1 unless `normalize` is false.
fn vectors(replies: &[InferReply], normalize: Option<bool>) -> Result<Value, Failure> {
    let vectors = replies.iter().map(|reply| {
        let mut vector = embedding(reply)?;
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        if normalize.unwrap_or(true) && length > 0.0 {
            for value in &mut vector {
                *value /= length;
            }
        }
        Ok(vector)
    });
    Ok(json!(vectors.collect::<Result<Vec<_>, Failure>>()?))
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

    #[test]
    fn classes_have_names_and_scores_as_asked() {
        let reply = |outputs: Vec<Tensor>| InferReply {
            outputs,
            ..InferReply::default()
        };
        let logits = || Tensor::from_f32("logits", &[3], &[0.0, 2.0, -1.0]).unwrap();
        let several = reply(vec![
            logits(),
            Tensor::from_f32("probabilities", &[3], &[0.5, 0.9, 0.25]).unwrap(),
        ]);
        let labels = ["a", "b", "c"].map(ToOwned::to_owned);
        let asked = |parameters: &str| serde_json::from_str::<Parameters>(parameters).unwrap();
        let found = prediction(&several, &labels, false, &asked(r#"{"top_k": 2}"#)).unwrap();
        assert_eq!(
            found,
            json!([{"score": 0.9_f32, "label": "b"}, {"score": 0.5_f32, "label": "a"}])
        );
        let one = reply(vec![logits()]);
        let found = prediction(&one, &labels[..2], true, &asked("{}")).unwrap();
        assert_eq!(
            found[0],
            json!({"score": 2.0_f32, "label": "LABEL_1"}),
            "names of other classes are not used"
        );
        let found = prediction(
            &one,
            &labels,
            false,
            &asked(r#"{"function_to_apply": "sigmoid"}"#),
        )
        .unwrap();
        assert_eq!(found[1]["score"], json!(0.5_f32));
        assert!(asked(r#"{"candidate_labels": ["x"]}"#).check().is_err());
        assert!(asked(r#"{"function_to_apply": "tanh"}"#).check().is_err());
    }

    #[test]
    fn inputs_are_texts_pairs_or_batches() {
        let read = |json: &str| serde_json::from_str::<Predict>(json).unwrap().inputs;
        assert!(matches!(
            read(r#"{"inputs":"a"}"#),
            Sequences::One(Sequence::Text(_))
        ));
        let Sequences::One(pair) = read(r#"{"inputs":["a","b"]}"#) else {
            panic!("two texts are a pair");
        };
        assert_eq!(tensors(&pair).unwrap().len(), 2);
        assert!(matches!(read(r#"{"inputs":[["a"],["b","c"]]}"#), Sequences::Many(many) if many.len() == 2));
        assert!(tensors(&Sequence::Array(vec![])).is_err());
    }
}
