//! The network as a burn module, for training programs.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::{CnnConfig, StageConfig};

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
        let [mut channels, ..] = self.input;
        let mut stages = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            stages.push(Stage::init(stage, channels, device));
            channels = stage.channels;
        }
        let features = self.features().unwrap_or(usize::MAX);
        Cnn {
            stages,
            classifier: LinearConfig::new(features, self.labels).init(device),
            input: self.input,
        }
    }
}

impl Stage {
    fn init(config: &StageConfig, inputs: usize, device: &Device) -> Self {
        let channels = config.channels;
        let blocks = (0..config.blocks).map(|_| Block {
            conv1: conv3x3(channels, channels, 1, device),
            conv2: conv3x3(channels, channels, 1, device),
        });
        Self {
            entry: conv3x3(inputs, channels, config.stride, device),
            blocks: blocks.collect(),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        self.blocks
            .iter()
            .fold(relu(self.entry.forward(images)), |values, block| {
                let change = block.conv2.forward(relu(block.conv1.forward(values.clone())));
                relu(values + change)
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

/// Creates a 3x3 convolution with padding 1; stride 2 halves height and width, rounding up.
fn conv3x3(inputs: usize, outputs: usize, stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new([inputs, outputs], [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}
