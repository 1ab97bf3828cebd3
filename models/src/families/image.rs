//! What the small image networks share: how their layers are made, and how a batch of requests passes through them.

use std::convert::Infallible;

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor as Batch, TensorData};

use super::layers;
use crate::checkpoint::{Config, LoadError, Weights};
use crate::model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
use crate::tensor::{Datatype, Tensor, TensorError};

/// Name of the input: an image, FP32, intensities from 0 to 1.
pub(super) const INPUT: &str = "image";
/// Name of the output: FP32 `[labels]`, unnormalised.
pub(super) const OUTPUT: &str = "logits";

/// Where the layers of a network come from.
pub(super) trait Layers {
    /// Why a layer cannot be had.
    type Error;
    /// A linear layer of that name.
    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, Self::Error>;
    /// A 3x3 convolution of that name, padded by 1, and so halving both sides (rounding up) at stride 2.
    fn conv3x3(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        stride: usize,
    ) -> Result<Conv2d, Self::Error>;
}

/// Layers with random weights, to be trained.
pub(super) struct Fresh<'a>(pub(super) &'a Device);

/// Layers out of a checkpoint.
pub(super) struct Stored<'a>(pub(super) &'a mut Weights, pub(super) &'a Device);

impl Layers for Fresh<'_> {
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

impl Layers for Stored<'_> {
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

/// The positive extents under `key`, and their product.
pub(super) fn extents(config: &Config, key: &str) -> Result<(Vec<usize>, usize), LoadError> {
    let shape = config.required::<Vec<usize>>(key)?;
    let product = shape
        .iter()
        .try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    match product {
        Some(product @ 1..) if !shape.is_empty() => Ok((shape, product)),
        _ => Err(config.refuse(
            key,
            "it must be a list of extents, each at least 1, whose product fits",
        )),
    }
}

/// A network from flattened images to logits.
pub(super) trait Network: Send {
    /// `[batch, pixels]` to `[batch, labels]`.
    fn logits(&self, images: Batch<2>) -> Batch<2>;
}

/// A network that answers requests.
pub(super) struct Classifier<N> {
    pub(super) network: N,
    /// Shape of one image.
    pub(super) input_shape: Vec<usize>,
    /// Product of the shape.
    pub(super) pixels: usize,
    /// Number of classes.
    pub(super) labels: usize,
    pub(super) device: Device,
}

impl<N: Network> Model for Classifier<N> {
    fn signature(&self) -> Signature {
        let shape = self.input_shape.iter().copied().map(Extent::Exactly).collect();
        Signature {
            inputs: vec![InputSpec::required(INPUT, Datatype::F32, shape)],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let mut pixels = Vec::with_capacity(batch.len().saturating_mul(self.pixels));
        let admitted: Vec<Result<(), ModelError>> = batch
            .iter()
            .map(|inputs| self.append(inputs, &mut pixels))
            .collect();
        let mut rows = self.rows(pixels).into_iter();
        admitted
            .into_iter()
            .map(|admitted| {
                admitted?;
                rows.next()
                    .unwrap_or_else(|| Err(failed("it returned too few rows")))
            })
            .collect()
    }
}

impl<N: Network> Classifier<N> {
    /// Appends the pixels of one request, if they are as many as an image has.
    fn append(&self, inputs: &Inputs, pixels: &mut Vec<f32>) -> Result<(), ModelError> {
        let Some(image) = inputs.iter().find(|input| input.name == INPUT) else {
            return Err(ModelError::MissingInput {
                name: INPUT.into(),
                expected: vec![INPUT.into()],
            });
        };
        let values = image.to_f32()?;
        if values.len() != self.pixels {
            return Err(ModelError::WrongShape {
                name: INPUT.into(),
                expected: format!("{} values", self.pixels),
                actual: image.shape.clone(),
            });
        }
        pixels.extend(values);
        Ok(())
    }

    /// The answer to each image, one after the other.
    fn rows(&self, pixels: Vec<f32>) -> Vec<Result<Outputs, ModelError>> {
        let images = pixels.len() / self.pixels.max(1);
        if images == 0 {
            return Vec::new();
        }
        let data = TensorData::new(pixels, [images, self.pixels]);
        let logits = self.network.logits(Batch::from_data(data, &self.device));
        match logits.into_data().try_into_vec::<f32>() {
            Ok(logits) => logits
                .chunks(self.labels.max(1))
                .map(|row| output(row).map_err(ModelError::from))
                .collect(),
            Err(error) => vec![Err(failed(&format!("its logits are not f32: {error:?}"))); images],
        }
    }
}

fn output(row: &[f32]) -> Result<Outputs, TensorError> {
    Ok(vec![Tensor::from_f32(OUTPUT, &[row.len()], row)?])
}

fn failed(reason: &str) -> ModelError {
    ModelError::Failed {
        reason: reason.to_owned(),
    }
}
