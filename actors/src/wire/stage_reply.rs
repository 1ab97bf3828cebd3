//! The result of a stage.

use std::collections::BTreeMap;

use kaskade_models::Tensor;
use kaskade_policy::fan_in::Branch;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lists::at_most;
use super::stage::{branch_name_hint, hops_hint};
use super::{Hop, MAX_HOPS, Message, tensors};
use crate::error::{Code, Fault};

/// The result of a stage, for the ingress that owns the request.
///
/// On the wire it is one flat map, and every field except the result has a default: a worker in any language may answer
/// `{outputs: [...], confidence: 0.9}` or `{error: "why"}`. The reply subject identifies the request.
#[derive(Debug, Clone, PartialEq)]
pub struct StageReply {
    /// Number of the request at its ingress; 0 if the worker omits it.
    pub id: u64,
    /// The attempt that this result answers.
    pub attempt: u32,
    /// Branch of the request; the root unless a preceding task fanned out.
    pub branch: Branch,
    /// The stage that ran; empty if the worker omits it.
    pub stage: String,
    /// The replica that ran it; empty if the worker omits it.
    pub replica: String,
    /// Hops of all stages passed, this one last.
    pub hops: Vec<Hop>,
    /// The result.
    pub result: StageOutcome,
}

/// Outcome of a stage.
#[derive(Debug, Clone, PartialEq)]
pub enum StageOutcome {
    /// Outputs of the model.
    Outputs {
        /// Outputs without a batch dimension.
        outputs: Vec<Tensor>,
        /// Confidence in [0, 1]; other values become [`Code::BadOutput`].
        confidence: Option<f64>,
        /// Whether a router has applied the stage's exit; if not, the ingress does.
        routed: bool,
        /// Number of requests that the router sent to each child task.
        children: BTreeMap<String, u32>,
    },
    /// A part of a streamed answer.
    Part {
        /// Outputs without a batch dimension.
        outputs: Vec<Tensor>,
        /// Index of the first piece.
        from: u32,
        /// Index after the last piece.
        until: u32,
        /// Whether another attempt would give a different answer, as with a remote endpoint.
        once: bool,
    },
    /// A typed error.
    Fault(Fault),
}

impl StageReply {
    /// Returns whether the result belongs to a pipeline's request: a branch below the root, or a root that fanned out.
    pub(crate) fn is_of_a_pipeline(&self) -> bool {
        !self.branch.is_root() || !self.children().is_empty()
    }

    /// Returns the number of requests sent to each child task.
    pub fn children(&self) -> &BTreeMap<String, u32> {
        static NONE: BTreeMap<String, u32> = BTreeMap::new();
        match &self.result {
            StageOutcome::Outputs { children, .. } => children,
            StageOutcome::Part { .. } | StageOutcome::Fault(_) => &NONE,
        }
    }
}

impl StageOutcome {
    /// Returns an outcome without outputs, to which no exit was applied.
    pub(crate) fn nothing() -> Self {
        Self::Outputs {
            outputs: Vec::new(),
            confidence: None,
            routed: false,
            children: BTreeMap::new(),
        }
    }
}

impl Message for StageReply {
    const NAME: &'static str = "StageReply";

    fn size_hint(&self) -> usize {
        let result = match &self.result {
            StageOutcome::Outputs {
                outputs, children, ..
            } => {
                let children = children.keys().map(|task| task.len() + 16);
                tensors::size_hint(outputs) + children.sum::<usize>() + 16
            }
            StageOutcome::Part { outputs, .. } => tensors::size_hint(outputs) + 32,
            StageOutcome::Fault(fault) => fault.message.len(),
        };
        result
            + hops_hint(&self.hops)
            + branch_name_hint(&self.branch)
            + self.stage.len()
            + self.replica.len()
            + 128
    }
}

struct Tensors<'a>(&'a [Tensor]);

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        tensors::serialize(self.0, serializer)
    }
}

impl Serialize for StageReply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let result_fields = match &self.result {
            StageOutcome::Outputs {
                confidence, children, ..
            } => 2 + usize::from(confidence.is_some()) + usize::from(!children.is_empty()),
            StageOutcome::Part { once, .. } => 2 + usize::from(*once),
            StageOutcome::Fault(_) => 1,
        };
        let branch = usize::from(!self.branch.is_root());
        let mut map = serializer.serialize_map(Some(5 + branch + result_fields))?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("attempt", &self.attempt)?;
        if !self.branch.is_root() {
            map.serialize_entry("branch", &self.branch)?;
        }
        map.serialize_entry("stage", &self.stage)?;
        map.serialize_entry("replica", &self.replica)?;
        map.serialize_entry("hops", &self.hops)?;
        match &self.result {
            StageOutcome::Outputs {
                outputs,
                confidence,
                routed,
                children,
            } => {
                if !children.is_empty() {
                    map.serialize_entry("children", children)?;
                }
                if let Some(confidence) = confidence {
                    map.serialize_entry("confidence", confidence)?;
                }
                map.serialize_entry("routed", routed)?;
                map.serialize_entry("outputs", &Tensors(outputs))?;
            }
            StageOutcome::Part {
                outputs,
                from,
                until,
                once,
            } => {
                map.serialize_entry("part", &(from, until))?;
                if *once {
                    map.serialize_entry("once", once)?;
                }
                map.serialize_entry("outputs", &Tensors(outputs))?;
            }
            StageOutcome::Fault(fault) => map.serialize_entry("error", fault)?,
        }
        map.end()
    }
}

#[derive(Deserialize)]
struct Received {
    #[serde(default)]
    id: u64,
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    branch: Branch,
    #[serde(default)]
    stage: String,
    #[serde(default)]
    replica: String,
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_HOPS>")]
    hops: Vec<Hop>,
    #[serde(default, deserialize_with = "tensors::deserialize_optional")]
    outputs: Option<Vec<Tensor>>,
    #[serde(default)]
    confidence: Option<f64>,
    #[serde(default)]
    routed: bool,
    #[serde(default)]
    children: BTreeMap<String, u32>,
    #[serde(default)]
    part: Option<(u32, u32)>,
    #[serde(default)]
    once: bool,
    #[serde(default)]
    error: Option<Fault>,
}

impl<'de> Deserialize<'de> for StageReply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let received = Received::deserialize(deserializer)?;
        let result = match (received.outputs, received.error) {
            (None, Some(fault)) => StageOutcome::Fault(fault),
            (Some(outputs), None) => match received.part {
                Some((from, until)) => StageOutcome::Part {
                    outputs,
                    from,
                    until,
                    once: received.once,
                },
                None => judge(StageOutcome::Outputs {
                    outputs,
                    confidence: received.confidence,
                    routed: received.routed,
                    children: received.children,
                }),
            },
            (None, None) => return Err(serde::de::Error::custom("neither `outputs` nor `error`")),
            (Some(_), Some(_)) => return Err(serde::de::Error::custom("both `outputs` and `error`")),
        };
        Ok(Self {
            id: received.id,
            attempt: received.attempt,
            branch: received.branch,
            stage: received.stage,
            replica: received.replica,
            hops: received.hops,
            result,
        })
    }
}

/// Replaces a confidence that is not a probability by a fault, before it is compared with a threshold: every comparison
/// with NaN is false.
fn judge(result: StageOutcome) -> StageOutcome {
    match result {
        StageOutcome::Outputs {
            confidence: Some(value),
            ..
        } if !(0.0..=1.0).contains(&value) => StageOutcome::Fault(Fault::new(
            Code::BadOutput,
            format!("the worker's confidence is {value}; it must be in [0, 1]"),
        )),
        sound => sound,
    }
}
