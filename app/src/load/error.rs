//! Errors of reading the requests of a load.

use std::io;
use std::path::PathBuf;

use kaskade_actors::wire::CodecError;
use kaskade_models::TensorError;
use thiserror::Error;

use crate::data::DataError;
use crate::family::FamilyError;

/// Error of reading the requests of a load.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadRequestError {
    /// The model that defines the form of the set cannot be loaded.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The set cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason that the system reports.
        source: io::Error,
    },
    /// A file holds no request.
    #[error("{} holds no request; write one {unit} per line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Form of a request in this file.
        unit: &'static str,
    },
    /// A text is not a valid input.
    #[error("{}: text {number} is not a valid input", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Number of the text, from 1.
        number: usize,
        /// The error.
        source: TensorError,
    },
    /// A request is not valid JSON.
    #[error("{}: request {number} is not valid JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Number of the request, from 1.
        number: usize,
        /// The error.
        source: serde_json::Error,
    },
    /// A request does not follow the Open Inference Protocol.
    #[error("{}: request {number} holds no tensors", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// Number of the request, from 1.
        number: usize,
        /// The error.
        source: CodecError,
    },
}
