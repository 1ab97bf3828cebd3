//! Messages between actors, and their encoding.
//!
//! Messages are MessagePack maps with field names; unknown fields are ignored, so that peers of different versions
//! and languages interoperate. [`Message`] encodes and decodes; [`client_codec`] adds JSON for clients.

pub mod chunks;
pub mod client_codec;
mod codec;
mod done;
mod energy;
pub mod headers;
mod lists;
mod options;
mod scan;
mod tensors;
#[cfg(test)]
mod tests;
mod token;
mod watch;

use std::collections::BTreeMap;

use kaskade_models::Tensor;
use kaskade_policy::confidence::deferral::Judged;
use kaskade_policy::gather::{Branch, MAX_BRANCHES};
use kaskade_policy::remote::price::Cost;
use serde::{Deserialize, Serialize};

use crate::error::Fault;

pub use client_codec::{ContentType, decode_infer, decode_reply, encode_fault, encode_reply};
pub use codec::{CodecError, Limits, Message};
pub use done::{Done, DoneResult};
pub use energy::{EnergyReport, ModelEnergy, Tokens};
pub use lists::MAX_PARAMETERS;
use lists::at_most;
pub use options::RequestOptions;
pub use tensors::{Data as TensorData, MAX_RANK, MAX_TENSORS, WrittenData as TensorElements};
pub use token::{NotAToken, Token, TokenKey};
pub use watch::{
    AuditReport, CascadeStanding, CertificateNotice, Feedback, FeedbackReply, Found, RightAnswer, WatchReport,
};

/// Largest number of hops in one message.
pub const MAX_HOPS: usize = 64;

/// Largest number of replicas in one heartbeat.
pub const MAX_REPLICAS: usize = 1024;

/// Largest number of requests in one [`Abandoned`].
pub const MAX_ABANDONED: usize = 4096;

/// Largest number of gears in one message.
pub const MAX_GEARS: usize = 4096;

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

/// A request to a stage. A worker answers with a [`Done`] to the message's reply subject.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of its own on the wire"
)]
pub struct StageRequest {
    /// The request, as its ingress numbers it.
    pub id: u64,
    /// The ingress that owns it.
    pub ingress: String,
    /// 0 for the first try, one more for every retry; results of older attempts are dropped.
    #[serde(default)]
    pub attempt: u32,
    /// Proves that a result answers this dispatch: the subject of the result carries it.
    #[serde(default)]
    pub token: Token,
    /// The branch of a pipeline's request; the answer names it.
    #[serde(default, skip_serializing_if = "Branch::is_root")]
    pub branch: Branch,
    /// The epoch that admitted it; it finishes under that plan.
    #[serde(default)]
    pub epoch: u64,
    /// Index in its plan of the gear that admitted it.
    #[serde(default)]
    pub gear: u32,
    /// The stage to run.
    pub stage: String,
    /// The stages passed so far.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    pub hops: Vec<Hop>,
    /// Whether the client asked for a streamed answer: a stage that always replies may send parts of its answer
    /// early.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// Whether the client wants parts also of stages that may defer, although a later stage may replace them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optimistic: bool,
    /// Whether the stage must reply even if it would defer, because no later stage could be reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settle: bool,
    /// Whether the stage must return its result to the ingress instead of sending the request on: a replica that may have
    /// had the request was lost, so the ingress has to know where it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub via_ingress: bool,
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
            + 160
    }
}

/// One stage passed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Hop {
    /// The stage.
    pub stage: String,
    /// Time in its queue, microseconds.
    #[serde(default)]
    pub wait_us: u32,
    /// Run time of its batch, microseconds.
    #[serde(default)]
    pub run_us: u32,
    /// Requests in that batch.
    #[serde(default)]
    pub batch: u32,
    /// What the stage cost this request in money; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Its answer, if a later stage of the plan decides by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<HopAnswer>,
}

/// The answer of a passed stage, as a deferral score of a later stage reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopAnswer {
    /// Calibrated confidence, in millionths.
    pub confidence_ppm: u32,
    /// A number for the answer, the same for the same answer.
    pub answer: u32,
}

impl From<Judged> for HopAnswer {
    fn from(judged: Judged) -> Self {
        Self {
            confidence_ppm: (judged.confidence.clamp(0.0, 1.0) * 1e6).round() as u32,
            answer: judged.answer,
        }
    }
}

impl From<HopAnswer> for Judged {
    fn from(answer: HopAnswer) -> Self {
        Self {
            confidence: (f64::from(answer.confidence_ppm) / 1e6).min(1.0),
            answer: answer.answer,
        }
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

fn branch_name_hint(branch: &Branch) -> usize {
    let levels = branch.levels();
    levels.map(|task| task.len() + 16).sum::<usize>() + 16
}

fn fan_outs_hint(fan_outs: &FanOuts) -> usize {
    let children = fan_outs.children.keys();
    children.map(|task| task.len() + 16).sum::<usize>() + 48
}

fn hops_hint(hops: &[Hop]) -> usize {
    hops.iter().map(|hop| hop.stage.len() + 128).sum()
}

/// A heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Beat {
    /// The actor's name, unique in the app.
    pub actor: String,
    /// Its kind: `ingress`, `worker`, ...
    pub kind: String,
    /// The replicas it hosts.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_REPLICAS>")]
    pub replicas: Vec<ReplicaBeat>,
    /// Requests waiting in its queues.
    #[serde(default)]
    pub queue: u32,
    /// Requests in progress.
    #[serde(default)]
    pub in_flight: u32,
    /// Fan-outs by variant since it started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fan_outs: BTreeMap<String, FanOuts>,
    /// Batches by variant since it started, without language models, whose batches are steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<String, Runs>,
    /// The newest epoch it knows.
    #[serde(default)]
    pub epoch: u64,
    /// The newest epoch of which every replica placed on it is loaded and subscribed, or has failed to load; 0 before
    /// the first.
    #[serde(default)]
    pub in_place: u64,
    /// The replicas of that epoch that it failed to load.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_REPLICAS>"
    )]
    pub failed: Vec<String>,
    /// Whether it is shutting down: it finishes what it has accepted and must not be chosen for more.
    #[serde(default)]
    pub leaving: bool,
    /// Sequence number of the heartbeat, from 0. A smaller number than the last means that the actor restarted or
    /// lost its connection, so messages sent to it may be lost.
    #[serde(default)]
    pub sequence: u64,
    /// A number that differs from that of an earlier start of the actor: a process that dies soon after its start may have sent
    /// no more heartbeats than the one after it. 0 if it is not told.
    #[serde(default)]
    pub instance: u64,
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
            + self.failed.iter().map(|replica| replica.len() + 8).sum::<usize>()
            + self.actor.len()
            + self.kind.len()
            + replicas
                .map(|replica| replica.id.len() + replica.stage.len() + replica.variant.len() + 64)
                .sum::<usize>()
    }
}

/// Fan-outs of a pipeline's task: the measured multiplicative factors (Loki §4.2).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FanOuts {
    /// Requests answered.
    pub requests: u64,
    /// Requests sent to each child task.
    #[serde(default)]
    pub children: BTreeMap<String, u64>,
}

/// Batches run, and their run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Runs {
    /// Batches.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Run time, microseconds.
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
    /// Whether it cannot answer at present, such as one whose endpoint is down: it is alive and must not be chosen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unavailable: bool,
}

/// The state of an ingress, for the processes that forward requests: published at every change and once per second.
///
/// Workers do not follow each other's heartbeats. They learn here which replicas to avoid, and which epochs may still
/// have requests in flight.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IngressState {
    /// The ingress, unique in the app.
    pub ingress: String,
    /// Sequence number of the message, from 0.
    #[serde(default)]
    pub sequence: u64,
    /// The epoch under which it admits requests; 0 before the first.
    #[serde(default)]
    pub admits: u64,
    /// The oldest epoch of its requests in flight; `admits` if it has none.
    #[serde(default)]
    pub oldest: u64,
    /// Whether it started less than a detection period ago: it does not know yet which replicas live.
    #[serde(default)]
    pub starting: bool,
    /// Replicas to avoid: lost, leaving, or placed by a plan and never heard.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_REPLICAS>")]
    pub unavailable: Vec<String>,
    /// Whether this is its last message.
    #[serde(default)]
    pub gone: bool,
}

impl Message for IngressState {
    const NAME: &'static str = "IngressState";
}

/// Cancels requests of an ingress: replicas may drop them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Abandoned {
    /// The ingress that owned them.
    pub ingress: String,
    /// The requests, as the ingress numbers them.
    #[serde(deserialize_with = "at_most::<_, _, MAX_ABANDONED>")]
    pub ids: Vec<u64>,
}

impl Message for Abandoned {
    const NAME: &'static str = "Abandoned";
}

/// Sets the current gear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GearShift {
    /// The plan that the gear belongs to; a shift for another epoch is ignored.
    pub epoch: u64,
    /// Index of the gear in that plan.
    pub gear: u32,
}

impl Message for GearShift {
    const NAME: &'static str = "GearShift";
}

/// An ingress's arrival count, published every tick (CascadeServe §5). It is a running total, so a lost message does
/// no harm.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadCount {
    /// The ingress.
    pub ingress: String,
    /// Requests received since its start, accepted or not.
    pub arrivals: u64,
}

impl Message for LoadCount {
    const NAME: &'static str = "LoadCount";
}

/// A gear shift and its reason, for people and dashboards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShiftReport {
    /// The running plan.
    pub epoch: u64,
    /// The previous gear.
    pub from: u32,
    /// The new gear.
    pub to: u32,
    /// Measured load, requests/s.
    pub qps: f64,
    /// Requests that waited for the first stage.
    pub first_queue: u64,
}

impl Message for ShiftReport {
    const NAME: &'static str = "ShiftReport";
}

/// The load has drifted from the plan (CascadeServe appendix C.2).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DriftNotice {
    /// The running plan.
    pub epoch: u64,
    /// Total variation distance between the measured and the planned distribution of load, in [0, 1].
    pub distance: f64,
    /// Measured share of time in each gear's range.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_GEARS>")]
    pub measured: Vec<f64>,
    /// Highest measured load, requests/s.
    pub peak_qps: f64,
}

impl Message for DriftNotice {
    const NAME: &'static str = "DriftNotice";
}

/// Requests a new plan from the planner.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlanRequest {
    /// The reason, for the log.
    #[serde(default)]
    pub reason: String,
    /// The highest load to plan for, requests/s; `None` uses the planner's own setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_qps: Option<f64>,
    /// Measured share of time in each running gear's range; empty uses the planner's own prior.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_GEARS>")]
    pub measured: Vec<f64>,
    /// Fan-outs by worker and variant since the worker started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fan_outs: BTreeMap<String, BTreeMap<String, FanOuts>>,
    /// Batches by worker and variant since the worker started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<String, BTreeMap<String, Runs>>,
    /// The observation of a planner that decides itself when to plan; `None` for a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observation>,
}

/// The load as observed by a planner.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// The time, on the planner's clock, microseconds.
    pub at_us: u64,
    /// Requests received by the ingresses since the planner subscribed.
    pub arrivals: u64,
    /// The live workers; empty before the first heartbeat.
    #[serde(default)]
    pub workers: Vec<String>,
}

impl Message for PlanRequest {
    const NAME: &'static str = "PlanRequest";
}

/// Outcome of a planning run. The running plan is unaffected unless the new one was adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum PlanReport {
    /// The new plan runs.
    Adopted {
        /// As this epoch.
        epoch: u64,
    },
    /// The new plan equals the running one.
    Unchanged {
        /// The running epoch.
        epoch: u64,
    },
    /// No plan was found, or the one found is invalid.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The planner panicked.
    Crashed,
    /// The planning function exceeded its time limit.
    TimedOut {
        /// The limit, milliseconds.
        limit_ms: u64,
    },
    /// Another plan was written first.
    Stale {
        /// The newest epoch.
        newest: Option<u64>,
    },
    /// The planner is already planning.
    Busy,
}

impl Message for PlanReport {
    const NAME: &'static str = "PlanReport";
}

/// Announces a new plan in the plan store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanNotice {
    /// Its epoch.
    pub epoch: u64,
}

impl Message for PlanNotice {
    const NAME: &'static str = "PlanNotice";
}
