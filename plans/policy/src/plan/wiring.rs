//! The wiring: a small directed acyclic graph of stages, and the edges between them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Partition, Replica};
use crate::confidence::deferral::DeferralScore;

/// A small directed acyclic graph of stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    /// Edge of an admitted request.
    pub entry: Edge,
    /// Edges taken at the same time, to the other members of a bagging ensemble; their answers are voted on with the entry's
    /// (Cocktail). Empty except for an ensemble; a member's stage exits by `reply`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ensemble: Vec<Edge>,
    /// The stages; an edge only leads to a later one in this list.
    pub stages: Vec<Stage>,
}

impl Wiring {
    /// The edges of an admitted request: the entry, and the other members of an ensemble.
    pub fn members(&self) -> impl Iterator<Item = &Edge> {
        std::iter::once(&self.entry).chain(&self.ensemble)
    }

    /// Returns whether a request ends with the answer of one stage, which can then be streamed. The answers of an ensemble are
    /// voted on, and those of a pipeline's tasks are gathered, so neither can be streamed.
    pub fn has_single_answer(&self) -> bool {
        let fans_out = |stage: &Stage| matches!(stage.exit, Exit::FanOut { .. });
        self.ensemble.is_empty() && !self.stages.iter().any(fans_out)
    }

    /// The stage at which a request that came along `edge` is handled by a replica that runs `variant`.
    ///
    /// An edge into a task names one of its stages and may lead to replicas of any of them: the stage is the one of the
    /// replica's variant. An edge into a stage without a task is handled there, whatever runs it. `None` if the wiring has no
    /// such stage, or the task none of that variant; a validated plan has neither.
    pub fn stage_for(&self, edge: &Edge, variant: &str) -> Option<&Stage> {
        let named = self.stages.iter().find(|stage| stage.name == edge.stage)?;
        if named.task.is_none() {
            return Some(named);
        }
        self.siblings(named).find(|stage| stage.variant == variant)
    }

    /// The stages that serve the task of this one, itself included. A stage without a task is its own only sibling.
    pub fn siblings<'a>(&'a self, of: &'a Stage) -> impl Iterator<Item = &'a Stage> {
        self.stages.iter().filter(move |stage| stage.is_sibling(of))
    }

    /// Returns whether a request that came along `edge` may move on to another stage without its ingress. The ingress does not know where
    /// such a request is: any replica that is lost may have had it, and any connection that breaks may have carried it.
    ///
    /// `returns` is whether stages return its results to the ingress instead. What a task makes for its children goes to them regardless,
    /// because those inputs exist nowhere else.
    pub fn may_be_forwarded(&self, edge: &Edge, returns: bool) -> bool {
        let named = self.stages.iter().find(|stage| stage.name == edge.stage);
        let mut exits = named.into_iter().flat_map(|named| self.siblings(named));
        exits.any(|stage| match &stage.exit {
            Exit::FanOut { .. } => true,
            exit => !returns && !exit.always_replies(),
        })
    }
}

/// A place in a cascade or pipeline. A pipeline's task has one stage per variant in use, its siblings: what comes out of a
/// variant, and when, is the variant's own (Loki's augmented graph, §4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Unique in the wiring; one NATS subject token.
    pub name: String,
    /// The task of a pipeline that it serves, as one of several variants do. Stages of one task run different variants; edges
    /// into a task name any of its stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The variant that its replicas run.
    pub variant: String,
    /// The partition of the variant that its replicas hold; absent for the whole model. The stages of a variant's partitions
    /// follow each other by `next`, with no router between (HybridServe §V-A), and the last has the variant's exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// Score that the bands of its exit compare in place of the calibrated confidence; absent for the confidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<DeferralScore>,
    /// Exit of its results.
    pub exit: Exit,
    /// Triggers by which a replica's queue becomes a batch.
    pub batching: Batching,
    /// Latency budget of its task, microseconds, from joining a queue to the end of the batch: the
    /// variant's execution time at the configured batch and its share of queueing (Loki §4.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_us: Option<u64>,
    /// Profiled figures of its variant at this task, for early dropping and rerouting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled: Option<Profiled>,
}

impl Stage {
    /// A stage of a cascade: of a whole model, without a task and a budget.
    pub fn new(name: impl Into<String>, variant: impl Into<String>, exit: Exit, batching: Batching) -> Self {
        Self {
            name: name.into(),
            task: None,
            variant: variant.into(),
            partition: None,
            score: None,
            exit,
            batching,
            budget_us: None,
            profiled: None,
        }
    }

    /// Returns whether the replica runs what the stage needs: its variant, and the same partition of it.
    pub fn is_run_by(&self, replica: &Replica) -> bool {
        self.variant == replica.variant && self.partition == replica.partition
    }

    /// Returns whether both serve the same task, or are the same stage.
    pub(crate) fn is_sibling(&self, other: &Self) -> bool {
        if self.task.is_some() {
            self.task == other.task
        } else {
            self.name == other.name
        }
    }
}

/// Profiled figures of a variant at a task (Loki §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profiled {
    /// Execution time of a batch of `max_batch`, microseconds.
    pub run_us: u64,
    /// Accuracy of the variant alone, in [0, 1].
    pub accuracy: f64,
}

/// Exit of a stage's results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Exit {
    /// A cascade's stage: the confidence picks the band, the band the destination (HybridServe §IV).
    Bands {
        /// Ascending by `from`; the first starts at 0 and each ends where the next begins.
        bands: Vec<Band>,
    },
    /// A pipeline's stage: every child gets the request, `multiplicity` times on average (Loki §3).
    FanOut {
        /// The children.
        children: Vec<Child>,
    },
    /// One successor, unconditionally: the next partition of the same model.
    Next {
        /// The successor.
        to: Edge,
    },
    /// The result is the reply, whatever its confidence.
    Reply,
}

impl Exit {
    /// Returns whether every result is the reply, so that its parts can be streamed before it is complete.
    pub fn always_replies(&self) -> bool {
        match self {
            Self::Reply => true,
            Self::Bands { bands } => bands.iter().all(|band| band.to == Target::Reply),
            Self::FanOut { .. } | Self::Next { .. } => false,
        }
    }
}

/// An interval of confidence and its target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// Inclusive lower end, in [0, 1]; the band ends where the next begins.
    pub from: f64,
    /// Target of a result of this confidence.
    pub to: Target,
}

impl Band {
    /// A band from this confidence on that answers the client.
    pub const fn reply(from: f64) -> Self {
        Self {
            from,
            to: Target::Reply,
        }
    }

    /// A band from this confidence on that escalates along `edge`.
    pub const fn forward(from: f64, edge: Edge) -> Self {
        Self {
            from,
            to: Target::Stage(edge),
        }
    }
}

/// Target of a band.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Answer the client.
    Reply,
    /// Escalate to a later stage; a skip connection leads further than the next one.
    Stage(Edge),
}

/// A child of a pipeline's task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// The child's stage.
    pub to: Edge,
    /// Expected requests to the child per request here.
    pub multiplicity: f64,
}

/// An edge into a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// The stage it leads to; with a task, the task of that stage ([`Wiring::stage_for`]).
    pub stage: String,
    /// Replica id to its share of the traffic, summing to 1; of the stage's variant, or of any variant of its task. Empty: the stage's queue group shares it out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<String, f64>,
    /// Replicas with leftover capacity, best first, for rerouting (Loki §5.1).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backup: Vec<String>,
    /// Sending replica to the one it sends to, for `next`: the partitions of one copy of a model are a chain, and hidden states
    /// stay in it. A sender that is not listed, or whose partner is lost, sends by the shares.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pairs: BTreeMap<String, String>,
}

impl Edge {
    /// An edge that leaves the sharing to the stage's queue group.
    pub fn to(stage: impl Into<String>) -> Self {
        Self {
            stage: stage.into(),
            shares: BTreeMap::new(),
            backup: Vec::new(),
            pairs: BTreeMap::new(),
        }
    }
}

/// Triggers by which a replica's queue becomes a batch (CascadeServe §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// An idle replica starts as soon as this many wait.
    pub min_queue: u32,
    /// Maximum number of requests in a batch.
    pub max_batch: u32,
    /// An idle replica starts anyway once the oldest has waited this long, microseconds.
    pub max_wait_us: u64,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            min_queue: 1,
            max_batch: 32,
            max_wait_us: 2_000,
        }
    }
}

#[cfg(test)]
mod tests;
