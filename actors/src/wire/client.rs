//! Requests of clients and their replies.

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
    /// The client's id, returned with the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Parameters for the ingress and for custom actors.
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
    /// The id given by the client.
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
    /// Calibrated confidence in [0, 1], if the variant has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Hops of all stages passed, in order.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    pub hops: Vec<Hop>,
    /// True if the stage would have deferred with more time or a reachable replica, or if members of an ensemble are
    /// missing.
    #[serde(default)]
    pub degraded: bool,
    /// Set in a part of a streamed answer: the index of its first piece (for a language model: token). The complete
    /// answer comes last, without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Results of the requests made by a pipeline's tasks; the outputs above are those of the first task itself.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_BRANCHES>"
    )]
    pub branches: Vec<BranchReply>,
}

/// Result of one branch of a pipeline's request: outputs, or the error of this branch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BranchReply {
    /// The branch: `classify.3` is the fourth request to the task `classify`, `classify.3/colour.0` the first request
    /// made by that task.
    pub branch: Branch,
    /// The last stage of the branch; empty if none ended it.
    #[serde(default)]
    pub stage: String,
    /// The variant of that stage.
    #[serde(default)]
    pub variant: String,
    /// Calibrated confidence in [0, 1], if the variant has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The outputs, without a batch dimension. For a task that fanned out, the task's own outputs.
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
