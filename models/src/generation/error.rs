//! Errors of the engine.

use kaskade_policy::hybrid_cache::{CostError, Refused};
use thiserror::Error;

use super::config::OutOfMemory;
use super::sampling::SamplingError;
use crate::ops::OpsError;

/// Why an engine rejects a request or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The device has too little memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The request can never run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The sampling parameters are invalid.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The token is not in the vocabulary.
    #[error("token {token} is not in this model's vocabulary, 0..={last}")]
    Token {
        /// The token.
        token: u32,
        /// The last token id of the vocabulary.
        last: usize,
    },
    /// The prompt exceeds the encoder's context.
    #[error(
        "the prompt has {tokens} tokens and this model's encoder reads {limit} at most; shorten it{hint}"
    )]
    Prompt {
        /// Length of the prompt, tokens.
        tokens: usize,
        /// Maximum prompt length, tokens.
        limit: usize,
        /// Additional hint; may be empty.
        hint: &'static str,
    },
    /// Stop texts and grammars need a tokenizer.
    #[error("it needs a tokenizer.json, and this checkpoint has none")]
    NoTokenizer,
    /// The grammar is invalid or cannot be followed.
    #[error("an answer cannot follow the requested format: {0}")]
    Grammar(String),
    /// The device failed; the step had no effect.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// No linear function fits the measured costs.
    #[error("what a layer costs could not be measured: {0}")]
    Costs(#[from] CostError),
    /// The transfer thread ended early.
    #[error("the transfer thread ended early; restart the engine")]
    CopyingEnded,
}
