//! A contiguous slice of a model's layers (pipeline parallelism).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A partition: a contiguous slice of a variant's layers (HybridServe §V).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Position in the chain, from 0.
    pub index: u32,
    /// Length of the chain, `S_i`.
    pub of: u32,
}

/// A partition of a model or the whole model, as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelPart(pub Option<Partition>);

impl fmt::Display for ModelPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => write!(f, "the whole model"),
            Some(Partition { index, of }) => write!(f, "partition {index} of {of}"),
        }
    }
}
