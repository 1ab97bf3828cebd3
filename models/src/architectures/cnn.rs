//! A small convolutional network for images: stages of residual blocks, 3x3 convolutions, no normalisation.
//!
//! A stage begins with one convolution, which sets the channels and may halve the image. Residual blocks follow:
//! `x + conv2(relu(conv1(x)))`. A `ReLU` follows the first convolution and every block. A linear classifier reads the
//! flattened last stage. Normalisation is omitted because training works without it at these depths, and every
//! element-wise pass costs time on a CPU.
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

use burn::module::Module;
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::image::{Classifier, FromCheckpoint, LayerSource, Network, RandomInit, shape_of};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::runtime::loaded::{Built, Task};

/// The `model_type` of this architecture.
pub const MODEL_TYPE: &str = "kaskade-cnn";

/// Size of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CnnConfig {
    /// Channels, height and width of an image.
    pub input: [usize; 3],
    /// Its stages, first to last.
    pub stages: Vec<StageConfig>,
    /// Number of classes.
    pub labels: usize,
}

/// Size of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Channels of its convolutions.
    pub channels: usize,
    /// Stride of its first convolution, pixels: 2 halves both sides, rounding up.
    pub stride: usize,
    /// Residual blocks after the first convolution.
    pub blocks: usize,
}

/// The network's layers.
#[derive(Module, Debug)]
pub struct Cnn {
    stages: Vec<Stage>,
    classifier: Linear,
    #[module(skip)]
    input: [usize; 3],
}

#[derive(Module, Debug)]
struct Stage {
    entry: Conv2d,
    blocks: Vec<Block>,
}

#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    conv2: Conv2d,
}

impl CnnConfig {
    /// Builds the network with random weights, for training.
    pub fn init(&self, device: &Device) -> Cnn {
        let Ok(cnn) = self.build(&mut RandomInit(device));
        cnn
    }

    /// Values per image that reach the classifier; `None` on overflow.
    fn features(&self) -> Option<usize> {
        let [channels, height, width] = self.input;
        let out = |size: usize, stride: usize| (size - 1) / stride + 1;
        let (channels, height, width) =
            self.stages
                .iter()
                .fold((channels, height, width), |(_, height, width), stage| {
                    (
                        stage.channels,
                        out(height, stage.stride),
                        out(width, stage.stride),
                    )
                });
        channels.checked_mul(height)?.checked_mul(width)
    }

    fn build<L: LayerSource>(&self, source: &mut L) -> Result<Cnn, L::Error> {
        let [mut channels, ..] = self.input;
        let mut stages = Vec::with_capacity(self.stages.len());
        for (index, stage) in self.stages.iter().enumerate() {
            stages.push(stage.build(source, &format!("stages.{index}"), channels)?);
            channels = stage.channels;
        }
        let features = self.features().unwrap_or(usize::MAX);
        Ok(Cnn {
            stages,
            classifier: source.linear("classifier", features, self.labels)?,
            input: self.input,
        })
    }
}

impl StageConfig {
    fn build<L: LayerSource>(&self, source: &mut L, name: &str, inputs: usize) -> Result<Stage, L::Error> {
        let channels = self.channels;
        Ok(Stage {
            entry: source.conv3x3(&format!("{name}.entry"), inputs, channels, self.stride)?,
            blocks: (0..self.blocks)
                .map(|index| {
                    let mut conv = |which| {
                        source.conv3x3(&format!("{name}.blocks.{index}.{which}"), channels, channels, 1)
                    };
                    Ok(Block {
                        conv1: conv("conv1")?,
                        conv2: conv("conv2")?,
                    })
                })
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Cnn {
    /// Returns the logits `[batch, labels]` of images `[batch, channels * height * width]`.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let [batch, _] = images.dims();
        let [channels, height, width] = self.input;
        let features = self.stages.iter().fold(
            images.reshape([batch, channels, height, width]),
            |values, stage| stage.forward(values),
        );
        self.classifier.forward(features.flatten(1, 3))
    }
}

impl Stage {
    fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        self.blocks
            .iter()
            .fold(relu(self.entry.forward(images)), |values, block| {
                let change = block.conv2.forward(relu(block.conv1.forward(values.clone())));
                relu(values + change)
            })
    }
}

impl Network for Cnn {
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

/// Builds the network of a checkpoint with `labels` classes.
pub(super) fn network(checkpoint: &mut Checkpoint, device: &Device, labels: usize) -> Result<Cnn, LoadError> {
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
    size.build(&mut FromCheckpoint(&mut checkpoint.weights, device))
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
