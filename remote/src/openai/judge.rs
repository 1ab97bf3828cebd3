//! A judge: a second model that says whether an answer is right. Its probability of `yes` is the confidence of the answer.

use kaskade_models::{ModelError, Outputs, Tensor, best_class};

use super::chat;
use super::text::LOGITS;
use crate::endpoint::{ANSWER, Chat, ChatTask, Judge, TEXT};
use crate::error::CallError;
use crate::prepared::Prepared;

/// Excess of a judged label over the probability of a guess: a judge that says no makes an answer unsure, and not another one.
const ABOVE_GUESS: f32 = 1e-3;

/// Writes the request to a judge about an answer to `text`; `None` if the answer is an empty text.
///
/// # Errors
/// [`ModelError`] if the answer has neither a class nor a text.
pub(crate) fn prepare(
    judge: &Judge,
    asked: &Chat,
    text: &str,
    outputs: &Outputs,
) -> Result<Option<Prepared>, ModelError> {
    let answer = said(asked, outputs).ok_or_else(|| ModelError::BadOutput {
        reason: "there is no answer to judge".to_owned(),
    })?;
    if answer.trim().is_empty() {
        return Ok(None);
    }
    let prompt = fill(&judge.chat.prompt, text, &answer);
    let asking = Chat {
        prompt: TEXT.to_owned(),
        ..judge.chat.clone()
    };
    chat::prepare(&asking, &vec![Tensor::from_texts("text", &[&prompt])?], false).map(Some)
}

/// Replaces the places of a prompt. What is put in is not searched for places again.
fn fill(prompt: &str, text: &str, answer: &str) -> String {
    let mut filled = String::with_capacity(prompt.len() + text.len() + answer.len());
    let mut rest = prompt;
    while let Some(begin) = rest.find('{') {
        let (before, after) = rest.split_at(begin);
        filled.push_str(before);
        if let Some(after) = after.strip_prefix(TEXT) {
            filled.push_str(text);
            rest = after;
        } else if let Some(after) = after.strip_prefix(ANSWER) {
            filled.push_str(answer);
            rest = after;
        } else {
            filled.push('{');
            rest = after.strip_prefix('{').unwrap_or_default();
        }
    }
    filled + rest
}

/// The answer, as a judge reads it.
fn said(asked: &Chat, outputs: &Outputs) -> Option<String> {
    match &asked.task {
        ChatTask::Generate => Some(named(outputs, "text")?.to_texts().ok()?.concat()),
        ChatTask::Classify { labels } => {
            let scores = named(outputs, LOGITS)?.to_f32().ok()?;
            labels.get(best_class(&scores)?).cloned()
        }
    }
}

fn named<'a>(tensors: &'a [Tensor], name: &str) -> Option<&'a Tensor> {
    tensors.iter().find(|tensor| tensor.name == name)
}

/// Replaces the confidence of an answer by the judge's verdict.
///
/// # Errors
/// [`CallError::Malformed`] if the verdict has no scores.
pub(crate) fn apply(outputs: &mut Outputs, verdict: &Outputs) -> Result<(), CallError> {
    let scores = named(verdict, LOGITS).and_then(|scores| scores.to_f32().ok());
    let Some([no, yes]) = scores.as_deref() else {
        return Err(super::malformed("the judge gives no verdict"));
    };
    let right = 1.0 / (1.0 + (no - yes).exp());
    for output in outputs.iter_mut() {
        let judged = match output.name.as_str() {
            LOGITS => {
                let scores = output.to_f32().map_err(super::malformed)?;
                Tensor::from_f32(LOGITS, &[scores.len()], &judged(&scores, right))
            }
            "confidence" => Tensor::from_f32("confidence", &[1], &[right]),
            _ => continue,
        };
        *output = judged.map_err(super::malformed)?;
    }
    Ok(())
}

/// Log probabilities of classes, of which the best is right with that probability and the others share the rest.
fn judged(scores: &[f32], right: f32) -> Vec<f32> {
    let classes = scores.len() as f32;
    let right = right.clamp(1.0 / classes + ABOVE_GUESS, 1.0 - 1e-6);
    let other = (1.0 - right) / (classes - 1.0).max(1.0);
    let best = best_class(scores);
    let scores = (0..scores.len()).map(|class| if Some(class) == best { right } else { other });
    scores.map(f32::ln).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(no: f32, yes: f32) -> Outputs {
        vec![Tensor::from_f32(LOGITS, &[2], &[no, yes]).unwrap()]
    }

    #[test]
    fn a_verdict_is_the_confidence_and_changes_no_answer() {
        let logits = || vec![Tensor::from_f32(LOGITS, &[3], &[0.0, 1.0, 0.0]).unwrap()];
        for (no, yes, probability) in [(-3.0, -0.05, 0.95), (-0.01, -5.0, 1.0 / 3.0 + 1e-3)] {
            let mut outputs = logits();
            apply(&mut outputs, &verdict(no, yes)).unwrap();
            let scores = outputs[0].to_f32().unwrap();
            assert_eq!(best_class(&scores), Some(1));
            assert!((scores[1].exp() - probability).abs() < 0.01, "{scores:?}");
            assert!((scores.iter().map(|score| score.exp()).sum::<f32>() - 1.0).abs() < 1e-4);
        }
        let mut equal = vec![Tensor::from_f32(LOGITS, &[3], &[0.0, 1.0, 1.0]).unwrap()];
        apply(&mut equal, &verdict(-3.0, -0.05)).unwrap();
        assert_eq!(
            best_class(&equal[0].to_f32().unwrap()),
            Some(1),
            "the label stays"
        );
        let mut text = vec![
            Tensor::from_texts("text", &["to be"]).unwrap(),
            Tensor::from_f32("confidence", &[1], &[0.0]).unwrap(),
        ];
        apply(&mut text, &verdict(-1.0, -1.0)).unwrap();
        assert!((text[1].to_f32().unwrap()[0] - 0.5).abs() < 1e-6);
        assert_eq!(text[0].to_texts().unwrap(), ["to be"]);
        assert!(apply(&mut text, &Vec::new()).is_err());
    }

    #[test]
    fn what_is_put_into_a_prompt_is_not_read_again() {
        assert_eq!(
            fill("{text}: {answer}? {other}", "a {answer}", "b {text}"),
            "a {answer}: b {text}? {other}"
        );
    }
}
