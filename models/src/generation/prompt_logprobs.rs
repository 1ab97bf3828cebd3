//! Log probabilities of the tokens of a prompt.

use std::collections::BTreeMap;

use super::engine::Engine;
use super::forward_pass::MiniBatch;
use crate::generation::sampling::penalties::{log_of_sum, logprob, top_logprobs};
use crate::ops::{Ops, OpsError, Span};

/// Maximum rows of logits in memory at a time; a row has the size of the vocabulary.
const ROWS_AT_ONCE: usize = 64;

/// A prompt token with its probability given the tokens before it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// Token id.
    pub token: u32,
    /// Natural log probability among all tokens.
    pub logprob: f32,
    /// The most probable tokens with their log probabilities, in falling order.
    pub top: Vec<(u32, f32)>,
}

impl PromptToken {
    fn new(logits: &[f32], token: u32, count: usize) -> Self {
        let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        Self {
            token,
            logprob: logprob(logit, log_of_sum(logits)),
            top: top_logprobs(logits, count),
        }
    }
}

impl<M: Ops> Engine<M> {
    /// Returns the prompt tokens except the first for prompts that were prefilled in this step, if their requests ask
    /// for them. A request gets them once, even if it is preempted and its prompt is prefilled again.
    pub(super) fn prompt_logprobs(
        &mut self,
        batches: &[MiniBatch<M>],
    ) -> Result<BTreeMap<u64, Vec<PromptToken>>, OpsError> {
        let mut found = BTreeMap::new();
        for batch in batches {
            let mut next = 0;
            for entry in &batch.entries {
                let first = next;
                next += entry.new;
                let Some(sequence) = self.sequences.get(&entry.request) else {
                    continue;
                };
                let Some(count) = sequence.sampling.prompt_logprobs.filter(|_| entry.cached == 0) else {
                    continue;
                };
                let prompt = sequence.tokens.get(..sequence.prompt).unwrap_or_default();
                let mut tokens = Vec::with_capacity(prompt.len());
                // The logits of a token belong to the token before it.
                for (chunk, predicted) in prompt
                    .get(1..)
                    .unwrap_or_default()
                    .chunks(ROWS_AT_ONCE)
                    .enumerate()
                {
                    let rows = Span {
                        matrix: &batch.x,
                        from: first + chunk * ROWS_AT_ONCE,
                        count: predicted.len(),
                    };
                    let rows = self.logits(&self.ops.gather(&[rows], self.decoder.model_config.width))?;
                    let rows = rows.iter().zip(predicted);
                    tokens.extend(rows.map(|(logits, token)| PromptToken::new(logits, *token, count)));
                }
                found.insert(entry.request, tokens);
            }
        }
        for request in found.keys() {
            if let Some(sequence) = self.sequences.get_mut(request) {
                sequence.sampling.prompt_logprobs = None;
            }
        }
        Ok(found)
    }
}
