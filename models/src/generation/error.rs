//! Why an engine refuses or fails.

use kaskade_plans::hybrid_cache::{CostError, Refused};
use thiserror::Error;

use super::config::OutOfMemory;
use super::sampling::SamplingError;
use crate::ops::OpsError;

/// Why an engine refuses or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The device has too little memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A request could never run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An answer cannot be made so.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A token is none of the model's.
    #[error("token {token} is none of this model's, which has 0..={last}")]
    Token {
        /// The token.
        token: u32,
        /// The last one it has.
        last: usize,
    },
    /// A prompt is longer than an encoder reads.
    #[error("the prompt has {tokens} tokens and this model's encoder reads {most} at most; shorten it")]
    Prompt {
        /// Its tokens.
        tokens: usize,
        /// The most the encoder reads.
        most: usize,
    },
    /// A stop text was asked for and there is no tokenizer to read answers with.
    #[error("stop texts need a tokenizer.json, and this checkpoint has none")]
    NoTokenizer,
    /// The device failed; nothing of the step counts.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// Measuring gave no line.
    #[error("what a layer costs could not be measured: {0}")]
    Costs(#[from] CostError),
    /// A mini-batch's blocks did not come.
    #[error("the copying thread ended early; start the engine anew")]
    CopyingEnded,
}
