//! The result of a stage.

use kaskade_models::Tensor;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lists::at_most;
use super::{Hop, MAX_HOPS, Message, hops_hint, tensors};
use crate::fault::{Code, Fault};

/// The result of a stage, for the ingress that owns the request.
///
/// On the wire it is one flat map, and everything but the result has a default: a worker in any language may answer
/// `{outputs: [...], confidence: 0.9}` or `{error: "why"}`; which request it answers is in the subject it answers to.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The request, as its ingress numbers it; 0 when the worker left it to the subject.
    pub id: u64,
    /// The attempt that this answers.
    pub attempt: u32,
    /// The stage that ran; empty when the worker did not say.
    pub stage: String,
    /// The replica that ran it; empty when the worker did not say.
    pub replica: String,
    /// Every stage passed, this one last.
    pub hops: Vec<Hop>,
    /// What came out.
    pub result: DoneResult,
}

/// What came out of a stage.
#[derive(Debug, Clone, PartialEq)]
pub enum DoneResult {
    /// Outputs of the model.
    Outputs {
        /// Without a batch dimension.
        outputs: Vec<Tensor>,
        /// In [0, 1]; a confidence outside never gets here, it becomes [`Code::BadOutput`].
        confidence: Option<f64>,
        /// A router has already taken the stage's exit and this is the answer; otherwise the ingress takes it.
        routed: bool,
    },
    /// A typed error.
    Fault(Fault),
}

impl Message for Done {
    const NAME: &'static str = "Done";

    fn size_hint(&self) -> usize {
        let result = match &self.result {
            DoneResult::Outputs { outputs, .. } => tensors::size_hint(outputs),
            DoneResult::Fault(fault) => fault.message.len(),
        };
        result + hops_hint(&self.hops) + self.stage.len() + self.replica.len() + 128
    }
}

struct Tensors<'a>(&'a [Tensor]);

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        tensors::serialize(self.0, serializer)
    }
}

impl Serialize for Done {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let result_fields = match &self.result {
            DoneResult::Outputs { confidence, .. } => 2 + usize::from(confidence.is_some()),
            DoneResult::Fault(_) => 1,
        };
        let mut map = serializer.serialize_map(Some(5 + result_fields))?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("attempt", &self.attempt)?;
        map.serialize_entry("stage", &self.stage)?;
        map.serialize_entry("replica", &self.replica)?;
        map.serialize_entry("hops", &self.hops)?;
        match &self.result {
            DoneResult::Outputs {
                outputs,
                confidence,
                routed,
            } => {
                if let Some(confidence) = confidence {
                    map.serialize_entry("confidence", confidence)?;
                }
                map.serialize_entry("routed", routed)?;
                map.serialize_entry("outputs", &Tensors(outputs))?;
            }
            DoneResult::Fault(fault) => map.serialize_entry("error", fault)?,
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
    error: Option<Fault>,
}

impl<'de> Deserialize<'de> for Done {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let received = Received::deserialize(deserializer)?;
        let result = match (received.outputs, received.error) {
            (None, Some(fault)) => DoneResult::Fault(fault),
            (Some(outputs), None) => judge(outputs, received.confidence, received.routed),
            (None, None) => return Err(serde::de::Error::custom("neither `outputs` nor `error`")),
            (Some(_), Some(_)) => return Err(serde::de::Error::custom("both `outputs` and `error`")),
        };
        Ok(Self {
            id: received.id,
            attempt: received.attempt,
            stage: received.stage,
            replica: received.replica,
            hops: received.hops,
            result,
        })
    }
}

/// A worker's confidence decides who answers, so one that is no probability must not get as far as a threshold: NaN
/// compares false with all of them.
fn judge(outputs: Vec<Tensor>, confidence: Option<f64>, routed: bool) -> DoneResult {
    match confidence {
        Some(value) if !(0.0..=1.0).contains(&value) => DoneResult::Fault(Fault::new(
            Code::BadOutput,
            format!("the worker's confidence is {value}; it must be in [0, 1]"),
        )),
        _ => DoneResult::Outputs {
            outputs,
            confidence,
            routed,
        },
    }
}
