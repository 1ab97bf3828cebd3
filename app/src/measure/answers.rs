//! The answers of a model on a labelled set, with their confidence.

use kaskade_actors::dispatch::answer::answer_number;
use kaskade_actors::dispatch::cost;
use kaskade_models::class_names::are_placeholders;
use kaskade_models::{Datatype, Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_planners::calibration::{Label as Truth, Labelled, calibrate_on};
use kaskade_planners::certify::parts;
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

/// Requests per batch: here only the answers count.
const BATCH: usize = 32;

/// Answers on a set, calibrated.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// The estimator with its temperature.
    pub calibration: Calibration,
    /// Calibration error before and after.
    pub ece: BeforeAfter,
    /// The answers themselves.
    pub validation: Validation,
    /// Their texts, by sample, without those of samples that are too long; absent for answers that are no texts.
    pub texts: Option<Vec<Option<String>>>,
    /// The samples that are too long for the model, ascending.
    pub too_long: Vec<usize>,
    /// Mean of what they cost, if each states it.
    pub money: Option<Money>,
}

/// Criterion for correct answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Correctness<'a> {
    /// How texts are compared with the labels.
    pub grading: Grading,
    /// A program that decides in place of the labels.
    pub program: Option<&'a JudgeProgram>,
    /// The model's names of classes, which the program gets.
    pub classes: &'a [String],
    /// Whether a sample that is too long for the model is forwarded to the next one, as a request does.
    pub forwards_too_long: bool,
}

/// Stands for the answer to a sample that is too long: no answer has it, but for one in 2^32 texts.
const NO_ANSWER: u32 = u32::MAX;

/// Runs a model over a labelled set and calibrates its confidence on the selection part: a classifier's by its scores, a language
/// model's own as it is. Samples that are too long and forwarded are wrong with a confidence of 0, and nothing is fitted to them.
///
/// # Errors
/// When the model fails on a sample, an answer and its label are of different kinds, the judge fails, or the scores cannot be calibrated.
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
    // The other part proves the cascades that are chosen by these confidences.
    let selection: Vec<Labelled<'_>> = parts(count)
        .selection
        .iter()
        .filter_map(|place| answered.binary_search_by_key(place, |(number, _)| *number).ok())
        .filter_map(|place| samples.get(place).copied())
        .collect();
    let calibrated = calibrate_on(estimator, &selection, &samples)?;
    let temperature = calibrated.calibration.temperature;
    let spread = |answered: &Answered| match &answered.judgement {
        Judgement::Logits(logits) => ClassSpread::of(logits, temperature),
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
    // Of a distribution that is spread evenly where there is none.
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

/// Returns `count` values: those of the samples of these numbers, and `other` for the rest.
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

/// Mean of costs; `None` if one is unknown, or if there is none.
fn mean_cost(costs: impl ExactSizeIterator<Item = Option<Cost>>) -> Option<Money> {
    let count = costs.len();
    Cost::total(costs).map(|total| Money {
        per_request: total.amount / count as f64,
        source: total.source,
    })
}

/// A model's answers to some requests.
///
/// # Errors
/// When the model fails on one, or its answer is neither a class nor a text.
pub fn answers(model: &mut dyn Model, requests: &[Inputs]) -> Result<Vec<Label>, MeasureError> {
    each(model, requests, |answer| Ok(comparable(&answer?, false)?), |_| ())
}

/// The answers of a model as labels for others. With a metric, spans are compared by their texts.
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

/// Returns what the labels say about the answers.
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

/// Which answers are right by a program.
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

/// A label as a judge gets it: classes by their names, if the model names them, as its answers are.
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
        // Several classes of one name.
        Label::AnyOf(classes) => classes.first().map_or(Value::Null, name),
        Label::Classes(classes) => classes.iter().map(name).collect(),
        other => json!(other),
    }
}

/// The texts of a request, by input; one alone is no list.
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
    /// A number for the answer, the same for the same answer.
    number: u32,
    /// The answer for a judge.
    said: Value,
    /// What the answer cost in money, if it states that.
    cost: Option<Cost>,
}

/// What an answer is compared by, and the score of its confidence.
enum Judgement {
    /// A classifier, or a ranking of passages.
    Logits(Vec<f32>),
    /// A model that finds an answer in a context.
    Span {
        start: Vec<f32>,
        end: Vec<f32>,
        /// The text; `None` if the question came as token ids.
        answer: Option<Label>,
    },
    /// A language model, or one that gives several labels or the entities of a text.
    Given { answer: Label, confidence: f64 },
}

impl Answered {
    fn of(outputs: &[Tensor]) -> Result<Self, ReplyError> {
        let judgement = Judgement::of(outputs)?;
        Ok(Self {
            said: judgement.said(outputs),
            judgement,
            number: answer_number(outputs).unwrap_or_default(),
            cost: cost::stated(outputs),
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

    /// The text of the answer.
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

    /// Returns the class of a label that means any of several, among others that mean one: the class that was answered, if it is one of them.
    fn class_of_several<'a>(&self, label: &Label) -> Option<Truth<'a>> {
        match (self, label) {
            (Self::Logits(logits), Label::AnyOf(classes)) => {
                let answered = class_of(logits).filter(|answered| classes.contains(answered));
                Some(Truth::Class(answered.or(classes.first().copied())?))
            }
            _ => None,
        }
    }

    /// Returns what a label says about the answer.
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

    /// The answer for a judge: texts, or numbers of classes that have no names.
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
