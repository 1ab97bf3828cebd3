//! Decodes a model's outputs: a class, a text, or a span.

use kaskade_models::{Tensor, TensorError};
use thiserror::Error;

use super::Label;

/// The output that classes are read from, as Hugging Face names it.
pub const LOGITS: &str = "logits";

/// The output in which a language model gives its answer.
const TEXT: &str = "text";

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

/// Decodes a reply: a class, a text, several labels as one text, or a span.
///
/// # Errors
/// When it is neither.
pub fn label_of(outputs: &[Tensor]) -> Result<Label, ReplyError> {
    if let Some(text) = text_of(outputs) {
        return Ok(text);
    }
    if let Some((start, end)) = span_of(outputs)? {
        let place = |logits: &[f32]| class_of(logits).ok_or(ReplyError::NoClass);
        return Ok(Label::Span {
            start: place(&start)?,
            end: place(&end)?,
        });
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
    if let Some(labels) = outputs.iter().find(|output| output.name == LABELS) {
        return Some(Label::text(&labels.to_texts().ok()?.join("\n")));
    }
    let text = outputs.iter().find(|output| output.name == TEXT)?;
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
}
