//! State of a request in the engine.

use super::detokenizer::Detokenizer;
use super::sampling::{Sampler, Sampling};
use crate::generation::layers::recurrent::RecurrentState;
use crate::generation::sampling::grammar::Constraint;
use crate::generation::sampling::token_rules::TextSoFar;

/// A waiting or running request, or one of its beams.
pub(super) struct Sequence {
    /// Request number; a sequence with a different number is a beam of the request.
    pub(super) request: u64,
    /// Tokens of prompt and answer, in the order of the block table. The answer of an encoder-decoder begins with the
    /// start token.
    pub(super) tokens: Vec<u32>,
    /// Number of tokens that an encoder reads.
    pub(super) source: usize,
    /// Number of tokens before the first generated one.
    pub(super) prompt: usize,
    /// Whether a step has cached all tokens except the last; false after a failed step, even if the scheduler
    /// considers the request prefilled.
    pub(super) is_cached: bool,
    /// Recurrent states after all tokens except the last; `None` if they must be recomputed from all tokens.
    pub(super) state: Option<RecurrentState>,
    pub(super) sampling: Sampling,
    pub(super) sampler: Sampler,
    pub(super) answer: Detokenizer,
    /// State of the answer in its grammar.
    pub(super) constraint: Option<Constraint>,
}

impl Sequence {
    /// Creates another beam with the tokens and states of this one. Beams have no grammar.
    pub(super) fn fork(&self) -> Self {
        Self {
            tokens: self.tokens.clone(),
            state: self.state.clone(),
            sampling: self.sampling.clone(),
            sampler: self.sampler.clone(),
            answer: self.answer.clone(),
            constraint: None,
            ..*self
        }
    }

    /// Drops the answer.
    pub(super) fn restart(&mut self) {
        self.tokens.truncate(self.prompt);
        self.is_cached = false;
        self.state = None;
    }

    /// Returns the tokens so far.
    pub(super) fn text<'a>(&'a self, ends: &'a [u32]) -> TextSoFar<'a> {
        text_so_far(&self.tokens, self.source, self.prompt, ends)
    }
}

/// Splits tokens into the `source` tokens of an encoder, the rest of the first `prompt` tokens, and the answer. A free
/// function, for callers that borrow other fields of the sequence.
pub(super) fn text_so_far<'a>(
    tokens: &'a [u32],
    source: usize,
    prompt: usize,
    ends: &'a [u32],
) -> TextSoFar<'a> {
    let (prompt, answer) = tokens.split_at_checked(prompt).unwrap_or_default();
    let (source, prompt) = prompt.split_at_checked(source).unwrap_or_default();
    TextSoFar {
        source,
        prompt,
        answer,
        ends,
    }
}
