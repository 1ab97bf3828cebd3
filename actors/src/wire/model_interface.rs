//! Inputs and outputs of a model as announced by workers.

use kaskade_models::{Answers, Datatype, Extent, Signature};
use serde::{Deserialize, Serialize};

use super::lists::at_most;
use super::{MAX_LABELS, MAX_RANK, MAX_TENSORS};

/// Largest total size of announced class names, bytes, to keep heartbeats small.
const MAX_LABEL_BYTES: usize = 64 << 10;

/// Inputs, outputs and class names of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelInterface {
    /// Inputs; empty if the model accepts any.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_TENSORS>"
    )]
    pub inputs: Vec<TensorInterface>,
    /// Outputs; empty if unknown.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_TENSORS>"
    )]
    pub outputs: Vec<TensorInterface>,
    /// Class names in the order of the logits. Empty if there are none, if they exceed 64 KiB in total, and in most
    /// heartbeats, which repeat only the other fields.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_LABELS>"
    )]
    pub labels: Vec<String>,
}

/// Name, type and shape of an input or output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TensorInterface {
    /// Name of the input or output.
    pub name: String,
    /// Element type, by its name in the Open Inference Protocol.
    pub datatype: String,
    /// Dimensions; -1 for one that varies.
    #[serde(deserialize_with = "at_most::<_, _, MAX_RANK>")]
    pub shape: Vec<i64>,
    /// Whether a request may omit it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

impl ModelInterface {
    /// Describes a model; `None` if nothing is known about it.
    pub(crate) fn from_signature(signature: &Signature, answers: &Answers) -> Option<Self> {
        let inputs = signature.inputs.iter().map(|input| TensorInterface {
            name: input.name.clone(),
            datatype: input.datatype.name().to_owned(),
            shape: input.shape.iter().map(|extent| size_of(*extent)).collect(),
            optional: input.optional,
        });
        let outputs = answers.outputs.iter().map(|output| TensorInterface {
            name: output.name.clone(),
            datatype: output.datatype.name().to_owned(),
            shape: output
                .shape
                .iter()
                .map(|extent| extent.map_or(-1, number))
                .collect(),
            optional: false,
        });
        let labels = &answers.labels;
        let fits =
            labels.len() <= MAX_LABELS && labels.iter().map(String::len).sum::<usize>() <= MAX_LABEL_BYTES;
        let described = Self {
            inputs: inputs.take(MAX_TENSORS).collect(),
            outputs: outputs.take(MAX_TENSORS).collect(),
            labels: if fits { labels.clone() } else { Vec::new() },
        };
        (described != Self::default()).then_some(described)
    }

    /// Returns the approximate encoded size, bytes.
    pub(super) fn size_hint(&self) -> usize {
        let tensors = self.inputs.iter().chain(&self.outputs);
        let tensors = tensors.map(|tensor| tensor.name.len() + 48 + 9 * tensor.shape.len());
        let labels = self.labels.iter().map(|label| label.len() + 3);
        64 + tensors.sum::<usize>() + labels.sum::<usize>()
    }
}

impl TensorInterface {
    /// Returns the element type; `None` if the protocol has no such name.
    pub fn datatype(&self) -> Option<Datatype> {
        Datatype::from_name(&self.datatype).ok()
    }
}

fn size_of(extent: Extent) -> i64 {
    match extent {
        Extent::Exactly(size) => number(size),
        Extent::UpTo(_) | Extent::AtMost(_) | Extent::Tokens(_) => -1,
    }
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use kaskade_models::{InputSpec, OutputSpec};

    use super::*;
    use crate::wire::{Heartbeat, Message as _, describes_models};

    fn interface(labels: Vec<String>) -> Option<ModelInterface> {
        let signature = Signature {
            inputs: vec![InputSpec::required(
                "image",
                Datatype::F32,
                vec![Extent::Exactly(1), Extent::UpTo(8)],
            )],
        };
        let answers = Answers {
            outputs: vec![OutputSpec {
                name: "logits".to_owned(),
                datatype: Datatype::F32,
                shape: vec![Some(10), None],
            }],
            labels,
        };
        ModelInterface::from_signature(&signature, &answers)
    }

    #[test]
    fn a_heartbeat_carries_what_a_model_takes_and_answers() {
        let model = interface(vec!["sea".to_owned()]).unwrap();
        assert_eq!(model.inputs[0].shape, [1, -1]);
        assert_eq!(model.outputs[0].shape, [10, -1]);
        assert_eq!(model.outputs[0].datatype(), Some(Datatype::F32));
        let plain = Heartbeat {
            actor: "w".to_owned(),
            kind: "worker".to_owned(),
            ..Heartbeat::default()
        };
        assert!(!describes_models(&plain.encode().unwrap()));
        let beat = Heartbeat {
            models: [("small".to_owned(), model)].into(),
            ..plain
        };
        let encoded = beat.encode().unwrap();
        assert!(describes_models(&encoded));
        assert_eq!(Heartbeat::decode(&encoded).unwrap(), beat);
    }

    #[test]
    fn what_is_unknown_or_too_long_is_not_announced() {
        assert_eq!(
            ModelInterface::from_signature(&Signature::default(), &Answers::default()),
            None
        );
        assert!(interface(vec!["a".repeat(100); 700]).unwrap().labels.is_empty());
        assert_eq!(interface(vec!["a".repeat(10); 700]).unwrap().labels.len(), 700);
    }
}
