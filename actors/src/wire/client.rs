//! Requests of clients, and the replies to them.

use std::collections::BTreeMap;

use kaskade_models::Tensor;
use kaskade_policy::fan_in::{Branch, MAX_BRANCHES};
use serde::{Deserialize, Serialize};

use super::lists::{self, at_most};
use super::stage::{branch_name_hint, hops_hint};
use super::{Hop, MAX_HOPS, Message, tensors};
use crate::error::Fault;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct InferRequest {
    /// The inputs, without a batch dimension.
    #[serde(with = "tensors")]
    pub inputs: Vec<Tensor>,
    /// The client's own id, returned with the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Parameters for ingress and custom actors.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "lists::parameters"
    )]
    pub parameters: BTreeMap<String, String>,
}

impl Message for InferRequest {
    const NAME: &'static str = "InferRequest";

    fn size_hint(&self) -> usize {
        let parameters = self
            .parameters
            .iter()
            .map(|(name, value)| name.len() + value.len() + 10);
        tensors::size_hint(&self.inputs)
            + self.id.as_ref().map_or(0, String::len)
            + parameters.sum::<usize>()
            + 64
    }
}

/// A reply to a client.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct InferReply {
    /// The id that the client gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The outputs, without a batch dimension.
    #[serde(with = "tensors")]
    pub outputs: Vec<Tensor>,
    /// The stage that answered.
    #[serde(default)]
    pub stage: String,
    /// The variant that answered.
    #[serde(default)]
    pub variant: String,
    /// Its calibrated confidence in [0, 1], if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Every stage passed, in order.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    pub hops: Vec<Hop>,
    /// True if a stage answered that would have deferred, had there been time or a replica left, or if members of an
    /// ensemble are missing.
    #[serde(default)]
    pub degraded: bool,
    /// Set in a part of a streamed answer: the index of its first piece (of a language model: token). The complete
    /// answer comes last, without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// The results of the requests that a pipeline's tasks made of this one; the outputs above are the first task's
    /// own.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_BRANCHES>"
    )]
    pub branches: Vec<BranchReply>,
}

/// The result of one branch of a pipeline's request: outputs, or the error of this branch alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BranchReply {
    /// The branch: `classify.3` is the fourth request to the task `classify`, `classify.3/colour.0` the first request
    /// that it made.
    pub branch: Branch,
    /// The stage that ended it; empty if none did.
    #[serde(default)]
    pub stage: String,
    /// The variant that ended it.
    #[serde(default)]
    pub variant: String,
    /// Its calibrated confidence in [0, 1], if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The outputs, without a batch dimension; of a task that fanned out, its own outputs.
    #[serde(default, with = "tensors", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Tensor>,
    /// The error, if there are no outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

impl Message for InferReply {
    const NAME: &'static str = "InferReply";

    fn size_hint(&self) -> usize {
        tensors::size_hint(&self.outputs)
            + hops_hint(&self.hops)
            + self.id.as_ref().map_or(0, String::len)
            + self.stage.len()
            + self.variant.len()
            + self.branches.iter().map(branch_hint).sum::<usize>()
            + 96
    }
}

fn branch_hint(branch: &BranchReply) -> usize {
    tensors::size_hint(&branch.outputs)
        + branch_name_hint(&branch.branch)
        + branch.stage.len()
        + branch.variant.len()
        + branch.error.as_ref().map_or(0, |fault| fault.message.len() + 32)
        + 96
}
