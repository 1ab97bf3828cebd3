//! Layers from a checkpoint, by the names that torch gives their tensors.

use burn::module::Param;
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};

use crate::checkpoint::{LoadError, Weights};

/// Takes the linear layer `{prefix}.weight` (`[outputs, inputs]`) and `{prefix}.bias` (`[outputs]`).
///
/// # Errors
/// As [`Weights::take`].
pub(super) fn linear(
    weights: &mut Weights,
    prefix: &str,
    inputs: usize,
    outputs: usize,
    device: &Device,
) -> Result<Linear, LoadError> {
    let bias = weights.tensor(&format!("{prefix}.bias"), [outputs], device)?;
    Ok(Linear {
        bias: Some(Param::from_tensor(bias)),
        ..linear_without_bias(weights, prefix, inputs, outputs, device)?
    })
}

/// Takes the linear layer `{prefix}.weight` (`[outputs, inputs]`), without a bias.
///
/// # Errors
/// As [`Weights::take`].
pub(super) fn linear_without_bias(
    weights: &mut Weights,
    prefix: &str,
    inputs: usize,
    outputs: usize,
    device: &Device,
) -> Result<Linear, LoadError> {
    let weight = weights.matrix(&format!("{prefix}.weight"), inputs, outputs, device)?;
    Ok(Linear {
        weight: Param::from_tensor(weight),
        bias: None,
    })
}

/// Concatenates the outputs of linear layers with the same input: one matrix product, which reads the input once,
/// instead of several.
pub(super) fn concat_outputs(parts: &[Linear]) -> Linear {
    let biases = parts
        .iter()
        .filter_map(|part| part.bias.as_ref())
        .map(Param::val)
        .collect::<Vec<_>>();
    let bias = (!biases.is_empty()).then(|| Param::from_tensor(Tensor::cat(biases, 0)));
    let weights = parts.iter().map(|part| part.weight.val()).collect();
    Linear {
        weight: Param::from_tensor(Tensor::cat(weights, 1)),
        bias,
    }
}

/// Takes the layer norm `{prefix}.weight` and `{prefix}.bias` over the last dimension, of size `width`.
///
/// # Errors
/// As [`Weights::take`].
pub(super) fn layer_norm(
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

/// Takes the embedding table `{prefix}.weight` of `rows` vectors of size `width`.
///
/// # Errors
/// As [`Weights::take`].
pub(super) fn embedding(
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
