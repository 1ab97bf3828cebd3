//! Multi-layer perceptron for images: linear layers with `ReLU` between them.
//!
//! `config.json`:
//!
//! | key | holds |
//! |---|---|
//! | `model_type` | `kaskade-mlp` |
//! | `input_shape` | shape of the input `image`, such as `[1, 8, 8]` or, flat, `[64]` |
//! | `hidden_sizes` | width of each hidden layer; `[]` gives a linear classifier |
//! | `id2label` or `num_labels` | the classes |
//!
//! Tensors in torch's layout: `layers.{i}.weight` `[outputs, inputs]` and `layers.{i}.bias`.

#[cfg(feature = "train")]
mod training;

use super::image::{self, Network, shape_of};
use super::layers::Layers;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::{Device, with_ops};
use crate::ops::{Activation, Ops};
use crate::runtime::batch::rows;
use crate::runtime::loaded::Built;
use crate::runtime::model::ModelError;

#[cfg(feature = "train")]
pub use training::Mlp;

/// The `model_type` of this architecture.
pub const MODEL_TYPE: &str = "kaskade-mlp";

/// Dimensions of a perceptron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpConfig {
    /// Number of values per image.
    pub inputs: usize,
    /// Width of each hidden layer.
    pub hidden_sizes: Vec<usize>,
    /// Number of classes.
    pub labels: usize,
}

impl MlpConfig {
    /// Returns inputs and outputs of every layer, first to last.
    fn layers(&self) -> impl Iterator<Item = (usize, usize)> {
        let outputs = self.hidden_sizes.iter().chain([&self.labels]);
        let inputs = [&self.inputs].into_iter().chain(&self.hidden_sizes);
        inputs.copied().zip(outputs.copied())
    }
}

/// The perceptron's layers on a device.
struct Perceptron<O: Ops> {
    ops: O,
    hidden: Vec<O::Linear>,
    classifier: O::Linear,
    inputs: usize,
    labels: usize,
}

impl<O: Ops> Perceptron<O> {
    fn boxed(ops: O, config: &MlpConfig, checkpoint: &mut Checkpoint) -> Result<Box<dyn Network>, LoadError> {
        let mut layers = Layers {
            ops: &ops,
            weights: &mut checkpoint.weights,
        };
        let mut hidden = Vec::with_capacity(config.hidden_sizes.len());
        for (index, (inputs, outputs)) in config.layers().enumerate().take(config.hidden_sizes.len()) {
            hidden.push(layers.linear(&format!("layers.{index}"), inputs, outputs)?);
        }
        let inputs = config.hidden_sizes.last().unwrap_or(&config.inputs);
        let classifier = layers.linear(&format!("layers.{}", hidden.len()), *inputs, config.labels)?;
        Ok(Box::new(Self {
            ops,
            hidden,
            classifier,
            inputs: config.inputs,
            labels: config.labels,
        }))
    }
}

impl<O: Ops> Network for Perceptron<O> {
    fn logits(&self, images: Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let ops = &self.ops;
        let features = self
            .hidden
            .iter()
            .fold(ops.upload(images, self.inputs), |x, layer| {
                ops.activate(ops.multiply(&x, layer), Activation::Relu, false)
            });
        rows(ops, &ops.multiply(&features, &self.classifier), self.labels)
    }
}

pub(super) fn build(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    image::build(checkpoint, device, network)
}

/// Builds the perceptron of a checkpoint with `labels` classes.
pub(super) fn network(
    checkpoint: &mut Checkpoint,
    device: &Device,
    labels: usize,
) -> Result<Box<dyn Network>, LoadError> {
    let config = &checkpoint.config;
    let (_, inputs) = shape_of(config, "input_shape")?;
    let size = MlpConfig {
        inputs,
        hidden_sizes: hidden_sizes(config)?,
        labels,
    };
    with_ops!(device, ops => Perceptron::boxed(ops, &size, checkpoint))
}

fn hidden_sizes(config: &Config) -> Result<Vec<usize>, LoadError> {
    let sizes = config.required::<Vec<usize>>("hidden_sizes")?;
    if sizes.contains(&0) {
        return Err(config.invalid_value("hidden_sizes", "each must be at least 1"));
    }
    Ok(sizes)
}
