//! The answers of a model on a labelled set, with their confidence.

use kaskade_models::{Inputs, Model, Tensor};
use kaskade_planners::calibration::{Label as Truth, Labelled, calibrate_on};
use kaskade_planners::certify::parts;
use kaskade_policy::confidence::deferral::{ClassSpread, number_of_text};
use kaskade_policy::confidence::{Calibration, Estimator, Scores};
use kaskade_policy::profile::{BeforeAfter, Validation};

use super::MeasureError;
use crate::data::Label;
use crate::data::reply::{ReplyError, class_of, comparable, logits_of, span_of, stated_text};

/// The output in which a language model reports its confidence.
const CONFIDENCE: &str = "confidence";

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
}

/// Runs a model over a labelled set and calibrates its confidence on the selection part: a classifier's by its scores, a language
/// model's own as it is.
///
/// # Errors
/// When the model fails on a sample, gives neither `logits` nor `text`, or its scores cannot be calibrated.
pub fn calibrated(
    model: &mut dyn Model,
    requests: &[Inputs],
    labels: &[Label],
    estimator: Estimator,
    step: impl FnMut(u64),
) -> Result<Answers, MeasureError> {
    if requests.len() != labels.len() {
        return Err(MeasureError::Unlabelled);
    }
    let judgements = each(model, requests, Judgement::of, step)?;
    let samples = judgements.iter().zip(labels);
    let samples: Vec<Labelled<'_>> = samples.map(|(judged, label)| judged.labelled(label)).collect();
    // The other part proves the cascades that are chosen by these confidences.
    let selection: Vec<Labelled<'_>> = parts(samples.len())
        .selection
        .iter()
        .filter_map(|place| samples.get(*place).copied())
        .collect();
    let calibrated = calibrate_on(estimator, &selection, &samples)?;
    let temperature = calibrated.calibration.temperature;
    let spread = |judged: &Judgement| match judged {
        Judgement::Logits(logits) => ClassSpread::of(logits, temperature),
        Judgement::Text { .. } | Judgement::Span { .. } => None,
    };
    let spreads: Option<Vec<ClassSpread>> = judgements.iter().map(spread).collect();
    let spreads = spreads.unwrap_or_default();
    Ok(Answers {
        calibration: calibrated.calibration,
        ece: calibrated.ece,
        validation: Validation {
            margins: spreads.iter().map(|spread| spread.margin).collect(),
            entropies: spreads.iter().map(|spread| spread.entropy).collect(),
            predictions: judgements.iter().map(Judgement::number).collect(),
            confidences: calibrated.confidences,
            correct: calibrated.correct,
        },
    })
}

/// A model's answers to some requests.
///
/// # Errors
/// When the model fails on one, or its answer is neither a class nor a text.
pub fn answers(model: &mut dyn Model, requests: &[Inputs]) -> Result<Vec<Label>, MeasureError> {
    each(model, requests, comparable, |_| ())
}

fn each<T>(
    model: &mut dyn Model,
    requests: &[Inputs],
    read: impl Fn(&[Tensor]) -> Result<T, ReplyError>,
    mut step: impl FnMut(u64),
) -> Result<Vec<T>, MeasureError> {
    let mut all: Vec<T> = Vec::with_capacity(requests.len());
    for batch in requests.chunks(BATCH) {
        for result in model.run(batch) {
            let one = result
                .map_err(MeasureError::from)
                .and_then(|outputs| Ok(read(&outputs)?));
            all.push(one.map_err(|source| MeasureError::Sample {
                number: all.len(),
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

/// A model's answer to a request, and the score of its confidence.
enum Judgement {
    /// A classifier.
    Logits(Vec<f32>),
    /// A model that finds an answer in a context.
    Span { start: Vec<f32>, end: Vec<f32> },
    /// A language model, or one that gives several labels.
    Text { answer: Label, confidence: f64 },
}

impl Judgement {
    fn of(outputs: &[Tensor]) -> Result<Self, ReplyError> {
        let Some(Label::Text(text)) = stated_text(outputs) else {
            return Ok(match span_of(outputs)? {
                Some((start, end)) => Self::Span { start, end },
                None => Self::Logits(logits_of(outputs)?),
            });
        };
        let confidence = outputs.iter().find(|output| output.name == CONFIDENCE);
        let confidence = confidence.map(Tensor::to_f32).transpose()?;
        let confidence = confidence.and_then(|values| values.first().copied());
        Ok(Self::Text {
            answer: Label::Text(text),
            confidence: confidence.ok_or(ReplyError::NoConfidence)?.into(),
        })
    }

    fn labelled<'a>(&'a self, label: &Label) -> Labelled<'a> {
        match (self, label) {
            (Self::Logits(logits), Label::Class(class)) => Labelled {
                scores: Scores::Logits(logits),
                label: Truth::Class(*class),
            },
            (
                Self::Span { start, end },
                Label::Span {
                    start: first,
                    end: last,
                },
            ) => Labelled {
                scores: Scores::Span { start, end },
                label: Truth::Span {
                    start: *first,
                    end: *last,
                },
            },
            (Self::Span { start, end }, _) => Labelled {
                scores: Scores::Span { start, end },
                label: Truth::Correct(false),
            },
            // No class is a text or a span, so calibration refuses the sample and names it.
            (Self::Logits(logits), _) => Labelled {
                scores: Scores::Logits(logits),
                label: Truth::Correct(false),
            },
            // Nor is a set of classes a text.
            (Self::Text { confidence, .. }, Label::Classes(classes)) => Labelled {
                scores: Scores::Given(*confidence),
                label: Truth::Class(classes.first().copied().unwrap_or_default()),
            },
            (Self::Text { answer, confidence }, label) => Labelled {
                scores: Scores::Given(*confidence),
                label: Truth::Correct(label.accepts(answer)),
            },
        }
    }

    /// A number for the answer, the same for the same answer: the class, or [`number_of_text`].
    fn number(&self) -> u32 {
        match self {
            Self::Logits(logits) => class_of(logits).unwrap_or_default() as u32,
            Self::Text { answer, .. } => match answer {
                Label::Text(text) => number_of_text(text),
                other => number_of_text(&other.to_string()),
            },
            Self::Span { start, end } => {
                let place = |logits: &[f32]| class_of(logits).unwrap_or_default();
                number_of_text(&format!("{} {}", place(start), place(end)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::reply::LOGITS;
    use kaskade_models::{ModelError, Outputs};

    /// Scores for the class named in its input, right three times out of four, with constant confidence.
    struct Overconfident;

    impl Model for Overconfident {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let answer = |inputs: &Inputs| {
                let class_of = inputs.first().map_or(0.0, |input| input.to_f32().unwrap()[0]);
                let scores =
                    [0.0, 1.0, 2.0].map(|class| if (class - class_of).abs() < 0.5 { 9.0 } else { 0.0 });
                Ok(vec![Tensor::from_f32(LOGITS, &[3], &scores).unwrap()])
            };
            batch.iter().map(answer).collect()
        }
    }

    fn asking(class: f32) -> Inputs {
        vec![Tensor::from_f32("x", &[1], &[class]).unwrap()]
    }

    #[test]
    fn overconfidence_is_calibrated_and_no_answer_changes() {
        let requests: Vec<Inputs> = (0..200_u8).map(|n| asking(f32::from(n % 3))).collect();
        let right = |n: usize| if n.is_multiple_of(4) { (n + 1) % 3 } else { n % 3 };
        let labels: Vec<Label> = (0..200).map(|n| Label::Class(right(n))).collect();
        let mut seen = 0;
        let answers = calibrated(
            &mut Overconfident,
            &requests,
            &labels,
            Estimator::MaxSquared,
            |done| seen += done,
        )
        .unwrap();
        assert_eq!(seen, 200);
        assert!(answers.calibration.temperature > 1.5, "{:?}", answers.calibration);
        // The temperature fits the share of right answers of the selection part, and the error is measured on all samples.
        let selection = parts(200).selection;
        let fitted =
            selection.iter().filter(|place| !place.is_multiple_of(4)).count() as f64 / selection.len() as f64;
        let unfitted = (fitted - 0.75).abs();
        assert!(
            (answers.ece.after - unfitted).abs() < 0.02 && answers.ece.before > 0.2,
            "{:?}, expected {unfitted}",
            answers.ece
        );
        assert_eq!(
            answers.validation.correct.iter().filter(|right| **right).count(),
            150
        );
        assert!(
            answers
                .validation
                .predictions
                .iter()
                .zip(0..)
                .all(|(answer, n)| *answer == n % 3)
        );
    }
}
