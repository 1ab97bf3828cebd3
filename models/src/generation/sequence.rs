//! State of a request in the engine.

use super::detokenizer::Detokenizer;
use super::grammar::Constraint;
use super::recurrent::RecurrentState;
use super::sampling::{Sampler, Sampling};

/// A waiting or running request.
pub(super) struct Sequence {
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
