//! Common parts of the small image networks: construction of layers, and the `Model` implementation.
//!
//! Inputs: `image` FP32 of the configured shape, intensities from 0 to 1. Outputs: `logits` FP32 `[labels]`.

use std::convert::Infallible;

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor, TensorData};

use super::layers;
use crate::checkpoint::{Config, LoadError, Weights};
use crate::runtime::batch::{logits_per_row, run_batch};
use crate::runtime::model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::{self, Datatype};

/// Source of a network's layers.
pub(super) trait LayerSource {
    /// Why a layer cannot be built.
    type Error;
    /// Returns the linear layer of that name.
    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, Self::Error>;
    /// Returns the 3x3 convolution of that name, padded by 1; stride 2 halves both sides (rounding up).
    fn conv3x3(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        stride: usize,
    ) -> Result<Conv2d, Self::Error>;
}

/// Random weights, for training.
pub(super) struct RandomInit<'a>(pub(super) &'a Device);

/// Weights from a checkpoint.
pub(super) struct FromCheckpoint<'a>(pub(super) &'a mut Weights, pub(super) &'a Device);

impl LayerSource for RandomInit<'_> {
    type Error = Infallible;

    fn linear(&mut self, _: &str, inputs: usize, outputs: usize) -> Result<Linear, Infallible> {
        Ok(LinearConfig::new(inputs, outputs).init(self.0))
    }

    fn conv3x3(
        &mut self,
        _: &str,
        inputs: usize,
        outputs: usize,
        stride: usize,
    ) -> Result<Conv2d, Infallible> {
        Ok(Conv2dConfig::new([inputs, outputs], [3, 3])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init(self.0))
    }
}

impl LayerSource for FromCheckpoint<'_> {
    type Error = LoadError;

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, LoadError> {
        layers::linear(self.0, name, inputs, outputs, self.1)
    }

    fn conv3x3(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        stride: usize,
    ) -> Result<Conv2d, LoadError> {
        let Self(weights, device) = self;
        let weight = weights.tensor(&format!("{name}.weight"), [outputs, inputs, 3, 3], device)?;
        let bias = weights.tensor(&format!("{name}.bias"), [outputs], device)?;
        Ok(Conv2d {
            weight: Param::from_tensor(weight),
            bias: Some(Param::from_tensor(bias)),
            stride: [stride, stride],
            kernel_size: [3, 3],
            dilation: [1, 1],
            groups: 1,
            padding: PaddingConfig2d::Explicit(1, 1, 1, 1),
        })
    }
}

/// Reads the dimensions under `key` and their product, which must be positive.
pub(super) fn shape_of(config: &Config, key: &str) -> Result<(Vec<usize>, usize), LoadError> {
    let shape = config.required::<Vec<usize>>(key)?;
    let product = shape
        .iter()
        .try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    match product {
        Some(product @ 1..) if !shape.is_empty() => Ok((shape, product)),
        _ => Err(config.invalid_value(
            key,
            "it must be a list of dimensions, each at least 1, whose product does not overflow",
        )),
    }
}

/// A network from flattened images to logits.
pub(super) trait Network: Send {
    /// Returns the logits `[batch, labels]` of `[batch, pixels]`.
    fn logits(&self, images: Tensor<2>) -> Tensor<2>;
}

/// A network as a model.
pub(super) struct Classifier<N> {
    pub(super) network: N,
    /// Shape of one image.
    pub(super) input_shape: Vec<usize>,
    /// Product of the shape.
    pub(super) pixels: usize,
    pub(super) device: Device,
}

impl<N: Network> Model for Classifier<N> {
    fn signature(&self) -> Signature {
        let shape = self.input_shape.iter().copied().map(Extent::Exactly).collect();
        Signature {
            inputs: vec![InputSpec::required("image", Datatype::F32, shape)],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let signature = self.signature();
        run_batch(
            batch,
            |inputs| {
                signature.check(inputs)?;
                let image = inputs.first().map(tensor::Tensor::to_f32).transpose()?;
                Ok(image.unwrap_or_default())
            },
            |images| {
                let data = TensorData::new(images.concat(), [images.len(), self.pixels]);
                logits_per_row(self.network.logits(Tensor::from_data(data, &self.device)))
            },
        )
    }
}
