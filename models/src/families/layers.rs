//! Layers filled from a checkpoint, by the names that torch gives their tensors.

use burn::module::Param;
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};

use crate::checkpoint::{LoadError, Weights};

/// The linear layer `{prefix}.weight` (`[outputs, inputs]`) and `{prefix}.bias` (`[outputs]`).
///
/// # Errors
/// As [`Weights::take`].
pub fn linear(
    weights: &mut Weights,
    prefix: &str,
    inputs: usize,
    outputs: usize,
    device: &Device,
) -> Result<Linear, LoadError> {
    let weight = weights.matrix(&format!("{prefix}.weight"), inputs, outputs, device)?;
    let bias = weights.tensor(&format!("{prefix}.bias"), [outputs], device)?;
    Ok(joined(weight, bias))
}

/// Several linear layers over the same input as one, their outputs side by side: one matrix product, and one reading
/// of the input, instead of several.
///
/// # Errors
/// As [`Weights::take`].
pub fn linear_side_by_side(
    weights: &mut Weights,
    prefixes: &[String],
    inputs: usize,
    outputs: usize,
    device: &Device,
) -> Result<Linear, LoadError> {
    let parts = prefixes
        .iter()
        .map(|prefix| linear(weights, prefix, inputs, outputs, device))
        .collect::<Result<Vec<_>, _>>()?;
    let weight = Tensor::cat(parts.iter().map(|part| part.weight.val()).collect(), 1);
    let bias = Tensor::cat(
        parts
            .iter()
            .filter_map(|part| part.bias.as_ref())
            .map(Param::val)
            .collect(),
        0,
    );
    Ok(joined(weight, bias))
}

fn joined(weight: Tensor<2>, bias: Tensor<1>) -> Linear {
    Linear {
        weight: Param::from_tensor(weight),
        bias: Some(Param::from_tensor(bias)),
    }
}

/// The layer norm `{prefix}.weight` and `{prefix}.bias` over the last dimension, of extent `width`.
///
/// # Errors
/// As [`Weights::take`].
pub fn layer_norm(
    weights: &mut Weights,
    prefix: &str,
    width: usize,
    epsilon: f64,
    device: &Device,
) -> Result<LayerNorm, LoadError> {
    let mut norm = LayerNormConfig::new(width).with_epsilon(epsilon).init(device);
    norm.gamma = Param::from_tensor(weights.tensor(&format!("{prefix}.weight"), [width], device)?);
    norm.beta = Some(Param::from_tensor(weights.tensor(
        &format!("{prefix}.bias"),
        [width],
        device,
    )?));
    Ok(norm)
}

/// The table `{prefix}.weight` of `rows` vectors of extent `width`.
///
/// # Errors
/// As [`Weights::take`].
pub fn embedding(
    weights: &mut Weights,
    prefix: &str,
    rows: usize,
    width: usize,
    device: &Device,
) -> Result<Embedding, LoadError> {
    Ok(Embedding {
        weight: Param::from_tensor(weights.tensor(&format!("{prefix}.weight"), [rows, width], device)?),
    })
}
