//! Decodes a model's outputs: a class, a text, or a span.

use kaskade_models::{Tensor, TensorError};
use thiserror::Error;

use super::Label;

/// The output that classes are read from, as Hugging Face names it.
pub const LOGITS: &str = "logits";

/// The output in which a language model gives its answer.
const TEXT: &str = "text";

/// The output with the span that answers a question.
const ANSWER: &str = "answer";

/// The output of a classifier that judges each label by itself: those above one half apply.
const PROBABILITIES: &str = "probabilities";

/// The output in which a model that gives several labels names them.
const LABELS: &str = "labels";

/// A reply cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// It has no class scores.
    #[error("there is no output `{LOGITS}` to read a class from, only {outputs:?}")]
    NoLogits {
        /// The outputs that it has.
        outputs: Vec<String>,
    },
    /// It has no scores at all.
    #[error("a reply has no class")]
    NoClass,
    /// It has a text and no confidence.
    #[error("a reply has a text and no `confidence`")]
    NoConfidence,
    /// An output is of another type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Decodes a reply: a class, several classes, or a text.
///
/// # Errors
/// When it is neither.
pub fn label_of(outputs: &[Tensor]) -> Result<Label, ReplyError> {
    if let Some(text) = text_of(outputs).or_else(|| first_text(outputs, ANSWER)) {
        return Ok(text);
    }
    if let Some(probabilities) = outputs.iter().find(|output| output.name == PROBABILITIES) {
        let probabilities = probabilities.to_f32()?;
        let applies = (0..)
            .zip(&probabilities)
            .filter(|(_, probability)| **probability > 0.5);
        return Ok(Label::Classes(applies.map(|(class, _)| class).collect()));
    }
    class_of(&logits_of(outputs)?)
        .map(Label::Class)
        .ok_or(ReplyError::NoClass)
}

/// Logits of every position as the start and as the end of a span.
pub(crate) type SpanLogits = (Vec<f32>, Vec<f32>);

/// The logits of a span's start and end, if the reply has them.
///
/// # Errors
/// When they are not FP32.
pub(crate) fn span_of(outputs: &[Tensor]) -> Result<Option<SpanLogits>, ReplyError> {
    let of = |name: &str| outputs.iter().find(|output| output.name == name);
    match (of("start_logits"), of("end_logits")) {
        (Some(start), Some(end)) => Ok(Some((start.to_f32()?, end.to_f32()?))),
        _ => Ok(None),
    }
}

/// The text of a reply, if it is a language model's, or its labels, if it gives several.
pub(crate) fn text_of(outputs: &[Tensor]) -> Option<Label> {
    first_text(outputs, TEXT)
}

/// The text of a language model's reply, or the labels of a model that gives several, one a line.
pub(crate) fn stated_text(outputs: &[Tensor]) -> Option<Label> {
    if let Some(labels) = outputs.iter().find(|output| output.name == LABELS) {
        return Some(Label::text(&labels.to_texts().ok()?.join("\n")));
    }
    text_of(outputs)
}

/// Decodes a reply in the form in which the answers of two models are compared: a question's as positions of tokens.
///
/// # Errors
/// When it is no answer.
pub(crate) fn comparable(outputs: &[Tensor]) -> Result<Label, ReplyError> {
    if let Some(text) = stated_text(outputs) {
        return Ok(text);
    }
    if let Some((start, end)) = span_of(outputs)? {
        let place = |logits: &[f32]| class_of(logits).ok_or(ReplyError::NoClass);
        return Ok(Label::Span {
            start: place(&start)?,
            end: place(&end)?,
        });
    }
    label_of(outputs)
}

fn first_text(outputs: &[Tensor], name: &str) -> Option<Label> {
    let text = outputs.iter().find(|output| output.name == name)?;
    let texts = text.to_texts().ok()?;
    texts.first().map(|text| Label::text(text))
}

/// The class scores among a reply's outputs.
///
/// # Errors
/// When there are none, or they are not FP32.
pub(crate) fn logits_of(outputs: &[Tensor]) -> Result<Vec<f32>, ReplyError> {
    let logits = outputs.iter().find(|output| output.name == LOGITS);
    let logits = logits.ok_or_else(|| ReplyError::NoLogits {
        outputs: outputs.iter().map(|output| output.name.clone()).collect(),
    })?;
    Ok(logits.to_f32()?)
}

/// The class with the highest score, the first of equals; none where there is no score.
pub(crate) fn class_of(logits: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (class, score) in logits.iter().copied().enumerate() {
        if best.is_none_or(|(_, highest)| score > highest) {
            best = Some((class, score));
        }
    }
    best.map(|(class, _)| class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_without_logits_is_named() {
        let outputs = [Tensor::from_f32("probs", &[1], &[1.0]).unwrap()];
        let error = logits_of(&outputs).unwrap_err().to_string();
        assert!(error.contains("`logits`") && error.contains("probs"), "{error}");
        assert_eq!(class_of(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(class_of(&[]), None);
    }

    #[test]
    fn spans_and_several_labels_are_read() {
        let logits = Tensor::from_f32(LOGITS, &[3], &[2.0, -1.0, 0.5]).unwrap();
        let probabilities = Tensor::from_f32(PROBABILITIES, &[3], &[0.9, 0.3, 0.6]).unwrap();
        let label = label_of(&[logits.clone(), probabilities]).unwrap();
        assert_eq!(label, Label::Classes(vec![0, 2]));
        assert_eq!(label_of(&[logits]).unwrap(), Label::Class(0));
        let answer = Tensor::from_texts(ANSWER, &[" the sea"]).unwrap();
        assert_eq!(label_of(&[answer]).unwrap(), Label::text("the sea"));
    }
}
