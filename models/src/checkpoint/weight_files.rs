//! Files of weights, by their first bytes: safetensors or PyTorch.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

use super::weights::{Source, Weights};
use super::{LoadError, pytorch};

impl Weights {
    /// Reads the header of an open file of safetensors or PyTorch; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] if the file is malformed, or its header does not describe exactly the bytes that follow it.
    pub fn from_file(file: impl Into<String>, handle: File) -> Result<Self, LoadError> {
        let file = file.into();
        let length = handle
            .metadata()
            .map_err(|error| LoadError::BadWeights {
                file: file.clone(),
                reason: error.to_string(),
            })?
            .len();
        open(file, Source::File(Arc::new(handle)), length)
    }

    /// Reads the header of a file of safetensors or PyTorch in memory; `file` is its name in errors.
    ///
    /// # Errors
    /// Same as [`Weights::from_file`].
    pub fn from_bytes(file: impl Into<String>, bytes: Bytes) -> Result<Self, LoadError> {
        let length = bytes.len() as u64;
        open(file.into(), Source::Memory(bytes), length)
    }
}

fn open(file: String, source: Source, length: u64) -> Result<Weights, LoadError> {
    source.check_pointer(&file, length)?;
    if pytorch::is_pytorch(&source, length) {
        return pytorch::open(file, &source, length);
    }
    Weights::of_safetensors(file, source, length)
}
