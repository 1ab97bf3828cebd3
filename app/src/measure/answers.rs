//! Records a model's answers on a labelled set, with their confidences.

use kaskade_actors::dispatch::answer::answer_number;
use kaskade_actors::dispatch::cost;
use kaskade_models::class_names::are_placeholders;
use kaskade_models::{Datatype, Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_planners::calibration::{Label as Truth, Labelled, calibrate_on};
use kaskade_planners::certify::split_samples;
use kaskade_policy::confidence::deferral::ClassSpread;
use kaskade_policy::confidence::{Calibration, Estimator, Scores};
use kaskade_policy::profile::{BeforeAfter, Money, Validation};
use kaskade_policy::remote::price::Cost;
use serde_json::{Map, Value, json};

use super::MeasureError;
use super::judge::{JudgeProgram, Question};
use crate::data::reply::{
    CONFIDENCE, ReplyError, answer_of, class_of, comparable, given_answer, logits_of, names_of, span_of,
};
use crate::data::text_metric::Grading;
use crate::data::{Label, Samples};

/// Requests per batch; run times are not measured here.
const BATCH: usize = 32;

/// Calibrated answers on a set.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// Estimator and fitted temperature.
    pub calibration: Calibration,
    /// Expected calibration error before and after calibration.
    pub ece: BeforeAfter,
    /// Answers, confidences and correctness by sample.
    pub validation: Validation,
    /// Texts of the answers by sample, `None` for samples that are too long; absent if answers are not texts.
    pub texts: Option<Vec<Option<String>>>,
    /// Indices of samples that are too long for the model, ascending.
    pub too_long: Vec<usize>,
    /// Mean cost of an answer in money, if every answer states it.
    pub money: Option<Money>,
}

/// Criterion of correctness.
#[derive(Debug, Clone, Copy, Default)]
pub struct Correctness<'a> {
    /// Comparison of texts with labels.
    pub grading: Grading,
    /// Program that decides instead of the labels.
    pub program: Option<&'a JudgeProgram>,
    /// The model's class names, for the program.
    pub classes: &'a [String],
    /// Whether samples that are too long for the model are forwarded to the next one, as requests are.
    pub forwards_too_long: bool,
}

/// Answer number of samples that are too long. A text has this number with a probability of 2^-32.
const NO_ANSWER: u32 = u32::MAX;

/// Runs a model over a labelled set and calibrates its confidence on the selection part. Class scores are calibrated; a
/// language model's own confidence is used unchanged. Forwarded samples that are too long count as wrong with
/// confidence 0, and are excluded from the fit.
///
/// # Errors
/// [`MeasureError`] if the model fails on a sample, an answer and its label are of different kinds, the judge fails, or
/// the scores cannot be calibrated.
pub fn calibrated(
    model: &mut dyn Model,
    set: &Samples,
    estimator: Estimator,
    correctness: &Correctness<'_>,
    step: impl FnMut(u64),
) -> Result<Answers, MeasureError> {
    let count = set.inputs.len();
    if count != set.labels.len() {
        return Err(MeasureError::Unlabelled);
    }
    let read = |answer: Result<Outputs, ModelError>| match answer {
        Err(ModelError::TooLong { .. }) if correctness.forwards_too_long => Ok(None),
        answer => Ok(Some(Answered::of(&answer?)?)),
    };
    let all = each(model, &set.inputs, read, step).map_err(|error| error.in_set(set))?;
    let (answered, too_long): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(_, one)| one.is_some());
    let answered: Vec<(usize, &Answered)> = answered
        .into_iter()
        .filter_map(|(number, one)| Some((number, one.as_ref()?)))
        .collect();
    if answered.is_empty() && count > 0 {
        return Err(MeasureError::AllTooLong);
    }
    let truths = match correctness.program {
        Some(program) => {
            let right = judged(program, set, &answered, correctness)?;
            right.into_iter().map(Truth::Correct).collect()
        }
        None => truths(set, &answered, correctness.grading)?,
    };
    let samples = answered.iter().zip(truths);
    let samples: Vec<Labelled<'_>> = samples
        .map(|((_, answered), label)| Labelled {
            scores: answered.judgement.scores(),
            label,
        })
        .collect();
    // The other part is reserved to certify the cascades chosen by these confidences.
    let selection: Vec<Labelled<'_>> = split_samples(count)
        .selection
        .iter()
        .filter_map(|place| answered.binary_search_by_key(place, |(number, _)| *number).ok())
        .filter_map(|place| samples.get(place).copied())
        .collect();
    let calibrated = calibrate_on(estimator, &selection, &samples)?;
    let temperature = calibrated.calibration.temperature;
    let spread = |answered: &Answered| match &answered.judgement {
        Judgement::Logits(logits) => ClassSpread::from_logits(logits, temperature),
        Judgement::Given { .. } | Judgement::Span { .. } => None,
    };
    let spreads: Option<Vec<ClassSpread>> = answered.iter().map(|(_, answered)| spread(answered)).collect();
    let spreads = spreads.unwrap_or_default();
    let texts: Option<Vec<String>> = answered
        .iter()
        .map(|(_, answered)| answered.judgement.text())
        .collect();
    let numbers: Vec<usize> = answered.iter().map(|(number, _)| *number).collect();
    let predictions: Vec<u32> = answered.iter().map(|(_, answered)| answered.number).collect();
    // Default: the value of a uniform distribution.
    let spread_of = |pick: fn(&ClassSpread) -> f64, even| {
        let values: Vec<f64> = spreads.iter().map(pick).collect();
        let count = if values.is_empty() { 0 } else { count };
        by_sample(count, even, &numbers, values)
    };
    Ok(Answers {
        money: mean_cost(answered.iter().map(|(_, answered)| answered.cost)),
        texts: texts.map(|texts| by_sample(count, None, &numbers, texts.into_iter().map(Some))),
        too_long: too_long.into_iter().map(|(number, _)| number).collect(),
        calibration: calibrated.calibration,
        ece: calibrated.ece,
        validation: Validation {
            margins: spread_of(|spread| spread.margin, 0.0),
            entropies: spread_of(|spread| spread.entropy, 1.0),
            agrees: Vec::new(),
            predictions: by_sample(count, NO_ANSWER, &numbers, predictions),
            confidences: by_sample(count, 0.0, &numbers, calibrated.confidences),
            correct: by_sample(count, false, &numbers, calibrated.correct),
        },
    })
}

/// Returns `count` values: `values` at the indices `numbers`, and `other` elsewhere.
fn by_sample<T: Clone>(
    count: usize,
    other: T,
    numbers: &[usize],
    values: impl IntoIterator<Item = T>,
) -> Vec<T> {
    let mut all = vec![other; count];
    for (number, value) in numbers.iter().zip(values) {
        if let Some(place) = all.get_mut(*number) {
            *place = value;
        }
    }
    all
}

/// Returns the mean cost; `None` if a cost is unknown or there are none.
fn mean_cost(costs: impl ExactSizeIterator<Item = Option<Cost>>) -> Option<Money> {
    let count = costs.len();
    Cost::total(costs).map(|total| Money {
        per_request: total.amount / count as f64,
        source: total.source,
    })
}

/// Returns a model's answers to requests.
///
/// # Errors
/// [`MeasureError`] if the model fails, or an answer is neither a class nor a text.
pub fn answers(model: &mut dyn Model, requests: &[Inputs]) -> Result<Vec<Label>, MeasureError> {
    each(model, requests, |answer| Ok(comparable(&answer?, false)?), |_| ())
}

/// Returns a model's answers as labels for other models. With a metric, spans are compared by their texts.
///
/// # Errors
/// As [`answers`].
pub(super) fn as_labels(
    model: &mut dyn Model,
    requests: &[Inputs],
    grading: Grading,
) -> Result<Vec<Label>, MeasureError> {
    let as_text = grading.comparison().is_some();
    each(
        model,
        requests,
        |answer| Ok(comparable(&answer?, as_text)?),
        |_| (),
    )
}

fn each<T>(
    model: &mut dyn Model,
    requests: &[Inputs],
    read: impl Fn(Result<Outputs, ModelError>) -> Result<T, MeasureError>,
    mut step: impl FnMut(u64),
) -> Result<Vec<T>, MeasureError> {
    let mut all: Vec<T> = Vec::with_capacity(requests.len());
    for batch in requests.chunks(BATCH) {
        for result in model.run(batch) {
            all.push(read(result).map_err(|source| MeasureError::Sample {
                number: all.len(),
                origin: None,
                source: Box::new(source),
            })?);
        }
        step(batch.len() as u64);
    }
    if all.len() != requests.len() {
        return Err(MeasureError::Unanswered {
            answered: all.len(),
            requests: requests.len(),
        });
    }
    Ok(all)
}

/// Returns what the labels state about the answers.
fn truths<'a>(
    set: &Samples,
    answered: &[(usize, &Answered)],
    grading: Grading,
) -> Result<Vec<Truth<'a>>, MeasureError> {
    let classifies = set.labels.iter().any(|label| matches!(label, Label::Class(_)));
    let truths = answered.iter().map(|(number, answered)| {
        let label = set.labels.get(*number).unwrap_or(&Label::Unknown);
        if let Some(truth) = answered.judgement.class_of_several(label).filter(|_| classifies) {
            return Ok(truth);
        }
        answered
            .judgement
            .truth(label, grading)
            .map_err(|source| MeasureError::Sample {
                number: *number,
                origin: set.origins.of(*number),
                source: Box::new(source),
            })
    });
    truths.collect()
}

/// Returns which answers are correct according to a program.
fn judged(
    program: &JudgeProgram,
    set: &Samples,
    answered: &[(usize, &Answered)],
    correctness: &Correctness<'_>,
) -> Result<Vec<bool>, MeasureError> {
    let asked = answered.iter().map(|(number, _)| {
        let label = set.labels.get(*number).filter(|label| **label != Label::Unknown);
        let reference = label.map(|label| named(label, correctness.classes));
        (set.inputs.get(*number).map(texts).unwrap_or_default(), reference)
    });
    let asked: Vec<(Map<String, Value>, Option<Value>)> = asked.collect();
    let questions = asked.iter().zip(answered);
    let questions: Vec<Question<'_>> = questions
        .map(|((input, reference), (sample, answered))| Question {
            sample: *sample,
            input,
            answer: &answered.said,
            reference: reference.as_ref(),
        })
        .collect();
    Ok(program.judge(&questions, correctness.grading.min_score())?)
}

/// Converts a label for a judge: class names if the model has them, as in its answers.
fn named(label: &Label, classes: &[String]) -> Value {
    if are_placeholders(classes) {
        return json!(label);
    }
    let name = |class: &usize| {
        classes
            .get(*class)
            .map_or_else(|| json!(class), |name| json!(name))
    };
    match label {
        Label::Class(class) => name(class),
        // Several classes with one name.
        Label::AnyOf(classes) => classes.first().map_or(Value::Null, name),
        Label::Classes(classes) => classes.iter().map(name).collect(),
        other => json!(other),
    }
}

/// Returns the texts of a request by input. A single text is not wrapped in a list.
fn texts(inputs: &Inputs) -> Map<String, Value> {
    let texts = inputs.iter().filter(|input| input.datatype == Datatype::Bytes);
    let texts = texts.filter_map(|input| {
        let texts = input.to_texts().ok()?;
        let value = match texts.as_slice() {
            [one] => json!(one),
            several => json!(several),
        };
        Some((input.name.clone(), value))
    });
    texts.collect()
}

/// A model's answer to a request.
struct Answered {
    judgement: Judgement,
    /// Answer number; equal answers have equal numbers.
    number: u32,
    /// The answer in the form for a judge.
    said: Value,
    /// Cost of the answer in money, if stated.
    cost: Option<Cost>,
}

/// The comparable form of an answer, with the scores of its confidence.
enum Judgement {
    /// A classifier, or a ranking of passages.
    Logits(Vec<f32>),
    /// Model that finds a span in a context.
    Span {
        start: Vec<f32>,
        end: Vec<f32>,
        /// Text of the span; `None` if the question was sent as token ids.
        answer: Option<Label>,
    },
    /// Language model, multi-label classifier, or token classifier.
    Given { answer: Label, confidence: f64 },
}

impl Answered {
    fn of(outputs: &[Tensor]) -> Result<Self, ReplyError> {
        let judgement = Judgement::of(outputs)?;
        Ok(Self {
            said: judgement.said(outputs),
            judgement,
            number: answer_number(outputs).unwrap_or_default(),
            cost: cost::stated_cost(outputs),
        })
    }
}

impl Judgement {
    fn of(outputs: &[Tensor]) -> Result<Self, ReplyError> {
        let Some(answer) = given_answer(outputs)? else {
            return Ok(match span_of(outputs)? {
                Some((start, end)) => Self::Span {
                    start,
                    end,
                    answer: answer_of(outputs),
                },
                None => Self::Logits(logits_of(outputs)?),
            });
        };
        let confidence = outputs.iter().find(|output| output.name == CONFIDENCE);
        let confidence = confidence.map(Tensor::to_f32).transpose()?;
        let confidence = confidence.and_then(|values| values.first().copied());
        Ok(Self::Given {
            answer,
            confidence: confidence.ok_or(ReplyError::NoConfidence)?.into(),
        })
    }

    fn scores(&self) -> Scores<'_> {
        match self {
            Self::Logits(logits) => Scores::Logits(logits),
            Self::Span { start, end, .. } => Scores::Span { start, end },
            Self::Given { confidence, .. } => Scores::Given(*confidence),
        }
    }

    /// Returns the text of the answer.
    fn text(&self) -> Option<String> {
        match self {
            Self::Given {
                answer: Label::Text(text),
                ..
            }
            | Self::Span {
                answer: Some(Label::Text(text)),
                ..
            } => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the class of a label that permits several, among labels with one class: the answered class if it is
    /// permitted, else the first.
    fn class_of_several<'a>(&self, label: &Label) -> Option<Truth<'a>> {
        match (self, label) {
            (Self::Logits(logits), Label::AnyOf(classes)) => {
                let answered = class_of(logits).filter(|answered| classes.contains(answered));
                Some(Truth::Class(answered.or(classes.first().copied())?))
            }
            _ => None,
        }
    }

    /// Returns what a label states about the answer.
    fn truth<'a>(&self, label: &Label, grading: Grading) -> Result<Truth<'a>, MeasureError> {
        Ok(match (self, label) {
            (_, Label::Unknown) => return Err(MeasureError::Unlabelled),
            (Self::Logits(_), Label::Class(class)) => Truth::Class(*class),
            (Self::Logits(logits), Label::AnyOf(_)) => {
                let class = class_of(logits).ok_or(ReplyError::NoClass)?;
                Truth::Correct(label.accepts(&Label::Class(class)))
            }
            (
                Self::Span {
                    answer: Some(Label::Text(answer)),
                    ..
                },
                Label::Span { text: Some(text), .. },
            ) => Truth::Correct(answer == text),
            (Self::Span { .. }, Label::Span { start, end, .. }) => Truth::Span {
                start: *start,
                end: *end,
            },
            (Self::Span { answer, .. }, Label::Text(_) | Label::Texts(_)) => {
                let answer = answer.as_ref().ok_or(ReplyError::NoAnswer)?;
                Truth::Correct(grading.accepts(label, answer))
            }
            (Self::Given { answer, .. }, Label::Text(_) | Label::Texts(_) | Label::Classes(_)) => {
                Truth::Correct(grading.accepts(label, answer))
            }
            _ => {
                return Err(MeasureError::OtherLabel {
                    label: label.to_string(),
                });
            }
        })
    }

    /// Returns the answer for a judge: texts, or class numbers if the classes have no names.
    fn said(&self, outputs: &[Tensor]) -> Value {
        match (self, names_of(outputs)) {
            (Self::Logits(_), Some(names)) if names.len() == 1 => json!(names.first()),
            (Self::Logits(logits), _) => json!(class_of(logits)),
            (Self::Span { answer, .. }, _) => json!(answer),
            (
                Self::Given {
                    answer: Label::Classes(_),
                    ..
                },
                Some(names),
            ) => json!(names),
            (Self::Given { answer, .. }, _) => json!(answer),
        }
    }
}

#[cfg(test)]
mod tests;
