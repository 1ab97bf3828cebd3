//! A small convolutional network for images: stages of residual blocks, 3x3 convolutions, no normalisation.
//!
//! A stage begins with a convolution, which sets the number of channels and may halve the image, followed by residual
//! blocks `x + conv2(relu(conv1(x)))`. A `ReLU` follows the first convolution and every block. A linear classifier
//! reads the flattened last stage. Normalisation is omitted because training works without it at these depths, and
//! every element-wise pass costs time on a CPU.
//!
//! `config.json`:
//!
//! | key | holds |
//! |---|---|
//! | `model_type` | `kaskade-cnn` |
//! | `input_shape` | `[channels, height, width]` of the input `image` |
//! | `stages` | a list of `{"channels", "stride", "blocks"}`, at least one |
//! | `id2label` or `num_labels` | the classes |
//!
//! Tensors in torch's layout: `stages.{i}.entry`, `stages.{i}.blocks.{j}.conv1`, `stages.{i}.blocks.{j}.conv2`,
//! `classifier`, each with `.weight` and `.bias`.

#[cfg(feature = "train")]
mod training;

use serde::{Deserialize, Serialize};

use super::image::{self, Network, shape_of};
use super::layers::Layers;
use crate::checkpoint::weights::transposed;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::{Device, with_ops};
use crate::ops::{Activation, Convolution, Epilogue, Ops};
use crate::runtime::batch::rows;
use crate::runtime::loaded::Built;
use crate::runtime::model::ModelError;

#[cfg(feature = "train")]
pub use training::Cnn;

/// The `model_type` of this architecture.
pub const MODEL_TYPE: &str = "kaskade-cnn";

/// Dimensions of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CnnConfig {
    /// Channels, height and width of the input image.
    pub input: [usize; 3],
    /// Stages, first to last.
    pub stages: Vec<StageConfig>,
    /// Number of classes.
    pub labels: usize,
}

/// Dimensions of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Channels of the convolutions.
    pub channels: usize,
    /// Stride of the first convolution, pixels: 2 halves height and width, rounding up.
    pub stride: usize,
    /// Number of residual blocks after the first convolution.
    pub blocks: usize,
}

impl CnnConfig {
    /// Returns channels, height and width of the last stage's result.
    fn last_stage(&self) -> [usize; 3] {
        let out = |size: usize, stride: usize| (size - 1) / stride + 1;
        self.stages.iter().fold(self.input, |[_, height, width], stage| {
            [
                stage.channels,
                out(height, stage.stride),
                out(width, stage.stride),
            ]
        })
    }

    /// Returns the number of values per image that the classifier reads; `None` on overflow.
    fn features(&self) -> Option<usize> {
        let [channels, height, width] = self.last_stage();
        channels.checked_mul(height)?.checked_mul(width)
    }
}

/// The network's layers on a device.
struct ConvolutionalNetwork<O: Ops> {
    ops: O,
    stages: Vec<Stage<O>>,
    classifier: O::Linear,
    input: [usize; 3],
    features: usize,
    labels: usize,
}

struct Stage<O: Ops> {
    entry: (Convolution, O::Linear),
    /// Convolution on the images inside the stage.
    inner: Convolution,
    blocks: Vec<[O::Linear; 2]>,
}

impl<O: Ops> ConvolutionalNetwork<O> {
    fn boxed(ops: O, config: &CnnConfig, checkpoint: &mut Checkpoint) -> Result<Box<dyn Network>, LoadError> {
        let mut layers = Layers {
            ops: &ops,
            weights: &mut checkpoint.weights,
        };
        let [mut channels, mut height, mut width] = config.input;
        let mut stages = Vec::with_capacity(config.stages.len());
        for (index, size) in config.stages.iter().enumerate() {
            let entry = Convolution::centred([height, width, channels], 3, size.stride);
            let stage = Stage::take(&mut layers, &format!("stages.{index}"), entry, size)?;
            Convolution {
                height,
                width,
                channels,
                ..
            } = stage.inner;
            stages.push(stage);
        }
        let features = config.features().unwrap_or(usize::MAX);
        let shape = [config.labels, features];
        let classifier = layers.by_pixel("classifier", &shape, height * width)?;
        Ok(Box::new(Self {
            ops,
            stages,
            classifier,
            input: config.input,
            features,
            labels: config.labels,
        }))
    }
}

impl<O: Ops> Stage<O> {
    fn take(
        layers: &mut Layers<'_, O>,
        name: &str,
        entry: Convolution,
        size: &StageConfig,
    ) -> Result<Self, LoadError> {
        let channels = size.channels;
        let [height, width] = entry.result();
        let first = layers.convolution(&format!("{name}.entry"), entry.channels, channels)?;
        // The configuration may state more blocks than the checkpoint contains; the first missing one ends the loop.
        let mut blocks = Vec::new();
        for index in 0..size.blocks {
            let mut conv = |which: &str| {
                layers.convolution(&format!("{name}.blocks.{index}.{which}"), channels, channels)
            };
            blocks.push([conv("conv1")?, conv("conv2")?]);
        }
        Ok(Self {
            entry: (entry, first),
            inner: Convolution::centred([height, width, channels], 3, 1),
            blocks,
        })
    }

    fn forward(&self, ops: &O, images: &O::Matrix) -> O::Matrix {
        let (entry, first) = &self.entry;
        let entered = ops.convolve_with(images, entry, first, Activation::Relu.into());
        self.blocks.iter().fold(entered, |x, [conv1, conv2]| {
            let inner = ops.convolve_with(&x, &self.inner, conv1, Activation::Relu.into());
            let sum = Epilogue {
                residual: Some(&x),
                activation: Some(Activation::Relu),
            };
            ops.convolve_with(&inner, &self.inner, conv2, sum)
        })
    }
}

impl<O: Ops> Network for ConvolutionalNetwork<O> {
    fn logits(&self, images: Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError> {
        let ops = &self.ops;
        let [channels, height, width] = self.input;
        // Requests order values by channel.
        let pixels = if channels == 1 {
            images
        } else {
            let images = images.chunks(channels * height * width);
            images
                .flat_map(|image| transposed(image, height * width))
                .collect()
        };
        let features = self
            .stages
            .iter()
            .fold(ops.upload(pixels, channels), |x, stage| stage.forward(ops, &x));
        let features = ops.with_width(features, self.features);
        rows(ops, &ops.multiply(&features, &self.classifier), self.labels)
    }
}

pub(super) fn build(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    image::build(checkpoint, device, network)
}

/// Builds the network of a checkpoint with `labels` classes.
pub(super) fn network(
    checkpoint: &mut Checkpoint,
    device: &Device,
    labels: usize,
) -> Result<Box<dyn Network>, LoadError> {
    let config = &checkpoint.config;
    let (input_shape, _) = shape_of(config, "input_shape")?;
    let size = CnnConfig {
        input: input_shape
            .as_slice()
            .try_into()
            .map_err(|_| config.invalid_value("input_shape", "it must be [channels, height, width]"))?,
        stages: stages(config)?,
        labels,
    };
    if size.features().is_none() {
        return Err(config.invalid_value("stages", "the last stage has too many values"));
    }
    with_ops!(device, ops => ConvolutionalNetwork::boxed(ops, &size, checkpoint))
}

fn stages(config: &Config) -> Result<Vec<StageConfig>, LoadError> {
    let stages = config.required::<Vec<StageConfig>>("stages")?;
    if stages.is_empty() {
        return Err(config.invalid_value("stages", "there must be at least one"));
    }
    if stages
        .iter()
        .any(|stage| stage.channels == 0 || stage.stride == 0)
    {
        return Err(config.invalid_value("stages", "channels and stride must be at least 1"));
    }
    Ok(stages)
}
