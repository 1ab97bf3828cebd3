//! The gated short convolution of LFM2.

use super::weights::{self as mixer, Gates, RecurrentWeights};
use crate::checkpoint::{LoadError, Weights};
use crate::decoder::linear_weights::LinearWeights;
use crate::ops::recurrent::{Recurrence, Scan};

pub(super) fn take(
    weights: &mut Weights,
    name: &str,
    width: usize,
    kernel: usize,
    bias: bool,
) -> Result<RecurrentWeights, LoadError> {
    let at = |part: &str| format!("{name}.{part}");
    Ok(RecurrentWeights {
        input: LinearWeights::take(weights, &at("in_proj"), width, 3 * width, bias)?,
        gates: Gates::No,
        recurrence: Recurrence {
            convolution: mixer::convolution(weights, &at("conv"), [width, kernel], bias, None)?,
            scan: Scan::Gates,
        },
        output: LinearWeights::take(weights, &at("out_proj"), width, width, bias)?,
    })
}
