//! Messages from an ingress to the replicas of a stage. They answer with a [`StageReply`](super::StageReply).

use kaskade_models::Tensor;
use kaskade_policy::confidence::deferral::ScoredSample;
use kaskade_policy::fan_in::Branch;
use kaskade_policy::remote::price::Cost;
use serde::{Deserialize, Serialize};

use super::lists::at_most;
use super::{MAX_CANCELLED, MAX_HOPS, Message, Token, tensors};

/// A request to a stage. A worker answers with a [`StageReply`](super::StageReply) to the message's reply subject.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of its own on the wire"
)]
pub struct StageRequest {
    /// Number of the request at its ingress.
    pub id: u64,
    /// The ingress that owns the request.
    pub ingress: String,
    /// 0 for the first attempt, 1 more for every retry; results of older attempts are dropped.
    #[serde(default)]
    pub attempt: u32,
    /// Token of this dispatch, which the subject of the result must carry as proof.
    #[serde(default)]
    pub token: Token,
    /// Branch of a pipeline's request, repeated in the result.
    #[serde(default, skip_serializing_if = "Branch::is_root")]
    pub branch: Branch,
    /// The epoch that admitted the request; the request finishes under that plan.
    #[serde(default)]
    pub epoch: u64,
    /// Index of the gear that admitted the request, in the plan of `epoch`.
    #[serde(default)]
    pub gear: u32,
    /// The stage to run.
    pub stage: String,
    /// Hops passed so far.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    pub hops: Vec<Hop>,
    /// Whether the client requested a streamed answer: a stage that always replies may send parts of its answer early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Whether the client accepts parts from stages that may defer, although a later stage may replace them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optimistic: bool,
    /// Whether the stage must reply even if it would defer, because no later stage could be reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_below_threshold: bool,
    /// Whether the stage must return its result to the ingress instead of forwarding the request: a replica that may
    /// have had the request was lost, so the ingress needs to know where the request is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub return_to_ingress: bool,
    /// The inputs, without a batch dimension.
    #[serde(with = "tensors")]
    pub inputs: Vec<Tensor>,
}

impl StageRequest {
    /// Returns the request without its inputs.
    pub(crate) fn without_inputs(&self) -> Self {
        Self {
            ingress: self.ingress.clone(),
            branch: self.branch.clone(),
            stage: self.stage.clone(),
            hops: self.hops.clone(),
            inputs: Vec::new(),
            ..*self
        }
    }
}

impl Message for StageRequest {
    const NAME: &'static str = "StageRequest";

    fn size_hint(&self) -> usize {
        tensors::size_hint(&self.inputs)
            + hops_hint(&self.hops)
            + branch_name_hint(&self.branch)
            + self.ingress.len()
            + self.stage.len()
            + 184
    }
}

/// A stage that a request has passed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Hop {
    /// The stage.
    pub stage: String,
    /// Time in the queue, microseconds.
    #[serde(default)]
    pub wait_us: u32,
    /// Run time of the batch, microseconds.
    #[serde(default)]
    pub run_us: u32,
    /// Size of the batch, requests.
    #[serde(default)]
    pub batch: u32,
    /// Cost of this request at the stage, in money; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The stage's answer, if a deferral score of a later stage reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<HopAnswer>,
}

/// Answer of a passed stage as read by the deferral score of a later stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopAnswer {
    /// Calibrated confidence, in millionths.
    pub confidence_ppm: u32,
    /// Answer number; equal answers have equal numbers.
    pub answer: u32,
}

impl From<ScoredSample> for HopAnswer {
    fn from(judged: ScoredSample) -> Self {
        Self {
            confidence_ppm: (judged.confidence.clamp(0.0, 1.0) * 1e6).round() as u32,
            answer: judged.answer,
        }
    }
}

impl From<HopAnswer> for ScoredSample {
    fn from(answer: HopAnswer) -> Self {
        Self {
            confidence: (f64::from(answer.confidence_ppm) / 1e6).min(1.0),
            answer: answer.answer,
        }
    }
}

/// Cancels requests of an ingress; replicas may drop them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StageCancel {
    /// The ingress that owned them.
    pub ingress: String,
    /// Numbers of the requests at the ingress.
    #[serde(deserialize_with = "at_most::<_, _, MAX_CANCELLED>")]
    pub ids: Vec<u64>,
}

impl Message for StageCancel {
    const NAME: &'static str = "StageCancel";
}

pub(super) fn branch_name_hint(branch: &Branch) -> usize {
    let levels = branch.levels();
    levels.map(|task| task.len() + 16).sum::<usize>() + 16
}

pub(super) fn hops_hint(hops: &[Hop]) -> usize {
    hops.iter().map(|hop| hop.stage.len() + 128).sum()
}
