//! Hidden states between the slices of a model: `hidden_states` FP32 `[sequence, width]`, and `attention_mask` INT64 `[sequence]` where
//! sequences are of different lengths.

use burn::tensor::{Device, Tensor, TensorData};

use super::batch::{Answers, rows};
use crate::runtime::model::{Extent, InputSpec, ModelError, Signature};
use crate::runtime::tensor::{self, Datatype};

/// Name of the hidden states.
pub(crate) const STATES: &str = "hidden_states";
/// Name of the mask.
pub(crate) const MASK: &str = "attention_mask";

/// What a slice that is not the first takes.
pub(crate) fn signature(sequence: Extent, width: usize, masked: bool) -> Signature {
    let states = InputSpec::required(STATES, Datatype::F32, vec![sequence, Extent::Exactly(width)]);
    let mask = masked.then(|| InputSpec::required(MASK, Datatype::I64, vec![sequence]));
    Signature {
        inputs: [states].into_iter().chain(mask).collect(),
    }
}

/// The values of `hidden_states` among inputs that fit the signature.
pub(crate) fn values(inputs: &[tensor::Tensor]) -> Result<Vec<f32>, ModelError> {
    let found = inputs.iter().find(|input| input.name == STATES);
    Ok(found.map(tensor::Tensor::to_f32).transpose()?.unwrap_or_default())
}

/// Sequences of different lengths as one tensor `[batch, longest, width]`, filled up with zeros.
pub(crate) fn stacked(sequences: &[&[f32]], longest: usize, width: usize, device: &Device) -> Tensor<3> {
    let mut data = Vec::with_capacity(sequences.len() * longest * width);
    for (index, states) in sequences.iter().enumerate() {
        data.extend_from_slice(states);
        data.resize((index + 1) * longest * width, 0.0);
    }
    Tensor::from_data(TensorData::new(data, [sequences.len(), longest, width]), device)
}

/// The outputs of a slice that is not the last: the states of each sequence without what filled it up, and its mask where `seen` has one.
pub(crate) fn outputs(
    states: Tensor<3>,
    lengths: &[usize],
    seen: Option<&[&[bool]]>,
) -> Result<Answers, ModelError> {
    let [batch, longest, width] = states.dims();
    let rows = rows(states.reshape([batch, longest * width]))?;
    let outputs = rows
        .iter()
        .zip(lengths)
        .enumerate()
        .map(|(index, (row, length))| {
            let own = row.get(..length * width).unwrap_or(row);
            let mut outputs = vec![tensor::Tensor::from_f32(STATES, &[*length, width], own)?];
            if let Some(seen) = seen.and_then(|seen| seen.get(index)) {
                let mask: Vec<i64> = seen.iter().map(|seen| i64::from(*seen)).collect();
                outputs.push(tensor::Tensor::from_i64(MASK, &[mask.len()], &mask)?);
            }
            Ok(outputs)
        });
    Ok(outputs.collect())
}
