//! Common parts of the small image networks: the [`Network`] trait, and the `Model` implementation.
//!
//! Inputs: `image` FP32 of the configured shape, intensities from 0 to 1, or with a `preprocessor_config.json` also
//! `image_file`. Outputs: `logits` FP32 `[labels]`.

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::Device;
use crate::images::ImageInput;
use crate::runtime::batch::{logits_per_row, run_batch_of};
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature};

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

/// A network that maps images to logits.
pub(super) trait Network: Send {
    /// Returns the logits of every image; `images` contains the concatenated images.
    ///
    /// # Errors
    /// [`ModelError::Failed`] with the message of the device.
    fn logits(&self, images: Vec<f32>) -> Result<Vec<Vec<f32>>, ModelError>;
}

/// Function that builds the network of a checkpoint for a number of classes.
type BuildNetwork = fn(&mut Checkpoint, &Device, usize) -> Result<Box<dyn Network>, LoadError>;

/// Builds a classifier with the network that `network` returns.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build(
    checkpoint: &mut Checkpoint,
    device: &Device,
    network: BuildNetwork,
) -> Result<Built, LoadError> {
    let labels = checkpoint.config.labels()?;
    let (input_shape, _) = shape_of(&checkpoint.config, "input_shape")?;
    Ok(Built {
        model: Box::new(Classifier {
            input: ImageInput::read(checkpoint, "image", input_shape)?,
            network: network(checkpoint, device, labels.len())?,
        }),
        task: Task::Classification,
        labels,
    })
}

/// An image classifier with a small network.
struct Classifier {
    network: Box<dyn Network>,
    input: ImageInput,
}

impl Model for Classifier {
    fn signature(&self) -> Signature {
        self.input.signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.input.values(inputs).map(drop)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        run_batch_of(self.input.batch(batch), |images| {
            Ok(logits_per_row(self.network.logits(images.concat())?))
        })
    }
}
