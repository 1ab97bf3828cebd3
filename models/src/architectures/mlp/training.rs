//! The perceptron as a burn module, for training programs.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::MlpConfig;

/// The perceptron's layers.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl MlpConfig {
    /// Builds the perceptron with random weights, for training.
    pub fn init(&self, device: &Device) -> Mlp {
        let layers = self.layers();
        let layers = layers.map(|(inputs, outputs)| LinearConfig::new(inputs, outputs).init(device));
        Mlp {
            layers: layers.collect(),
        }
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
