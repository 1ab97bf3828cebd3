//! What processes tell each other of their state: heartbeats of workers, and states of ingresses.

use std::collections::BTreeMap;

use kaskade_policy::adoption::SERVED_KEPT;
use serde::{Deserialize, Serialize};

use super::lists::at_most;
use super::{MAX_REPLICAS, Message, ModelInterface};

/// A heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Heartbeat {
    /// What its models take and answer, by variant: only in every few heartbeats, because it seldom changes. The first field, so that
    /// [`describes_models`] finds it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelInterface>,
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
    /// Batches by variant since it started, without language models and remote variants, which run in steps.
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
    /// no more heartbeats than the one after it. 0 if unknown.
    #[serde(default)]
    pub instance: u64,
}

impl Message for Heartbeat {
    const NAME: &'static str = "Heartbeat";

    fn size_hint(&self) -> usize {
        let replicas = self.replicas.iter();
        let fan_outs = self.fan_outs.iter();
        160 + fan_outs
            .map(|(variant, fan_outs)| variant.len() + fan_outs_hint(fan_outs))
            .sum::<usize>()
            + self.runs.keys().map(|variant| variant.len() + 64).sum::<usize>()
            + self.failed.iter().map(|replica| replica.len() + 8).sum::<usize>()
            + self.actor.len()
            + self
                .models
                .iter()
                .map(|(variant, model)| variant.len() + model.size_hint())
                .sum::<usize>()
            + self.kind.len()
            + replicas
                .map(|replica| replica.id.len() + replica.stage.len() + replica.variant.len() + 64)
                .sum::<usize>()
    }
}

/// Returns whether an encoded heartbeat describes models, without decoding it. False for one of another sender that does not write them
/// first.
pub fn describes_models(payload: &[u8]) -> bool {
    const KEY: &[u8] = b"\xa6models";
    // A map of at most 15 fields has a head of one byte, a larger one of three.
    [1, 3]
        .into_iter()
        .any(|head| payload.get(head..).is_some_and(|fields| fields.starts_with(KEY)))
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

/// A replica in a [`Heartbeat`].
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
    /// Replicas to avoid: lost, leaving, or placed by a plan and without any heartbeat yet.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_REPLICAS>")]
    pub unavailable: Vec<String>,
    /// Whether this is its last message.
    #[serde(default)]
    pub gone: bool,
    /// The epochs under which it has admitted requests since it started, the newest last.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, SERVED_KEPT>"
    )]
    pub served: Vec<u64>,
}

impl Message for IngressState {
    const NAME: &'static str = "IngressState";
}

fn fan_outs_hint(fan_outs: &FanOuts) -> usize {
    let children = fan_outs.children.keys();
    children.map(|task| task.len() + 16).sum::<usize>() + 48
}
