//! A layer's recurrent mixer: linear layers on the device around a recurrence whose states are in host memory.
//!
//! The recurrence is computed in f32 by the processor, whatever the device: its states change with every token, and most of a
//! layer's work is in its linear layers.

use std::sync::Arc;

use super::host_layer::LinearShape;
use crate::decoder::weights::{LayerWeights, LinearWeights, RecurrentWeights};
use crate::ops::recurrent::Recurrence;
use crate::ops::{Ops, OpsError};
use crate::precision::WeightType;

/// States of a request's recurrences after its cached tokens: one vector per layer, empty for a layer without a recurrence.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RecurrentState {
    layers: Vec<Vec<f32>>,
}

impl RecurrentState {
    /// The states before the first token; `sizes` are those of the layers, elements.
    pub(super) fn zeros(sizes: &[usize]) -> Self {
        Self {
            layers: sizes.iter().map(|size| vec![0.0; *size]).collect(),
        }
    }

    /// Returns the state of a layer; `None` if it has no recurrence.
    pub(super) fn layer(&mut self, index: usize) -> Option<&mut [f32]> {
        let state = self.layers.get_mut(index)?;
        (!state.is_empty()).then_some(state.as_mut_slice())
    }
}

/// Sizes of the states of layers, elements; empty if no layer has a recurrence.
pub(super) fn state_sizes(layers: &[LayerWeights]) -> Vec<usize> {
    let sizes: Vec<usize> = layers.iter().map(LayerWeights::state_elements).collect();
    if sizes.iter().all(|size| *size == 0) {
        return Vec::new();
    }
    sizes
}

/// A layer's recurrent mixer.
pub(super) struct RecurrentMixer<M: Ops> {
    input: M::Linear,
    /// Projection to the gates, always f32.
    gates: Option<M::Linear>,
    output: M::Linear,
    recurrence: Arc<Recurrence>,
}

/// Sizes of the linear layers of a mixer, in the order of transfer.
#[derive(Debug)]
pub(super) struct RecurrentShape {
    input: LinearShape,
    gates: Option<LinearShape>,
    output: LinearShape,
    recurrence: Arc<Recurrence>,
}

impl RecurrentShape {
    /// Stores the linear layers, with weights of this type but for those of the gates.
    pub(super) fn new(
        weights: RecurrentWeights,
        kind: WeightType,
        store: &mut impl FnMut(LinearWeights, WeightType) -> LinearShape,
    ) -> Self {
        Self {
            input: store(weights.input, kind),
            gates: weights.gates.map(|gates| store(gates, WeightType::F32)),
            output: store(weights.output, kind),
            recurrence: Arc::new(weights.recurrence),
        }
    }

    /// Builds the mixer on the device, in the order in which its layers were stored.
    pub(super) fn mixer<M: Ops>(
        &self,
        linear: &mut impl FnMut(LinearShape) -> M::Linear,
    ) -> RecurrentMixer<M> {
        RecurrentMixer {
            input: linear(self.input),
            gates: self.gates.map(&mut *linear),
            output: linear(self.output),
            recurrence: Arc::clone(&self.recurrence),
        }
    }
}

impl<M: Ops> RecurrentMixer<M> {
    /// Number of elements of a request's state.
    pub(super) fn state_elements(&self) -> usize {
        self.recurrence.state_elements()
    }

    /// Computes the mixer for the rows `act`, `counts` tokens of each request, and advances the requests' states.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; the states are then useless.
    pub(super) fn forward(
        &self,
        ops: &M,
        act: &M::Matrix,
        counts: &[usize],
        states: &mut [&mut [f32]],
    ) -> Result<M::Matrix, OpsError> {
        let projected = ops.multiply(act, &self.input);
        let gates = self.gates.as_ref().map(|gates| ops.multiply(act, gates));
        let projected = ops.values(&projected)?;
        let gates = gates.as_ref().map(|gates| ops.values(gates)).transpose()?;
        let mixed = self
            .recurrence
            .run(&projected, gates.as_deref().unwrap_or_default(), counts, states);
        let mixed = ops.upload(mixed, self.recurrence.width());
        Ok(ops.multiply(&mixed, &self.output))
    }
}
