//! Inputs of an image model: a tensor, or an image file if the checkpoint states the preprocessing.

use rayon::prelude::*;

use super::decode::decode;
use super::processor::ImageProcessor;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError, Signature};
use crate::runtime::tensor::{Datatype, Tensor, TensorError};

/// Name of the input for an image file: BYTES `[1]`, the file itself or a data URL.
pub const IMAGE_FILE: &str = "image_file";

/// Builds an [`IMAGE_FILE`] input.
///
/// # Errors
/// [`TensorError::Overflow`] if the file exceeds the protocol's 32-bit length.
pub fn image_file(file: &[u8]) -> Result<Tensor, TensorError> {
    Tensor::from_byte_strings(IMAGE_FILE, &[file])
}

/// Reader of [`IMAGE_FILE`] inputs for a model.
pub(crate) struct FileReader(ImageProcessor);

impl FileReader {
    /// Reads the settings of a `preprocessor_config.json` for a model that takes `[channels, height, width]`.
    ///
    /// # Errors
    /// [`LoadError`] if the settings describe unsupported steps, or images of another size than the model's.
    pub(crate) fn read(settings: &Config, shape: &[usize]) -> Result<Self, LoadError> {
        ImageProcessor::read(settings, shape).map(Self)
    }

    /// Returns the values of the model's tensor for a file.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a file that cannot be decoded.
    pub(crate) fn values(&self, input: &Tensor) -> Result<Vec<f32>, ModelError> {
        let Self(processor) = self;
        let unusable = |reason: String| ModelError::BadInput {
            name: IMAGE_FILE.to_owned(),
            reason,
        };
        let files = input.to_byte_strings()?;
        let file = files.first().copied().unwrap_or_default();
        let pixels = decode(file, processor.channels(), processor.transparency());
        let pixels = pixels.map_err(|error| unusable(error.to_string()))?;
        processor
            .prepare(pixels)
            .map_err(|error| unusable(error.to_string()))
    }
}

/// Inputs of an image model.
pub(crate) struct ImageInput {
    /// Name of the tensor.
    tensor: &'static str,
    /// Shape of the tensor.
    shape: Vec<usize>,
    files: Option<FileReader>,
}

impl ImageInput {
    /// Reads the `preprocessor_config.json` of a checkpoint, if it has one, for a model that takes `tensor` of `shape`.
    ///
    /// # Errors
    /// [`LoadError`] if the file describes unsupported steps, or images of another size than the model's.
    pub(crate) fn read(
        checkpoint: &Checkpoint,
        tensor: &'static str,
        shape: Vec<usize>,
    ) -> Result<Self, LoadError> {
        let files = checkpoint
            .preprocessor
            .as_ref()
            .map(|config| FileReader::read(config, &shape))
            .transpose()?;
        Ok(Self { tensor, shape, files })
    }

    /// Returns the signature: the tensor, or with a `preprocessor_config.json` alternatively `image_file` (BYTES
    /// `[1]`).
    pub(crate) fn signature(&self) -> Signature {
        let shape = self.shape.iter().copied().map(Extent::Exactly).collect();
        let inputs = if self.files.is_none() {
            vec![InputSpec::required(self.tensor, Datatype::F32, shape)]
        } else {
            vec![
                InputSpec::optional(self.tensor, Datatype::F32, shape),
                InputSpec::optional(IMAGE_FILE, Datatype::Bytes, vec![Extent::Exactly(1)]),
            ]
        };
        Signature { inputs }
    }

    /// Returns the tensor values of each request; decodes image files in parallel.
    pub(crate) fn batch(&self, batch: &[Inputs]) -> Vec<Result<Vec<f32>, ModelError>> {
        let is_file = |inputs: &Inputs| inputs.iter().any(|input| input.name == IMAGE_FILE);
        if batch.len() > 1 && batch.iter().any(is_file) {
            return batch.par_iter().map(|inputs| self.values(inputs)).collect();
        }
        batch.iter().map(|inputs| self.values(inputs)).collect()
    }

    /// Returns the tensor values of one request.
    ///
    /// # Errors
    /// [`ModelError`], naming the invalid input.
    pub(crate) fn values(&self, inputs: &Inputs) -> Result<Vec<f32>, ModelError> {
        self.signature().check(inputs)?;
        match (inputs.as_slice(), &self.files) {
            ([input], Some(files)) if input.name == IMAGE_FILE => files.values(input),
            ([input], _) => Ok(input.to_f32()?),
            ([], _) => Err(ModelError::MissingInput {
                name: self.tensor.to_owned(),
                expected: vec![self.tensor.to_owned(), IMAGE_FILE.to_owned()],
            }),
            _ => Err(ModelError::BadInput {
                name: IMAGE_FILE.to_owned(),
                reason: format!("it takes the place of `{}`; send one of them", self.tensor),
            }),
        }
    }
}
