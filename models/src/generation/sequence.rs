//! State of a request in the engine.

use super::detokenizer::Detokenizer;
use super::sampling::{Sampler, Sampling};
use crate::generation::layers::recurrent::RecurrentState;
use crate::generation::sampling::grammar::Constraint;
use crate::generation::sampling::token_rules::TextSoFar;

/// A waiting or running request, or a beam of one.
pub(super) struct Sequence {
    /// The request; a sequence of another number is a beam of it.
    pub(super) request: u64,
    /// Prompt and answer, in the order of the block table. The answer of an encoder-decoder begins with the encoder's
    /// start token.
    pub(super) tokens: Vec<u32>,
    /// Tokens that an encoder reads.
    pub(super) source: usize,
    /// Tokens before the first generated one.
    pub(super) prompt: usize,
    /// Whether a step has cached all tokens but the last; one that fails has not, whatever the scheduler takes the request for.
    pub(super) is_cached: bool,
    /// States of the recurrences after all tokens but the last; `None` if they must be computed from all tokens.
    pub(super) state: Option<RecurrentState>,
    pub(super) sampling: Sampling,
    pub(super) sampler: Sampler,
    pub(super) answer: Detokenizer,
    /// How far the answer has got in its grammar.
    pub(super) constraint: Option<Constraint>,
}

impl Sequence {
    /// A further beam with the tokens and the states of this one. Beams have no grammar.
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

    /// Forgets the answer.
    pub(super) fn restart(&mut self) {
        self.tokens.truncate(self.prompt);
        self.is_cached = false;
        self.state = None;
    }

    /// Returns the text so far.
    pub(super) fn text<'a>(&'a self, ends: &'a [u32]) -> TextSoFar<'a> {
        text_so_far(&self.tokens, self.source, self.prompt, ends)
    }
}

/// Separates the tokens that an encoder has read, `source` many, those of the prompt, `prompt` with them, and those of the
/// answer. For a sequence of which other fields are borrowed.
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
