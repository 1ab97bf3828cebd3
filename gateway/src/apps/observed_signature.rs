//! Names, types and shapes of an app's inputs and outputs, as observed in requests and replies.

use kaskade_actors::wire::MAX_TENSORS;
use kaskade_models::{Datatype, Tensor};

/// Inputs and outputs of answered requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedSignature {
    /// Inputs by name.
    pub(crate) inputs: Vec<TensorInfo>,
    /// Outputs by name.
    pub(crate) outputs: Vec<TensorInfo>,
}

/// Name, type and shape of a tensor; a varying dimension is -1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) datatype: Datatype,
    pub(crate) shape: Vec<i64>,
}

/// Signature learned from answered requests. Outputs are reset at every new plan, which may have other variants.
#[derive(Debug, Default)]
pub(crate) struct LearnedSignature {
    epoch: u64,
    pub(crate) tensors: ObservedSignature,
}

impl LearnedSignature {
    /// Adds the tensors of a request that was answered under an epoch.
    pub(crate) fn add(&mut self, epoch: u64, inputs: &[TensorInfo], outputs: &[TensorInfo]) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.tensors.outputs.clear();
        }
        merge(&mut self.tensors.inputs, inputs);
        merge(&mut self.tensors.outputs, outputs);
    }
}

/// Returns whether the known signature covers the tensors.
pub(crate) fn covers(known: &[TensorInfo], tensors: &[Tensor]) -> bool {
    tensors.iter().all(|tensor| {
        let mut named = known.iter().filter(|info| info.name == tensor.name);
        named.next().is_some_and(|info| {
            let mut extents = info.shape.iter().zip(&tensor.shape);
            info.shape.len() == tensor.shape.len()
                && extents.all(|(known, extent)| *known == -1 || i64::try_from(*extent) == Ok(*known))
        })
    })
}

/// Returns names, types and shapes of tensors.
pub(crate) fn infos(tensors: &[Tensor]) -> Vec<TensorInfo> {
    let infos = tensors.iter().map(|tensor| TensorInfo {
        name: tensor.name.clone(),
        datatype: tensor.datatype,
        shape: tensor
            .shape
            .iter()
            .map(|extent| i64::try_from(*extent).unwrap_or(-1))
            .collect(),
    });
    infos.collect()
}

/// Adds new tensors, up to the largest number that a request may have, and widens the shapes of known ones. Without the
/// limit, the list would grow with every request to an app that accepts any input name.
pub(crate) fn merge(known: &mut Vec<TensorInfo>, seen: &[TensorInfo]) {
    for new in seen {
        let is_full = known.len() >= MAX_TENSORS;
        match known.iter_mut().find(|old| old.name == new.name) {
            None if is_full => {}
            None => known.push(new.clone()),
            Some(old) if old.shape.len() == new.shape.len() => {
                for (extent, now) in old.shape.iter_mut().zip(&new.shape) {
                    if extent != now {
                        *extent = -1;
                    }
                }
            }
            Some(old) => old.shape.clone_from(&new.shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_make_up_are_learned_up_to_a_limit() {
        let mut known = Vec::new();
        for number in 0..1_000 {
            let info = TensorInfo {
                name: format!("x{number}"),
                datatype: Datatype::F32,
                shape: vec![1],
            };
            merge(&mut known, &[info]);
        }
        assert_eq!(known.len(), MAX_TENSORS);
    }

    /// Regression: the outputs of replaced variants stayed in the metadata until the gateway restarted.
    #[test]
    fn outputs_are_those_of_the_plan_in_force() {
        let info = |name: &str, size: i64| TensorInfo {
            name: name.to_owned(),
            datatype: Datatype::F32,
            shape: vec![size],
        };
        let mut learned = LearnedSignature::default();
        learned.add(1, &[info("x", 2)], &[info("logits", 10), info("scores", 10)]);
        learned.add(2, &[], &[info("logits", 100)]);
        assert_eq!(learned.tensors.inputs, [info("x", 2)]);
        assert_eq!(learned.tensors.outputs, [info("logits", 100)]);
    }

    #[test]
    fn shapes_are_widened_where_they_differ() {
        let info = |shape: &[i64]| TensorInfo {
            name: "x".to_owned(),
            datatype: Datatype::F32,
            shape: shape.to_vec(),
        };
        let mut known = Vec::new();
        merge(&mut known, &[info(&[2, 3])]);
        merge(&mut known, &[info(&[2, 5])]);
        assert_eq!(known, [info(&[2, -1])]);
        let tensor = |name: &str, shape: &[usize]| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            datatype: Datatype::F32,
            data: bytes::Bytes::new(),
        };
        assert!(covers(&known, &[tensor("x", &[2, 9])]) && covers(&known, &[]));
        for new in [tensor("x", &[3, 9]), tensor("x", &[2]), tensor("y", &[2, 9])] {
            assert!(!covers(&known, &[new]));
        }
    }
}
