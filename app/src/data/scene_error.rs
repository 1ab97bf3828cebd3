//! Why scenes cannot be used.

use kaskade_models::{ModelError, TensorError};
use thiserror::Error;

use super::error::DataError;

/// The output in which a detector reports objects: `[found, 4]`, of which the first three are kind, top and left.
pub(super) const BOXES: &str = "boxes";

/// Scenes cannot be used, or a reply does not have the form that they need.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SceneError {
    /// The images are of another shape.
    #[error("the images have shape {shape:?}; scenes are [n, height, width]")]
    Images {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The objects are of another shape.
    #[error("the objects have shape {shape:?}; they are [n, rows, columns]")]
    Objects {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The files are of different sets.
    #[error("there are {images} images and the objects of {labelled}")]
    Counts {
        /// Images.
        images: usize,
        /// Images whose objects are known.
        labelled: usize,
    },
    /// Cells are not of one size.
    #[error("an image of {height}x{width} pixels has no {rows}x{columns} cells of one size")]
    Cells {
        /// Pixels from top to bottom.
        height: usize,
        /// Pixels from left to right.
        width: usize,
        /// Rows of cells.
        rows: usize,
        /// Columns of cells.
        columns: usize,
    },
    /// An object has a label that no kind has.
    #[error("an object has label {label}, and the kinds have fewer classes together")]
    Label {
        /// The label.
        label: usize,
    },
    /// No scene is left.
    #[error("no scene is left after the first {skip}")]
    Empty {
        /// How many were skipped.
        skip: usize,
    },
    /// A detector reports objects in another form.
    #[error("`{BOXES}` has shape {shape:?}, not [found, 4]")]
    Boxes {
        /// The shape.
        shape: Vec<usize>,
    },
    /// A detector found an object of a kind that the set does not name.
    #[error("`{BOXES}` has an object of kind {kind}; the set names {kinds}")]
    Kind {
        /// The kind, from 0.
        kind: usize,
        /// How many kinds the set names.
        kinds: usize,
    },
    /// The model takes no images.
    #[error(transparent)]
    Input(Box<DataError>),
    /// A scene is not what the model takes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor has the wrong type or shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
