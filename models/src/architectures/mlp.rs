//! A multi-layer perceptron for images: linear layers with `ReLU` between them.
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

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::image::{Classifier, FromCheckpoint, LayerSource, Network, RandomInit, shape_of};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::runtime::loaded::{Built, Task};

/// The `model_type` of this architecture.
pub const MODEL_TYPE: &str = "kaskade-mlp";

/// Size of a perceptron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpConfig {
    /// Values per image.
    pub inputs: usize,
    /// Width of each hidden layer.
    pub hidden_sizes: Vec<usize>,
    /// Number of classes.
    pub labels: usize,
}

/// The perceptron's layers.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl MlpConfig {
    /// Builds the perceptron with random weights, for training.
    pub fn init(&self, device: &Device) -> Mlp {
        let Ok(mlp) = self.build(&mut RandomInit(device));
        mlp
    }

    fn build<L: LayerSource>(&self, source: &mut L) -> Result<Mlp, L::Error> {
        let widths = self.hidden_sizes.iter().chain([&self.labels]);
        let layers = [&self.inputs]
            .into_iter()
            .chain(&self.hidden_sizes)
            .zip(widths)
            .enumerate()
            .map(|(index, (inputs, outputs))| source.linear(&format!("layers.{index}"), *inputs, *outputs))
            .collect::<Result<_, _>>()?;
        Ok(Mlp { layers })
    }
}

impl Mlp {
    /// Returns the logits `[batch, labels]` of flattened images `[batch, inputs]`.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let Some((last, hidden)) = self.layers.split_last() else {
            return images;
        };
        last.forward(
            hidden
                .iter()
                .fold(images, |values, layer| relu(layer.forward(values))),
        )
    }
}

impl Network for Mlp {
    fn logits(&self, images: Tensor<2>) -> Tensor<2> {
        self.forward(images)
    }
}

pub(super) fn build(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    let labels = checkpoint.config.labels()?;
    let (input_shape, pixels) = shape_of(&checkpoint.config, "input_shape")?;
    Ok(Built {
        model: Box::new(Classifier {
            network: network(checkpoint, device, labels.len())?,
            input_shape,
            pixels,
            device: device.clone(),
        }),
        task: Task::Classification,
        labels,
    })
}

/// Builds the perceptron of a checkpoint with `labels` classes.
pub(super) fn network(checkpoint: &mut Checkpoint, device: &Device, labels: usize) -> Result<Mlp, LoadError> {
    let config = &checkpoint.config;
    let (_, inputs) = shape_of(config, "input_shape")?;
    let size = MlpConfig {
        inputs,
        hidden_sizes: hidden_sizes(config)?,
        labels,
    };
    size.build(&mut FromCheckpoint(&mut checkpoint.weights, device))
}

fn hidden_sizes(config: &Config) -> Result<Vec<usize>, LoadError> {
    let sizes = config.required::<Vec<usize>>("hidden_sizes")?;
    if sizes.contains(&0) {
        return Err(config.invalid_value("hidden_sizes", "each must be at least 1"));
    }
    Ok(sizes)
}
