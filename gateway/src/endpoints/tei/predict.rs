//! `/predict`: the classes of texts and of pairs of texts, and the entities of texts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use kaskade_actors::wire::InferReply;
use kaskade_models::Tensor;
use kaskade_models::entities::{self, AGGREGATION_STRATEGY, Entity};
use serde::Deserialize;
use serde_json::{Value, json};

use super::truncation::Truncation;
use super::{Answered, ask_all, begin, characters, probabilities, respond, scores, softmax};
use crate::answer_kind::AnswerKind;
use crate::http::failure::Failure;
use crate::http::json_body::or_default;
use crate::requests::call::Call;
use crate::state::GatewayState;

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
    #[serde(flatten)]
    truncation: Truncation,
}

/// Parameters as the Inference API of Hugging Face takes them.
#[derive(Deserialize, Default)]
pub(super) struct Parameters {
    /// How a token classifier finds entities.
    pub(super) aggregation_strategy: Option<String>,
    /// Number of classes to name.
    top_k: Option<usize>,
    /// How logits become scores: `softmax`, `sigmoid` or `none`.
    function_to_apply: Option<String>,
    /// Of zero-shot classification, which an app with classes of its own cannot answer.
    candidate_labels: Option<Value>,
    /// Labels of entities that are left out.
    ignore_labels: Option<Vec<String>>,
    /// Parameters of the Inference API that are not supported.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Parameters of a token classifier that are not supported.
const OF_ENTITIES: [&str; 1] = ["stride"];

/// Parameters of a question that are not supported.
const OF_QUESTIONS: [&str; 5] = [
    "doc_stride",
    "handle_impossible_answer",
    "max_answer_len",
    "max_question_len",
    "max_seq_len",
];

impl Parameters {
    /// Refuses parameters that would be answered wrongly.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self
            .candidate_labels
            .as_ref()
            .is_some_and(|labels| !labels.is_null())
        {
            let message = "`candidate_labels`: the app has classes of its own; for zero-shot classification send each label as \
                           `text_pair` of a text to an app of a model of inference, such as bart-large-mnli";
            return Err(Failure::malformed(message));
        }
        self.refuse(&OF_ENTITIES)?;
        match self.function_to_apply.as_deref() {
            None | Some("softmax" | "sigmoid" | "none") => Ok(()),
            Some(other) => Err(Failure::malformed(format!(
                "`function_to_apply` is `{other}`; it is one of `softmax`, `sigmoid` and `none`"
            ))),
        }
    }

    /// Refuses parameters of a question that would be answered wrongly.
    pub(super) fn check_question(&self) -> Result<(), Failure> {
        if self.top_k.is_some_and(|count| count > 1) {
            return Err(Failure::param("top_k", "`top_k`: a question has one answer here"));
        }
        self.refuse(&OF_QUESTIONS)
    }

    /// Refuses the first of these parameters that the client sets.
    fn refuse(&self, names: &[&'static str]) -> Result<(), Failure> {
        let is_set = |name: &&&str| {
            let value = self.others.get(**name);
            value.is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
        };
        match names.iter().find(is_set) {
            Some(name) => Err(Failure::param(
                *name,
                format!("`{name}` is not supported; leave it out"),
            )),
            None => Ok(()),
        }
    }

    /// Returns whether an entity of this label is left out.
    fn ignores(&self, label: &str) -> bool {
        self.ignore_labels
            .iter()
            .flatten()
            .any(|ignored| ignored == label)
    }

    /// Returns the function that makes scores of logits, if the client names one.
    fn function(&self, raw_scores: bool) -> Option<&str> {
        self.function_to_apply.as_deref().or(raw_scores.then_some("none"))
    }
}

/// Returns the entities of a text as transformers' token classification does; `None` if the reply has none to find.
fn entities_of(reply: &InferReply, parameters: &Parameters) -> Result<Option<Value>, Failure> {
    let key = if parameters.aggregation_strategy.as_deref() == Some("none") {
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
        let found = found.into_iter();
        found
            .filter(|entity| !parameters.ignores(&entity.label))
            .map(one)
            .collect()
    });
    Ok(listed)
}

/// Answers `/predict`.
pub(super) async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = async {
        let (call, asked): (_, Predict) = begin(&shared, request, |_| None).await?;
        call.app
            .check_answer_kind(&[AnswerKind::Text, AnswerKind::Embedding, AnswerKind::Span])?;
        let (sequences, single) = match asked.inputs {
            Sequences::One(one) => (vec![one], true),
            Sequences::Many(many) => (many, false),
        };
        asked.parameters.check()?;
        let strategy = asked.parameters.aggregation_strategy.as_deref();
        let inputs = sequences
            .iter()
            .map(|sequence| with_strategy(tensors(sequence)?, strategy));
        let inputs = inputs.collect::<Result<_, Failure>>()?;
        let texts = |sequence| Sequence::texts(sequence).iter().map(String::as_str).collect();
        let read = sequences.iter().map(texts);
        asked.truncation.check(&shared, &call.app, read, None).await?;
        let replies = ask_all(&call, inputs).await?;
        let value = predictions(&call, &replies, single, asked.raw_scores, &asked.parameters)?;
        let texts = sequences.iter().flat_map(Sequence::texts);
        Ok(Answered::new(&call, value, characters(texts), &replies))
    };
    respond(answered.await)
}

/// Returns the prediction of the only text, or the predictions of several.
pub(super) fn predictions(
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

/// Adds the strategy by which a token classifier finds entities.
pub(super) fn with_strategy(mut inputs: Vec<Tensor>, strategy: Option<&str>) -> Result<Vec<Tensor>, Failure> {
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
    if let Some(entities) = entities_of(reply, parameters)? {
        return Ok(entities);
    }
    let scores = class_scores(reply, parameters.function(raw_scores))?;
    let names = Some(labels).filter(|labels| labels.len() == scores.len());
    let mut labelled: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    labelled.sort_by(|one, other| other.1.total_cmp(&one.1));
    // An endpoint may name the class that it chose, and no other.
    let first = labelled.first().map(|(class, _)| *class);
    let chosen = |class| only_label(reply).filter(|_| first == Some(class));
    let name = |class: usize| {
        let name = names.and_then(|names| names.get(class)).cloned();
        name.or_else(|| chosen(class))
            .unwrap_or_else(|| format!("LABEL_{class}"))
    };
    labelled.truncate(parameters.top_k.unwrap_or(usize::MAX));
    let labelled = labelled.into_iter();
    Ok(labelled
        .map(|(class, score)| json!({"score": score, "label": name(class)}))
        .collect())
}

/// Returns the name of the class that the model chose, if it states one.
fn only_label(reply: &InferReply) -> Option<String> {
    let output = reply.outputs.iter().find(|output| output.name == "label")?;
    match output.to_texts().ok()?.as_slice() {
        [label] => Some((*label).to_owned()),
        _ => None,
    }
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

fn tensors(sequence: &Sequence) -> Result<Vec<Tensor>, Failure> {
    let pair = match sequence.texts() {
        [one] => [Some(one), None],
        [one, two] => [Some(one), Some(two)],
        _ => {
            return Err(Failure::malformed(
                "an array in `inputs` is a text or a pair of texts; send several texts as `[[\"a\"], [\"b\"], [\"c\"]]`",
            ));
        }
    };
    let named = ["text", "text_pair"].into_iter().zip(pair);
    let tensors = named.filter_map(|(name, text)| text.map(|text| Tensor::from_texts(name, &[text])));
    Ok(tensors.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let label = Tensor::from_texts("label", &["good"]).unwrap();
        let found = prediction(&reply(vec![logits(), label]), &[], false, &asked("{}")).unwrap();
        let names: Vec<&Value> = found
            .as_array()
            .unwrap()
            .iter()
            .map(|one| &one["label"])
            .collect();
        assert_eq!(
            names,
            ["good", "LABEL_0", "LABEL_2"],
            "the only name that is known"
        );
        assert!(asked(r#"{"candidate_labels": ["x"]}"#).check().is_err());
        assert!(asked(r#"{"stride": 16}"#).check().is_err());
        let of_question = |parameters: &str| asked(parameters).check_question();
        assert!(of_question(r#"{"top_k": 1, "max_answer_len": null, "align_to_words": true}"#).is_ok());
        for (parameters, named) in [
            (r#"{"top_k": 2}"#, "top_k"),
            (r#"{"max_answer_len": 5}"#, "max_answer_len"),
            (
                r#"{"handle_impossible_answer": true}"#,
                "handle_impossible_answer",
            ),
            (r#"{"doc_stride": 8}"#, "doc_stride"),
        ] {
            let refused = of_question(parameters).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(named));
        }
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
