//! What actors say to each other, and how it becomes bytes.
//!
//! Messages are MessagePack maps with field names; unknown fields are ignored, so that peers of different versions and
//! languages take part. [`Message`] encodes and decodes; [`client_codec`] adds JSON where clients come in.

pub mod chunks;
pub mod client_codec;
mod codec;
mod done;
mod energy;
pub mod headers;
mod lists;
mod scan;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kaskade_models::Tensor;
use kaskade_plans::gather::{Branch, MAX_BRANCHES};
use serde::{Deserialize, Serialize};

use crate::error::Fault;

pub use client_codec::{ContentType, decode_infer, decode_reply, encode_fault, encode_reply};
pub use codec::{CodecError, Limits, Message};
pub use done::{Done, DoneResult};
pub use energy::{EnergyReport, ModelEnergy, Tokens};
pub use lists::MAX_PARAMETERS;
use lists::at_most;
pub use tensors::{MAX_RANK, MAX_TENSORS};

/// Hops kept in one message; a cascade has a handful, a pipeline a few more.
pub const MAX_HOPS: usize = 64;

/// Replicas in one beat.
pub const MAX_REPLICAS: usize = 1024;

/// Requests in one [`Abandoned`].
pub const MAX_ABANDONED: usize = 4096;

/// Gears in one message.
pub const MAX_GEARS: usize = 4096;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct InferRequest {
    /// The inputs, without a batch dimension.
    #[serde(with = "tensors")]
    pub inputs: Vec<Tensor>,
    /// The client's own id, returned with the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Anything else that a custom actor understands.
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

/// What a client gets.
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
    /// Its calibrated confidence in [0, 1], where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Every stage passed, in order.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    pub hops: Vec<Hop>,
    /// Answered by a stage that would have passed it on, had there been time or a replica left; or by fewer than should have
    /// been heard.
    #[serde(default)]
    pub degraded: bool,
    /// Set in a part of an answer that goes on, for a client that asked to read along: the number of its first piece (of a language
    /// model: token). The whole answer comes last, without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// What came of each request that the tasks of a pipeline made of this one; the outputs above are the first task's own.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_BRANCHES>"
    )]
    pub branches: Vec<BranchReply>,
}

/// What came of one branch of a pipeline's request: outputs, or the error of this branch alone.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BranchReply {
    /// Which: `classify.3` is the fourth request to the task `classify`, `classify.3/colour.0` the first that came of that.
    pub branch: Branch,
    /// The stage that ended it; empty where none did.
    #[serde(default)]
    pub stage: String,
    /// The variant that ended it.
    #[serde(default)]
    pub variant: String,
    /// Its calibrated confidence in [0, 1], where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The outputs, without a batch dimension; of a task that made further requests, those that went to none of them.
    #[serde(default, with = "tensors", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Tensor>,
    /// Why there are none.
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

/// What a stage is asked. A worker answers with a [`Done`] to the message's reply subject.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StageRequest {
    /// The request, as its ingress numbers it.
    pub id: u64,
    /// The ingress that owns it.
    pub ingress: String,
    /// 0 for the first try, one more for every retry; results of older attempts are dropped.
    #[serde(default)]
    pub attempt: u32,
    /// Which of the requests this is that a pipeline's task made of one; the answer names it.
    #[serde(default, skip_serializing_if = "Branch::is_root")]
    pub branch: Branch,
    /// The epoch that admitted it; it finishes under that plan.
    #[serde(default)]
    pub epoch: u64,
    /// Position of the gear that admitted it, in its plan.
    #[serde(default)]
    pub gear: u32,
    /// The stage asked.
    pub stage: String,
    /// The stages passed so far.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    pub hops: Vec<Hop>,
    /// Whether the client reads along: a stage whose answer is the last word may send parts of it before it is whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Whether an answer that is not sure enough is to be given all the same, because whoever would do better could not be reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settle: bool,
    /// The inputs, without a batch dimension.
    #[serde(with = "tensors")]
    pub inputs: Vec<Tensor>,
}

impl StageRequest {
    /// The same for other inputs.
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
            + 96
    }
}

/// One stage passed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Hop {
    /// The stage.
    pub stage: String,
    /// Time in its queue, microseconds.
    #[serde(default)]
    pub wait_us: u32,
    /// Time of the batch that it was part of, microseconds.
    #[serde(default)]
    pub run_us: u32,
    /// Requests in that batch.
    #[serde(default)]
    pub batch: u32,
}

fn branch_hint(branch: &BranchReply) -> usize {
    tensors::size_hint(&branch.outputs)
        + branch_name_hint(&branch.branch)
        + branch.stage.len()
        + branch.variant.len()
        + branch.error.as_ref().map_or(0, |fault| fault.message.len() + 32)
        + 96
}

fn branch_name_hint(branch: &Branch) -> usize {
    let levels = branch.levels();
    levels.map(|task| task.len() + 16).sum::<usize>() + 16
}

fn fan_outs_hint(fan_outs: &FanOuts) -> usize {
    let children = fan_outs.children.keys();
    children.map(|task| task.len() + 16).sum::<usize>() + 48
}

fn hops_hint(hops: &[Hop]) -> usize {
    hops.iter().map(|hop| hop.stage.len() + 48).sum()
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Beat {
    /// The actor's name, unique in the app.
    pub actor: String,
    /// What it is: `ingress`, `worker`, ...
    pub kind: String,
    /// The replicas it hosts.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_REPLICAS>")]
    pub replicas: Vec<ReplicaBeat>,
    /// Requests that wait in it, over all its replicas.
    #[serde(default)]
    pub queue: u32,
    /// Requests that it works on.
    #[serde(default)]
    pub in_flight: u32,
    /// By variant, the requests that came apart at a pipeline's task since it started, and what they came to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fan_outs: BTreeMap<String, FanOuts>,
    /// By variant, the batches that it ran since it started; none of language models, whose batches are steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<String, Runs>,
    /// The newest epoch it knows.
    #[serde(default)]
    pub epoch: u64,
    /// Counts this actor's beats from 0; a smaller number than the last means that it started again, or was cut off from the broker:
    /// what it had been sent may be lost.
    #[serde(default)]
    pub sequence: u64,
}

impl Message for Beat {
    const NAME: &'static str = "Beat";

    fn size_hint(&self) -> usize {
        let replicas = self.replicas.iter();
        let fan_outs = self.fan_outs.iter();
        160 + fan_outs
            .map(|(variant, fan_outs)| variant.len() + fan_outs_hint(fan_outs))
            .sum::<usize>()
            + self.runs.keys().map(|variant| variant.len() + 64).sum::<usize>()
            + self.actor.len()
            + self.kind.len()
            + replicas
                .map(|replica| replica.id.len() + replica.stage.len() + replica.variant.len() + 64)
                .sum::<usize>()
    }
}

/// Requests that came apart at a pipeline's task, and what they came to: the multiplicative factors as they are (Loki §4.2).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FanOuts {
    /// Requests answered.
    pub requests: u64,
    /// Requests that went on to each task below.
    #[serde(default)]
    pub children: BTreeMap<String, u64>,
}

/// Batches that were run, and how long they took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Runs {
    /// Batches.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Time that they took, microseconds.
    pub busy_us: u64,
}

/// One replica in a [`Beat`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReplicaBeat {
    /// Its id in the plan.
    pub id: String,
    /// The stage it serves.
    #[serde(default)]
    pub stage: String,
    /// The variant it runs.
    #[serde(default)]
    pub variant: String,
    /// Requests that wait for it.
    #[serde(default)]
    pub queue: u32,
    /// Requests in its current batch.
    #[serde(default)]
    pub in_flight: u32,
}

/// Nobody waits any more for these requests: whoever works on them may let go of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Abandoned {
    /// The ingress that owned them.
    pub ingress: String,
    /// As it numbers them.
    #[serde(deserialize_with = "at_most::<_, _, MAX_ABANDONED>")]
    pub ids: Vec<u64>,
}

impl Message for Abandoned {
    const NAME: &'static str = "Abandoned";
}

/// The gear to use from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GearShift {
    /// The plan that the gear belongs to; a shift for another epoch is ignored.
    pub epoch: u64,
    /// Its position in that plan.
    pub gear: u32,
}

impl Message for GearShift {
    const NAME: &'static str = "GearShift";
}

/// What an ingress has counted, told every tick (CascadeServe §5). The total makes good whatever message is lost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadCount {
    /// Who counted.
    pub ingress: String,
    /// Requests that came since its start, accepted or not.
    pub arrivals: u64,
}

impl Message for LoadCount {
    const NAME: &'static str = "LoadCount";
}

/// A shift that was made, and why: for people and dashboards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShiftReport {
    /// The running plan.
    pub epoch: u64,
    /// The gear before.
    pub from: u32,
    /// The gear since.
    pub to: u32,
    /// Measured load, requests/s.
    pub qps: f64,
    /// Requests that waited for the first stage.
    pub first_queue: u64,
}

impl Message for ShiftReport {
    const NAME: &'static str = "ShiftReport";
}

/// The load is not what the running plan was made for (CascadeServe appendix C.2).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DriftNotice {
    /// The running plan.
    pub epoch: u64,
    /// Total variation distance between the measured and the planned distribution of load, in [0, 1].
    pub distance: f64,
    /// Measured share of time in each gear's range.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_GEARS>")]
    pub measured: Vec<f64>,
    /// Highest load seen, requests/s.
    pub peak_qps: f64,
}

impl Message for DriftNotice {
    const NAME: &'static str = "DriftNotice";
}

/// Asks the planner for another plan.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Why, for the log.
    #[serde(default)]
    pub reason: String,
    /// The highest load to plan for, requests/s; the planner's own setting where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_qps: Option<f64>,
    /// Share of time in each of the running gears' ranges, as measured; the planner's own prior where empty.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_GEARS>")]
    pub measured: Vec<f64>,
    /// By worker and variant, the requests that came apart at a pipeline's task since it started, and what they came to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fan_outs: BTreeMap<String, BTreeMap<String, FanOuts>>,
    /// By worker and variant, the batches that were run since it started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<String, BTreeMap<String, Runs>>,
    /// What a planner that decides by itself when to plan has seen by now; absent where somebody asks for a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observation>,
}

/// The load as a planner sees it at a look.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// When, on the planner's clock, microseconds.
    pub at_us: u64,
    /// Requests that the ingresses let in since the planner began to listen.
    pub arrivals: u64,
    /// The workers that are alive; empty before any was heard.
    #[serde(default)]
    pub workers: Vec<String>,
}

impl Message for PlanRequest {
    const NAME: &'static str = "PlanRequest";
}

/// How planning ended. Whatever it says, a plan that was running before is untouched unless this one was version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum PlanReport {
    /// The new plan runs.
    Adopted {
        /// As this epoch.
        epoch: u64,
    },
    /// The plan found is the one that runs.
    Unchanged {
        /// As this epoch.
        epoch: u64,
    },
    /// No plan was found, or the one found cannot be served.
    Refused {
        /// Why.
        reason: String,
    },
    /// The planner panicked.
    Crashed,
    /// The planner took too long and was given up.
    TimedOut {
        /// How long it was given, milliseconds.
        limit_ms: u64,
    },
    /// Somebody else's plan was written first.
    Stale {
        /// The epoch that runs.
        newest: Option<u64>,
    },
    /// The planner is at work already.
    Busy,
}

impl Message for PlanReport {
    const NAME: &'static str = "PlanReport";
}

/// A new plan can be read from the plan store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanNotice {
    /// Its epoch.
    pub epoch: u64,
}

impl Message for PlanNotice {
    const NAME: &'static str = "PlanNotice";
}
