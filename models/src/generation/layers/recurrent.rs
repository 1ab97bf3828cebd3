//! A layer's recurrent mixer: linear layers on the device around a recurrence whose states are in host memory.
//!
//! The CPU computes the recurrence in f32 on every device: the states change with every token, and most of the work is
//! in the linear layers.

use std::sync::Arc;

use super::linear_shape::LinearShape;
use crate::decoder::recurrent::Gates;
use crate::decoder::weights::{LayerWeights, LinearWeights, RecurrentWeights};
use crate::ops::recurrent::{Recurrence, Scan};
use crate::ops::{Ops, OpsError};
use crate::precision::WeightType;

/// Recurrent states of a request after its cached tokens: one vector per layer, empty for a layer without a
/// recurrence.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RecurrentState {
    layers: Vec<Vec<f32>>,
}

impl RecurrentState {
    /// Creates the states before the first token; `sizes` are the state sizes of the layers, elements.
    pub(crate) fn zeros(sizes: &[usize]) -> Self {
        Self {
            layers: sizes.iter().map(|size| vec![0.0; *size]).collect(),
        }
    }

    /// Returns the state of a layer; `None` if it has no recurrence.
    pub(crate) fn layer(&mut self, index: usize) -> Option<&mut [f32]> {
        let state = self.layers.get_mut(index)?;
        (!state.is_empty()).then_some(state.as_mut_slice())
    }
}

/// Returns the state sizes of layers, elements; empty if no layer has a recurrence.
pub(crate) fn state_sizes(layers: &[LayerWeights]) -> Vec<usize> {
    let sizes: Vec<usize> = layers.iter().map(LayerWeights::state_elements).collect();
    if sizes.iter().all(|size| *size == 0) {
        return Vec::new();
    }
    sizes
}

/// A layer's recurrent mixer.
pub(crate) struct RecurrentMixer<M: Ops> {
    input: M::Linear,
    /// Projections to the gates: one from the layer's input, or two consecutive ones from the convolved tokens.
    gates: Vec<M::Linear>,
    output: M::Linear,
    recurrence: Arc<Recurrence>,
}

/// Shapes of the linear layers of a mixer, in the order of transfer.
#[derive(Debug)]
pub(crate) struct RecurrentShape {
    input: LinearShape,
    gates: Vec<LinearShape>,
    output: LinearShape,
    recurrence: Arc<Recurrence>,
}

impl RecurrentShape {
    /// Stores the linear layers, with weights of this type except for those of the gates.
    pub(crate) fn new(
        weights: RecurrentWeights,
        kind: WeightType,
        store: &mut impl FnMut(LinearWeights, WeightType) -> LinearShape,
    ) -> Self {
        let gates = match weights.gates {
            Gates::No => Vec::new(),
            Gates::OfInput(gates) => vec![gates],
            Gates::Selected { selection, steps } => vec![selection, steps],
        };
        Self {
            input: store(weights.input, kind),
            gates: gates
                .into_iter()
                .map(|gates| store(gates, WeightType::F32))
                .collect(),
            output: store(weights.output, kind),
            recurrence: Arc::new(weights.recurrence),
        }
    }

    /// Builds the mixer on the device, in the order in which its linear layers were stored.
    pub(crate) fn mixer<M: Ops>(
        &self,
        linear: &mut impl FnMut(LinearShape) -> M::Linear,
    ) -> RecurrentMixer<M> {
        RecurrentMixer {
            input: linear(self.input),
            gates: self.gates.iter().map(|shape| linear(*shape)).collect(),
            output: linear(self.output),
            recurrence: Arc::clone(&self.recurrence),
        }
    }
}

impl<M: Ops> RecurrentMixer<M> {
    /// Returns the number of elements of a request's state.
    pub(crate) fn state_elements(&self) -> usize {
        self.recurrence.state_elements()
    }

    /// Computes the mixer for the rows `act` with `counts` tokens per request, and updates the requests' states.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; the states are then invalid.
    pub(crate) fn forward(
        &self,
        ops: &M,
        act: &M::Matrix,
        counts: &[usize],
        states: &mut [&mut [f32]],
    ) -> Result<M::Matrix, OpsError> {
        let projected = ops.multiply(act, &self.input);
        let projected = ops.values(&projected)?;
        let convolved = self.recurrence.convolve(&projected, counts, states);
        let gates = self.gates(ops, act, &convolved)?;
        let mixed = self
            .recurrence
            .scan(&projected, convolved, &gates, counts, states);
        let mixed = ops.upload(mixed, self.recurrence.width());
        Ok(ops.multiply(&mixed, &self.output))
    }

    /// Computes the gates of the recurrence for the rows `act` and their convolution `convolved`.
    fn gates(&self, ops: &M, act: &M::Matrix, convolved: &[f32]) -> Result<Vec<f32>, OpsError> {
        match (self.gates.as_slice(), &self.recurrence.scan) {
            ([selection, steps], Scan::Selective(space, _)) => {
                let rows = ops.upload(convolved.to_vec(), space.channels);
                let selected = ops.multiply(&rows, selection);
                let selected = ops.values(&selected)?;
                let inputs = ops.upload(space.step_inputs(&selected), space.rank);
                let steps = ops.multiply(&inputs, steps);
                Ok(space.with_steps(&ops.values(&steps)?, &selected))
            }
            ([gates], _) => {
                let gates = ops.multiply(act, gates);
                Ok(ops.values(&gates)?.into_owned())
            }
            _ => Ok(Vec::new()),
        }
    }
}
