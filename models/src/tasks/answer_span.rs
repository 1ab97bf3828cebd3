//! Question answering: selects the answer as a span of the context.

use crate::architectures::text::second_text::SecondText;
use crate::runtime::model::{ModelError, Outputs};
use crate::runtime::tensor;

/// Maximum length of an answer, tokens: the default of transformers' question answering.
pub(crate) const MAX_ANSWER_TOKENS: usize = 15;

/// A window of the context, if the request has texts, and the start and end logits of the window's tokens.
pub(crate) type Window<'a> = (Option<&'a SecondText>, Vec<Vec<f32>>);

/// Returns the outputs of one question: raw `start_logits` and `end_logits` FP32 `[sequence]`; for a question and a
/// context as texts also `answer` BYTES `[1]` and `answer_span` INT64 `[2]`, the byte range of the answer in the
/// context, end exclusive.
///
/// The answer is the span with the maximum product of start and end probability within its window, among spans of at
/// most [`MAX_ANSWER_TOKENS`] tokens, extended to whole words. The special token that represents the whole sequence is
/// included in the softmax, as in transformers 4: models choose it in a window without an answer. The logits are those
/// of the answer's window.
///
/// # Errors
/// [`ModelError::BadInput`] if no window contains a token of the context.
pub(crate) fn span_outputs(windows: &[Window<'_>]) -> Result<Outputs, ModelError> {
    let answers = windows.iter().map(|(context, logits)| {
        let [start, end] = [0, 1].map(|index| column(logits, index));
        let answer = context.and_then(|context| best_answer(context, &start, &end));
        (answer, start, end, context.is_some())
    });
    let score =
        |answer: &Option<Answer<'_>>| answer.as_ref().map_or(f32::NEG_INFINITY, |answer| answer.score);
    let best = answers.max_by(|(one, ..), (other, ..)| score(one).total_cmp(&score(other)));
    let (answer, start, end, asked) = best.unwrap_or_default();
    let mut outputs = vec![
        tensor::Tensor::from_f32("start_logits", &[start.len()], &start)?,
        tensor::Tensor::from_f32("end_logits", &[end.len()], &end)?,
    ];
    if asked {
        let answer = answer.ok_or_else(|| ModelError::BadInput {
            name: "text_pair".into(),
            reason: "the question leaves no room for it in this model's context, or it has no tokens".into(),
        })?;
        outputs.push(tensor::Tensor::from_texts("answer", &[answer.text])?);
        outputs.push(tensor::Tensor::from_i64("answer_span", &[2], &answer.bytes)?);
    }
    Ok(outputs)
}

/// Best span of a window.
struct Answer<'a> {
    text: &'a str,
    bytes: [i64; 2],
    /// Log probability of the span within its window. NaN ranks highest, so that it is detected.
    score: f32,
}

fn column(logits: &[Vec<f32>], index: usize) -> Vec<f32> {
    let values = logits.iter().filter_map(|logits| logits.get(index).copied());
    values.collect()
}

/// Returns the best span of a window; `None` if the window contains no token of the context.
fn best_answer<'a>(context: &'a SecondText, start: &[f32], end: &[f32]) -> Option<Answer<'a>> {
    let tokens = context.tokens();
    let (starts, ends) = (start.get(tokens.clone())?, end.get(tokens.clone())?);
    let summary = |logits: &[f32]| logits.get(context.summary()?).copied();
    let spans = starts.iter().enumerate().flat_map(|(first, start)| {
        let ends = ends.iter().enumerate().skip(first).take(MAX_ANSWER_TOKENS);
        ends.map(move |(last, end)| (first, last, start + end))
    });
    // The product of both probabilities is largest where the sum of both logits is.
    let (first, last, sum) = spans.max_by(|(.., a), (.., b)| a.total_cmp(b))?;
    let bytes = context.bytes(tokens.start + first, tokens.start + last)?;
    Some(Answer {
        text: context.text.get(bytes.clone())?,
        bytes: [i64::try_from(bytes.start).ok()?, i64::try_from(bytes.end).ok()?],
        score: sum - logarithm_of_sum(starts, summary(start)) - logarithm_of_sum(ends, summary(end)),
    })
}

/// Computes the log-sum-exp of `values` and `other`.
fn logarithm_of_sum(values: &[f32], other: Option<f32>) -> f32 {
    let all = || values.iter().copied().chain(other);
    let most = all().fold(f32::NEG_INFINITY, f32::max);
    most + all().map(|value| (value - most).exp()).sum::<f32>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_whose_model_finds_no_answer_loses() {
        let text = ["word"; 301].join(" ");
        let context = SecondText::of_words(&text, 2);
        // Logits: first token, other special tokens and question, then one word above the others.
        let window = |first: f32, best: f32, others: f32, place: usize| {
            let mut logits = vec![vec![first; 2]];
            logits.extend(vec![vec![-9.0; 2]; 3]);
            logits.extend((0..301).map(|word| vec![if word == place { best } else { others }; 2]));
            logits
        };
        let windows = [
            (Some(&context), window(10.0, 0.0, -8.0, 7)),
            (Some(&context), window(2.0, 6.0, 0.0, 100)),
        ];
        let outputs = span_outputs(&windows).unwrap();
        let span = outputs
            .iter()
            .find(|output| output.name == "answer_span")
            .unwrap();
        assert_eq!(span.to_i64().unwrap(), [500, 504]);
    }
}
