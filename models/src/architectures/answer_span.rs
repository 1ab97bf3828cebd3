//! The answer to a question: a span of its context.

use super::text::SecondText;
use crate::runtime::model::{ModelError, Outputs};
use crate::runtime::tensor;

/// Maximum length of an answer, tokens: the default of transformers' question answering.
pub(super) const LONGEST_ANSWER: usize = 15;

/// Returns the outputs of one question; every token's logits are its start and its end.
pub(super) fn span_outputs(context: Option<&SecondText>, logits: &[Vec<f32>]) -> Result<Outputs, ModelError> {
    let length = logits.len();
    let column = |index: usize| -> Vec<f32> {
        let values = logits.iter().filter_map(|logits| logits.get(index).copied());
        values.collect()
    };
    let (start, end) = (column(0), column(1));
    let mut outputs = vec![
        tensor::Tensor::from_f32("start_logits", &[length], &start)?,
        tensor::Tensor::from_f32("end_logits", &[length], &end)?,
    ];
    if let Some(context) = context {
        let (answer, span) = best_answer(context, &start, &end).ok_or_else(|| ModelError::BadInput {
            name: "text_pair".into(),
            reason: "the question leaves no room for it in this model's context, or it has no tokens".into(),
        })?;
        outputs.push(tensor::Tensor::from_texts("answer", &[answer])?);
        outputs.push(tensor::Tensor::from_i64("answer_span", &[2], &span)?);
    }
    Ok(outputs)
}

/// Returns the text of the best span and its byte range in the context; `None` if the context has no token.
///
/// The product of the two probabilities is largest where the sum of the two logits is.
fn best_answer<'a>(context: &'a SecondText, start: &[f32], end: &[f32]) -> Option<(&'a str, [i64; 2])> {
    let tokens = context.tokens();
    let starts = start.iter().enumerate().take(tokens.end).skip(tokens.start);
    let spans = starts.flat_map(|(first, start)| {
        let ends = end
            .iter()
            .enumerate()
            .take(tokens.end)
            .skip(first)
            .take(LONGEST_ANSWER);
        ends.map(move |(last, end)| (first, last, start + end))
    });
    let (first, last, _) = spans.max_by(|(.., a), (.., b)| a.total_cmp(b))?;
    let bytes = context.bytes(first, last)?;
    let span = [i64::try_from(bytes.start).ok()?, i64::try_from(bytes.end).ok()?];
    Some((context.text.get(bytes)?, span))
}
