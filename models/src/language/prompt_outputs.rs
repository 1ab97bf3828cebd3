//! Outputs that describe the tokens of a prompt.

use tokenizers::Tokenizer;

use super::partial_answer::bytes_tensor;
use crate::generation::{PromptToken, detokenizer};
use crate::runtime::model::Outputs;
use crate::runtime::tensor::{Tensor, TensorError};

/// Returns the outputs for `prompt_logprobs`; empty ones are omitted.
///
/// For all tokens: `prompt_tokens` (INT64 `[tokens]`), and with a tokenizer `prompt_token_texts` (BYTES `[tokens]`)
/// and `prompt_text` (BYTES `[1]`). For all tokens but the first: `prompt_logprobs` (FP32 `[tokens - 1]`, natural
/// logarithms) and the most probable tokens at each position, `prompt_top_tokens` (INT64), `prompt_top_token_texts`
/// (BYTES) and `prompt_top_logprobs` (FP32), each `[tokens - 1, count]`.
pub(super) fn prompt_outputs(
    first: u32,
    others: &[PromptToken],
    tokenizer: Option<&Tokenizer>,
) -> Result<Outputs, TensorError> {
    let ids = std::iter::once(first).chain(others.iter().map(|token| token.token));
    let ids: Vec<i64> = ids.map(i64::from).collect();
    let mut outputs = vec![Tensor::from_i64("prompt_tokens", &[ids.len()], &ids)?];
    let mut texts = Texts::default();
    if let Some(tokenizer) = tokenizer {
        texts = Texts::new(first, others, tokenizer);
        outputs.push(bytes_tensor(
            "prompt_token_texts",
            &[texts.tokens.len()],
            &texts.tokens,
        )?);
        outputs.push(Tensor::from_texts("prompt_text", &[&texts.whole])?);
    }
    if others.is_empty() {
        return Ok(outputs);
    }
    let logprobs: Vec<f32> = others.iter().map(|token| token.logprob).collect();
    outputs.push(Tensor::from_f32("prompt_logprobs", &[others.len()], &logprobs)?);
    let each = others.first().map_or(0, |token| token.top.len());
    if each > 0 {
        let shape = [others.len(), each];
        let top = || others.iter().flat_map(|token| &token.top);
        let tokens: Vec<i64> = top().map(|(token, _)| i64::from(*token)).collect();
        let logprobs: Vec<f32> = top().map(|(_, logprob)| *logprob).collect();
        outputs.push(Tensor::from_i64("prompt_top_tokens", &shape, &tokens)?);
        if tokenizer.is_some() {
            outputs.push(bytes_tensor("prompt_top_token_texts", &shape, &texts.top)?);
        }
        outputs.push(Tensor::from_f32("prompt_top_logprobs", &shape, &logprobs)?);
    }
    Ok(outputs)
}

/// Texts of tokens, each in the context of the token before it.
#[derive(Default)]
struct Texts {
    tokens: Vec<String>,
    /// Text of all tokens together. Concatenated token texts would lack characters that span several tokens.
    whole: String,
    top: Vec<String>,
}

impl Texts {
    fn new(first: u32, others: &[PromptToken], tokenizer: &Tokenizer) -> Self {
        let mut texts = Self {
            tokens: vec![detokenizer::token_text(tokenizer, None, first)],
            whole: String::new(),
            top: Vec::new(),
        };
        let ids = std::iter::once(first).chain(others.iter().map(|token| token.token));
        texts.whole = detokenizer::whole_text(tokenizer, &ids.collect::<Vec<_>>());
        let mut previous = first;
        for token in others {
            let text = |token| detokenizer::token_text(tokenizer, Some(previous), token);
            texts.tokens.push(text(token.token));
            texts.top.extend(token.top.iter().map(|(token, _)| text(*token)));
            previous = token.token;
        }
        texts
    }
}
