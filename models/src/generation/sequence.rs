//! A request that waits or runs.

use super::detokenizer::Detokenizer;
use super::sampling::{Sampler, Sampling};

/// A request while it is here.
pub(super) struct Sequence {
    /// Prompt and answer, in the order of its table. The answer of an encoder-decoder begins with the token that begins them all.
    pub(super) tokens: Vec<u32>,
    /// Of them, those that an encoder reads.
    pub(super) source: usize,
    /// Tokens before the first that was generated.
    pub(super) prompt: usize,
    pub(super) sampling: Sampling,
    pub(super) sampler: Sampler,
    pub(super) answer: Detokenizer,
}
