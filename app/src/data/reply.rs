//! Decodes a model's outputs into a class, a text, entities or a span.

use kaskade_models::{Tensor, TensorError, entities};
use thiserror::Error;

use super::Label;

/// Output with class scores, named as in Hugging Face models.
pub const LOGITS: &str = "logits";

/// Output with the answer of a language model.
const TEXT: &str = "text";

/// Output with the text of a span that answers a question.
const ANSWER: &str = "answer";

/// Output of a multi-label classifier: labels with a probability above one half apply.
const PROBABILITIES: &str = "probabilities";

/// Output with the model's own confidence.
pub(crate) const CONFIDENCE: &str = "confidence";

/// Output with the names of the labels that apply.
const LABELS: &str = "labels";

/// Error of decoding a reply.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The reply has no class scores.
    #[error("there is no output `{LOGITS}` to read a class from, only {outputs:?}")]
    NoLogits {
        /// Names of the outputs that it has.
        outputs: Vec<String>,
    },
    /// The reply has an empty list of scores.
    #[error("a reply has no class")]
    NoClass,
    /// The reply has a text, entities or several labels but no confidence.
    #[error("a reply has a text, entities or several labels and no `confidence`")]
    NoConfidence,
    /// The reply has a span without its text.
    #[error("a reply has a span without its text; ask with `text` and `text_pair` in place of token ids")]
    NoAnswer,
    /// An output has another type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Decodes a reply: a class, several classes, a text, or entities as a text with one line each.
///
/// # Errors
/// [`ReplyError`] if the reply is none of these.
pub fn label_of(outputs: &[Tensor]) -> Result<Label, ReplyError> {
    let text = text_of(outputs).or_else(|| answer_of(outputs));
    if let Some(text) = text.or_else(|| entities_of(outputs)) {
        return Ok(text);
    }
    if let Some(classes) = classes_of(outputs)? {
        return Ok(classes);
    }
    class_of(&logits_of(outputs)?)
        .map(Label::Class)
        .ok_or(ReplyError::NoClass)
}

/// Logits of every position as the start and as the end of a span.
pub(crate) type SpanLogits = (Vec<f32>, Vec<f32>);

/// Returns the logits of a span's start and end, if the reply has them.
///
/// # Errors
/// [`ReplyError::Tensor`] if they are not FP32.
pub(crate) fn span_of(outputs: &[Tensor]) -> Result<Option<SpanLogits>, ReplyError> {
    let of = |name: &str| outputs.iter().find(|output| output.name == name);
    match (of("start_logits"), of("end_logits")) {
        (Some(start), Some(end)) => Ok(Some((start.to_f32()?, end.to_f32()?))),
        _ => Ok(None),
    }
}

/// Returns the text of a language model's reply.
pub(crate) fn text_of(outputs: &[Tensor]) -> Option<Label> {
    first_text(outputs, TEXT)
}

/// Returns the answer of a token classifier as a text: a line `START-END LABEL` per entity.
fn entities_of(outputs: &[Tensor]) -> Option<Label> {
    entities::answer(outputs).map(|entities| Label::text(&entities))
}

/// Decodes a reply into the form in which the answers of two models are compared. A span has its token positions and
/// its text, or, with `spans_as_text`, only its text.
///
/// # Errors
/// [`ReplyError`] if the reply is not an answer.
pub(crate) fn comparable(outputs: &[Tensor], spans_as_text: bool) -> Result<Label, ReplyError> {
    if let Some(answer) = given_answer(outputs)? {
        return Ok(answer);
    }
    if let Some((start, end)) = span_of(outputs)? {
        if spans_as_text {
            return answer_of(outputs).ok_or(ReplyError::NoAnswer);
        }
        let place = |logits: &[f32]| class_of(logits).ok_or(ReplyError::NoClass);
        let text = match answer_of(outputs) {
            Some(Label::Text(text)) => Some(text),
            _ => None,
        };
        return Ok(Label::Span {
            start: place(&start)?,
            end: place(&end)?,
            text,
        });
    }
    label_of(outputs)
}

/// Decodes the answer of a model that states its own confidence: a text, entities or several labels.
///
/// # Errors
/// [`ReplyError::Tensor`] if the probabilities of the labels are not FP32.
pub(crate) fn given_answer(outputs: &[Tensor]) -> Result<Option<Label>, ReplyError> {
    if let Some(text) = text_of(outputs).or_else(|| entities_of(outputs)) {
        return Ok(Some(text));
    }
    // Softmax probabilities come without a confidence output.
    let confident = outputs.iter().any(|output| output.name == CONFIDENCE);
    if let Some(classes) = classes_of(outputs)?.filter(|_| confident) {
        return Ok(Some(classes));
    }
    let labels = outputs.iter().find(|output| output.name == LABELS);
    let names = labels.map(Tensor::to_texts).transpose()?;
    Ok(names.map(|names| Label::text(&names.join("\n"))))
}

/// Returns the labels that apply, for a multi-label classifier.
fn classes_of(outputs: &[Tensor]) -> Result<Option<Label>, ReplyError> {
    let Some(probabilities) = outputs.iter().find(|output| output.name == PROBABILITIES) else {
        return Ok(None);
    };
    let probabilities = probabilities.to_f32()?;
    let applies = (0..)
        .zip(&probabilities)
        .filter(|(_, probability)| **probability > 0.5);
    Ok(Some(Label::Classes(applies.map(|(class, _)| class).collect())))
}

/// Returns the text of a span.
pub(crate) fn answer_of(outputs: &[Tensor]) -> Option<Label> {
    first_text(outputs, ANSWER)
}

/// Returns the class names of an answer, if the model outputs them.
pub(crate) fn names_of(outputs: &[Tensor]) -> Option<Vec<String>> {
    let output = outputs
        .iter()
        .find(|output| ["label", LABELS].contains(&output.name.as_str()))?;
    let names = output.to_texts().ok()?;
    Some(names.into_iter().map(str::to_owned).collect())
}

fn first_text(outputs: &[Tensor], name: &str) -> Option<Label> {
    let text = outputs.iter().find(|output| output.name == name)?;
    let texts = text.to_texts().ok()?;
    texts.first().map(|text| Label::text(text))
}

/// Returns the class scores of a reply.
///
/// # Errors
/// [`ReplyError`] if there are none, or they are not FP32.
pub(crate) fn logits_of(outputs: &[Tensor]) -> Result<Vec<f32>, ReplyError> {
    let logits = outputs.iter().find(|output| output.name == LOGITS);
    let logits = logits.ok_or_else(|| ReplyError::NoLogits {
        outputs: outputs.iter().map(|output| output.name.clone()).collect(),
    })?;
    Ok(logits.to_f32()?)
}

/// Returns the class with the highest score, the first of equal scores; `None` without scores.
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
        assert_eq!(
            label_of(std::slice::from_ref(&answer)).unwrap(),
            Label::text("the sea")
        );
        let span = |name: &str| Tensor::from_f32(name, &[2], &[0.0, 1.0]).unwrap();
        let question = [span("start_logits"), span("end_logits"), answer];
        assert_eq!(
            comparable(&question, false).unwrap(),
            Label::Span {
                start: 1,
                end: 1,
                text: Some("the sea".to_owned())
            }
        );
        assert_eq!(comparable(&question, true).unwrap(), Label::text("the sea"));
        assert!(matches!(
            comparable(&question[..2], true),
            Err(ReplyError::NoAnswer)
        ));
    }

    #[test]
    fn no_label_that_applies_is_an_answer_too() {
        let outputs = [
            Tensor::from_f32(LOGITS, &[2], &[-1.0, -2.0]).unwrap(),
            Tensor::from_f32(PROBABILITIES, &[2], &[0.3, 0.1]).unwrap(),
            Tensor::from_f32(CONFIDENCE, &[1], &[0.63]).unwrap(),
        ];
        assert_eq!(given_answer(&outputs[..2]).unwrap(), None);
        assert_eq!(given_answer(&outputs).unwrap(), Some(Label::Classes(vec![])));
        assert_eq!(comparable(&outputs, false).unwrap(), Label::Classes(vec![]));
    }
}
