//! Continuous batching: requests join and leave a model's batch between two of its steps, as language models are served.

use crate::model::{Inputs, ModelError, Outputs};

/// Something that takes and finishes requests while others run. A model says that it is so by
/// [`Model::continuous`](crate::Model::continuous).
///
/// Requests go by numbers that the caller gives, each unlike every other under way.
pub trait Continuous {
    /// Takes a request; the next steps tell of it.
    ///
    /// # Errors
    /// [`ModelError`] for one that cannot be answered.
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError>;

    /// Ends a request, if it is under way; nothing more is told of it.
    fn cancel(&mut self, number: u64);

    /// Takes all requests under way one step on: what is new of each.
    fn step(&mut self) -> Vec<Progress>;
}

/// What is new of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The request.
    pub number: u64,
    /// Pieces that its answer has by now, the new ones included: of a language model, tokens.
    pub pieces: u32,
    /// What is new of the answer, for whoever reads along; it may be empty.
    pub part: Outputs,
    /// What it came to, or why it came to nothing, once it has ended.
    pub end: Option<Result<Outputs, ModelError>>,
}
