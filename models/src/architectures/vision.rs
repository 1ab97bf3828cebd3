//! Image classifiers whose layers work on a grid of pixels: `ResNet`, `MobileNet`, `ConvNeXt`, Swin, and similar
//! models. A family reads its `config.json` and lists its [steps].
//!
//! Inputs: `pixel_values` FP32 `[channels, height, width]`, normalised according to the checkpoint's
//! `preprocessor_config.json`, or with that file `image_file`. The image size is that after preprocessing, else
//! `image_size`, else 224 pixels. Outputs: those of [`Classifier::outputs`]. These models cannot be partitioned.

pub(super) mod bit;
pub(super) mod blocks;
mod builder;
mod class_token;
mod concat;
mod conv_attention;
pub(super) mod convnext;
pub(super) mod cvt;
mod dense_steps;
pub(super) mod densenet;
pub(super) mod efficientnet;
pub(super) mod focalnet;
mod fork;
mod group_norm;
mod groups;
pub(super) mod hgnet;
pub(super) mod hiera;
pub(super) mod inception;
pub(super) mod mixer;
pub(super) mod mobilenet;
pub(super) mod mobilevit;
mod modulation;
mod pooled_attention;
pub(super) mod poolformer;
pub(super) mod pvt;
pub(super) mod pyramid;
pub(super) mod regnet;
pub(super) mod repvgg;
pub(super) mod resnet;
mod separable;
mod spatial_reduction;
mod steps;
pub(super) mod swiftformer;
pub(super) mod swin;
pub(super) mod textnet;
pub(super) mod timm_resnet;
pub(super) mod vgg;
mod weight_standardised;
mod window_mean;
mod windows;

use self::builder::Builder;
use self::steps::Step;
use super::layers::Layers;
use super::vit::head::embeddings;
use super::vit::patches::side_lengths;
use crate::checkpoint::{Checkpoint, Config, LoadError, transposed};
use crate::device::{Device, with_ops};
use crate::images::{self, ImageInput};
use crate::ops::Ops;
use crate::runtime::batch::{BatchResults, rows, run_batch_in_parallel};
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature};
use crate::tasks::classification::Classifier;

/// Default side of an image, as in transformers, pixels.
const DEFAULT_SIDE: usize = 224;

/// A family, which adds the steps from pixels to the features of the classifier, one row per image.
pub(super) trait Family {
    /// Prefix of the base model's tensors.
    const BASE: &'static str;
    /// Name of the classification layer.
    const CLASSIFIER: &'static str = "classifier";
    /// Name suffixes of tensors that the family does not use.
    const UNUSED_SUFFIXES: &'static [&'static str] = &[];

    /// Adds the steps of the family.
    ///
    /// # Errors
    /// [`LoadError`], naming the key or tensor.
    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError>;

    /// Adds the steps from features to the logits of the classes.
    ///
    /// # Errors
    /// [`LoadError`], naming the tensor.
    fn classify<O: Ops>(builder: &mut Builder<'_, '_, O>, classes: usize) -> Result<(), LoadError> {
        builder.multiply(Self::CLASSIFIER, classes)
    }
}

/// Builds an image classifier.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build<F: Family>(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    let classifier = Classifier::read(&checkpoint.config)?;
    network::<F>(checkpoint, device, Some(classifier))
}

/// Builds the base model of an image classifier, whose features are the image embedding.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build_features<F: Family>(
    checkpoint: &mut Checkpoint,
    device: &Device,
) -> Result<Built, LoadError> {
    network::<F>(checkpoint, device, None)
}

fn network<F: Family>(
    checkpoint: &mut Checkpoint,
    device: &Device,
    classifier: Option<Classifier>,
) -> Result<Built, LoadError> {
    checkpoint.weights.ignore_suffixes(F::UNUSED_SUFFIXES);
    checkpoint.weights.expect_base(&format!("{}.", F::BASE));
    let shape = shape(checkpoint)?;
    let [height, width, channels] = shape;
    let input = ImageInput::read(checkpoint, "pixel_values", vec![channels, height, width])?;
    Ok(Built {
        task: classifier.as_ref().map_or(Task::Embedding, Classifier::task),
        labels: classifier.as_ref().map(Classifier::labels).unwrap_or_default(),
        model: with_ops!(device, ops => {
            let mut layers = Layers { ops: &ops, weights: &mut checkpoint.weights };
            let mut builder = Builder::new(&mut layers, shape);
            F::build(&mut builder, &checkpoint.config)?;
            if let Some(classifier) = &classifier {
                F::classify(&mut builder, classifier.len())?;
            }
            let width = builder.channels();
            let steps = builder.steps();
            Box::new(ImageNetwork { ops, steps, width, shape, input, classifier, device: device.clone() })
        }),
    })
}

/// Returns height, width and channels of the images.
fn shape(checkpoint: &Checkpoint) -> Result<[usize; 3], LoadError> {
    let config = &checkpoint.config;
    let channels = config.optional_size("num_channels")?.unwrap_or(3);
    let configured = match config.optional::<serde_json::Value>("image_size")? {
        Some(_) => side_lengths(config, "image_size")?,
        None => [DEFAULT_SIDE; 2],
    };
    images::limit_size(config, "image_size", configured)?;
    let prepared = match &checkpoint.preprocessor {
        Some(config) => images::fixed_size(config, channels)?,
        None => None,
    };
    let [height, width] = prepared.unwrap_or(configured);
    Ok([height, width, channels])
}

/// Reads the channels of the stages from `key`, and their `depths`.
fn stages(config: &Config, key: &str) -> Result<(Vec<usize>, Vec<usize>), LoadError> {
    let (sizes, depths) = (config.required::<Vec<usize>>(key)?, config.required("depths")?);
    let depths: Vec<usize> = depths;
    if sizes.is_empty() || sizes.len() != depths.len() {
        return Err(config.invalid_value(
            "depths",
            format!("it must have as many stages as {key}, at least one"),
        ));
    }
    Ok((sizes, depths))
}

/// Rounds a number of channels to a multiple of `divisor`, at least `least` and at least 90 % of the number, as in
/// `MobileNet` and `EfficientNet`.
fn divisible(channels: f64, divisor: usize, least: usize) -> usize {
    let divisor = divisor.max(1);
    let rounded = (channels + divisor as f64 / 2.0) as usize / divisor * divisor;
    let rounded = rounded.max(least);
    if (rounded as f64) < 0.9 * channels {
        rounded + divisor
    } else {
        rounded
    }
}

/// An image classifier or its base model.
struct ImageNetwork<O: Ops> {
    ops: O,
    /// Steps from pixels to logits or features.
    steps: Vec<Step<O>>,
    /// Height, width and channels of an image.
    shape: [usize; 3],
    input: ImageInput,
    /// `None` if the result of the steps is the output.
    classifier: Option<Classifier>,
    /// Width of the steps' result.
    width: usize,
    device: Device,
}

impl<O: Ops> Model for ImageNetwork<O> {
    fn signature(&self) -> Signature {
        self.input.signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.input.values(inputs).map(drop)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        run_batch_in_parallel(
            &self.device,
            batch,
            |inputs| self.input.values(inputs),
            Vec::len,
            |images| self.answer(images),
        )
    }
}

impl<O: Ops> ImageNetwork<O> {
    fn answer(&self, images: &[Vec<f32>]) -> Result<BatchResults, ModelError> {
        let [height, width, channels] = self.shape;
        // Requests order values by channel.
        let pixels = images.iter().map(|image| transposed(image, height * width));
        let pixels: Vec<Vec<f32>> = pixels.collect();
        let pixels = self.ops.upload(pixels.concat(), channels);
        let logits = steps::run(&self.ops, &self.steps, &pixels, images.len()).unwrap_or(pixels);
        let Some(classifier) = &self.classifier else {
            return embeddings(&self.ops, &logits, self.width);
        };
        let logits = rows(&self.ops, &logits, self.width)?;
        Ok(logits.iter().map(|logits| classifier.outputs(logits)).collect())
    }
}
