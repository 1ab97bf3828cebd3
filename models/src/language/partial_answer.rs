//! Accumulates the answer of a request while it is generated.

use tokenizers::Tokenizer;

use super::answer::{AnswerScanner, Parts, REASONING, REASONING_TOKENS};
use super::inputs::bad_input;
use super::prompt_outputs::prompt_outputs;
use super::response_format::RESPONSE_FORMAT;
use super::tools::{TOOL_CALLS, TOOLS, ToolCall};
use crate::generation::{Event, FinishReason, PromptToken, detokenizer};
use crate::runtime::model::{ModelError, Outputs};
use crate::runtime::tensor::{Tensor, TensorError};
use crate::runtime::usage::usage;

/// The answer so far of a request in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct PartialAnswer {
    /// Number of prompt tokens; `None` in a partition, which does not receive the prompt.
    pub(super) prompt_tokens: Option<usize>,
    /// Whether the answer must be a call, so that its grammar results from the tools.
    pub(super) must_call: bool,
    /// Whether the outputs include the texts of the tokens.
    pub(super) token_texts: bool,
    /// Token before the answer, if the answer continues the prompt's text.
    pub(super) previous: Option<u32>,
    /// Separates reasoning and tool calls from the text.
    pub(super) scanner: AnswerScanner,
    pub(super) reasoning: String,
    pub(super) text: String,
    pub(super) tokens: Vec<i64>,
    pub(super) probabilities: Vec<f32>,
    /// Most probable tokens at each position with their log probabilities, concatenated over the positions.
    pub(super) top: Vec<(u32, f32)>,
    /// Number of reasoning tokens.
    pub(super) reasoning_tokens: i64,
    /// Minimum confidence of the tokens so far, without reasoning tokens.
    pub(super) confidence: Option<f32>,
    /// The first token of the prompt, and the others with their log probabilities, if the request asks for them.
    pub(super) prompt: Option<(u32, Vec<PromptToken>)>,
}

impl PartialAnswer {
    /// Appends the text and the token of an event. Returns the new parts of the answer.
    pub(super) fn add(&mut self, event: &Event) -> Parts {
        let was_reasoning = self.scanner.is_reasoning();
        let parts = self.scanner.push(&event.text);
        self.text.push_str(&parts.text);
        self.reasoning.push_str(&parts.reasoning);
        if let Some((_, prompt)) = &mut self.prompt {
            prompt.extend_from_slice(&event.prompt);
        }
        let Some(sampled) = &event.sampled else {
            return parts;
        };
        self.top.extend(&event.top_logprobs);
        if was_reasoning || self.scanner.is_reasoning() {
            self.reasoning_tokens += 1;
        } else {
            let confidence = self.confidence.unwrap_or(sampled.confidence);
            self.confidence = Some(confidence.min(sampled.confidence));
        }
        self.tokens.push(i64::from(sampled.token));
        self.probabilities.push(sampled.probability);
        parts
    }

    pub(super) fn outputs(
        mut self,
        end: FinishReason,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Outputs, ModelError> {
        let why = match end {
            FinishReason::Token => "token",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => {
                return Err(ModelError::Failed {
                    reason: "the request was cancelled".into(),
                });
            }
            FinishReason::NotFinite => {
                return Err(ModelError::BadOutput {
                    reason: "logits are not finite, so there is no next token".into(),
                });
            }
            FinishReason::Grammar => {
                let reason = "it takes too much time to follow; use a simpler schema or grammar";
                return Err(bad_input(self.format_input(), reason));
            }
        };
        let hit_max_tokens = end == FinishReason::Length;
        let (rest, calls) = std::mem::take(&mut self.scanner).finish(hit_max_tokens);
        self.text.push_str(&rest.text);
        self.reasoning.push_str(&rest.reasoning);
        let mut outputs = Vec::new();
        if tokenizer.is_some() {
            outputs.push(Tensor::from_texts("text", &[&self.text])?);
        }
        if !self.reasoning.is_empty() {
            outputs.push(Tensor::from_texts(REASONING, &[&self.reasoning])?);
            outputs.push(Tensor::from_i64(
                REASONING_TOKENS,
                &[1],
                &[self.reasoning_tokens],
            )?);
        }
        if !calls.is_empty() {
            let calls: Vec<String> = calls.iter().map(ToolCall::json).collect();
            outputs.push(bytes_tensor(TOOL_CALLS, &[calls.len()], &calls)?);
        }
        outputs.extend(self.token_outputs(0, tokenizer)?);
        if let Some((first, prompt)) = &self.prompt {
            outputs.extend(prompt_outputs(*first, prompt, tokenizer)?);
        }
        // An answer that ends inside its reasoning has no text, so its confidence is 0.
        let confidence = self.confidence.unwrap_or(0.0);
        outputs.push(Tensor::from_f32("confidence", &[1], &[confidence])?);
        outputs.push(Tensor::from_texts("end", &[why])?);
        if let Some(prompt) = self.prompt_tokens {
            outputs.push(usage(prompt, self.tokens.len())?);
        }
        Ok(outputs)
    }
}

impl PartialAnswer {
    /// Returns the name of the input that the answer's grammar is derived from.
    pub(super) fn format_input(&self) -> &'static str {
        if self.must_call { TOOLS } else { RESPONSE_FORMAT }
    }

    /// Returns the number of most probable tokens per position; `None` without any.
    fn top_of_each(&self) -> Option<usize> {
        let each = self.top.len().checked_div(self.tokens.len());
        each.filter(|each| *each > 0)
    }

    /// Returns the outputs for the tokens from index `from` on: tokens, texts, probabilities, and the most probable
    /// tokens at each position.
    pub(super) fn token_outputs(
        &self,
        from: usize,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Outputs, TensorError> {
        let tokens = self.tokens.get(from..).unwrap_or_default();
        let probabilities = self.probabilities.get(from..).unwrap_or_default();
        let mut outputs = vec![
            Tensor::from_i64("tokens", &[tokens.len()], tokens)?,
            Tensor::from_f32("probabilities", &[tokens.len()], probabilities)?,
        ];
        let each = self.top_of_each().unwrap_or(0);
        let top = self.top.get(from * each..).unwrap_or_default();
        if let Some(tokenizer) = tokenizer.filter(|_| self.token_texts) {
            let before = from.checked_sub(1).and_then(|before| self.tokens.get(before));
            let mut previous = match before {
                Some(before) => u32::try_from(*before).ok(),
                None => self.previous,
            };
            let (mut texts, mut top_texts) = (Vec::new(), Vec::new());
            let mut top = top.iter();
            for token in tokens {
                let token = u32::try_from(*token).unwrap_or_default();
                let text = |token| detokenizer::token_text(tokenizer, previous, token);
                texts.push(text(token));
                top_texts.extend(top.by_ref().take(each).map(|(token, _)| text(*token)));
                previous = Some(token);
            }
            outputs.push(bytes_tensor("token_texts", &[texts.len()], &texts)?);
            if each > 0 {
                outputs.push(bytes_tensor("top_token_texts", &[texts.len(), each], &top_texts)?);
            }
        }
        if each > 0 {
            let shape = [tokens.len(), each];
            let (tokens, logprobs): (Vec<u32>, Vec<f32>) = top.iter().copied().unzip();
            let tokens: Vec<i64> = tokens.into_iter().map(i64::from).collect();
            outputs.push(Tensor::from_i64("top_tokens", &shape, &tokens)?);
            outputs.push(Tensor::from_f32("top_logprobs", &shape, &logprobs)?);
        }
        Ok(outputs)
    }
}

/// Builds a BYTES tensor of this shape.
pub(super) fn bytes_tensor(name: &str, shape: &[usize], texts: &[String]) -> Result<Tensor, TensorError> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let tensor = Tensor::from_texts(name, &texts)?;
    Ok(Tensor {
        shape: shape.to_vec(),
        ..tensor
    })
}
