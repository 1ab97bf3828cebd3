//! Hidden states between the partitions of a model: `hidden_states` FP32 `[sequence, width]`, and `attention_mask` INT64
//! `[sequence]` if sequences differ in length.

use super::batch::BatchResults;
use crate::runtime::model::{Extent, InputSpec, ModelError, Signature};
use crate::runtime::tensor::{self, Datatype};

/// Name of the hidden states tensor.
pub(crate) const HIDDEN_STATES: &str = "hidden_states";
/// Name of the mask tensor.
pub(crate) const ATTENTION_MASK: &str = "attention_mask";
/// Name of the token type ids tensor.
pub(crate) const TOKEN_TYPE_IDS: &str = "token_type_ids";

/// The signature of every partition but the first.
pub(crate) fn signature(sequence: Extent, width: usize, masked: bool) -> Signature {
    let states = InputSpec::required(
        HIDDEN_STATES,
        Datatype::F32,
        vec![sequence, Extent::Exactly(width)],
    );
    let mask = masked.then(|| InputSpec::required(ATTENTION_MASK, Datatype::I64, vec![sequence]));
    Signature {
        inputs: [states].into_iter().chain(mask).collect(),
    }
}

/// Returns the values of `hidden_states`; the inputs must match the signature.
pub(crate) fn values(inputs: &[tensor::Tensor]) -> Result<Vec<f32>, ModelError> {
    let found = inputs.iter().find(|input| input.name == HIDDEN_STATES);
    Ok(found.map(tensor::Tensor::to_f32).transpose()?.unwrap_or_default())
}

/// Appends to the outputs of each request the inputs that the next partition also needs.
pub(crate) fn with_inputs<'a>(
    outputs: BatchResults,
    inputs: impl Iterator<Item = &'a [tensor::Tensor]>,
) -> BatchResults {
    let pairs = outputs.into_iter().zip(inputs);
    let added = pairs.map(|(outputs, inputs)| {
        let mut outputs = outputs?;
        outputs.extend_from_slice(inputs);
        Ok(outputs)
    });
    added.collect()
}

/// Builds the outputs of every partition but the last: the hidden states of each sequence, concatenated in `states`,
/// and its `mask` if there is one.
pub(crate) fn outputs(
    states: &[f32],
    width: usize,
    lengths: &[usize],
    mask: Option<&[&[bool]]>,
) -> BatchResults {
    let mut rest = states;
    let outputs = lengths.iter().enumerate().map(|(index, length)| {
        let (own, others) = rest.split_at_checked(length * width).unwrap_or((rest, &[]));
        rest = others;
        let mut outputs = vec![tensor::Tensor::from_f32(HIDDEN_STATES, &[*length, width], own)?];
        if let Some(mask) = mask.and_then(|mask| mask.get(index)) {
            let mask: Vec<i64> = mask.iter().map(|mask| i64::from(*mask)).collect();
            outputs.push(tensor::Tensor::from_i64(ATTENTION_MASK, &[mask.len()], &mask)?);
        }
        Ok(outputs)
    });
    outputs.collect()
}
