//! Errors of scenes.

use kaskade_models::{ModelError, TensorError};
use thiserror::Error;

use super::error::DataError;

/// Output in which a detector reports objects: `[found, 4]`, beginning with kind, top and left.
pub(super) const BOXES: &str = "boxes";

/// Error of reading scenes, or of a reply about them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SceneError {
    /// The images have another shape.
    #[error("the images have shape {shape:?}; scenes are [n, height, width]")]
    Images {
        /// Shape of the images.
        shape: Vec<usize>,
    },
    /// The objects have another shape.
    #[error("the objects have shape {shape:?}; they are [n, rows, columns]")]
    Objects {
        /// Shape of the objects.
        shape: Vec<usize>,
    },
    /// The files belong to different sets.
    #[error("there are {images} images and the objects of {labelled}")]
    Counts {
        /// Number of images.
        images: usize,
        /// Number of images with known objects.
        labelled: usize,
    },
    /// The cells of the grid have different sizes.
    #[error("an image of {height}x{width} pixels has no {rows}x{columns} cells of one size")]
    Cells {
        /// Height of the image, pixels.
        height: usize,
        /// Width of the image, pixels.
        width: usize,
        /// Number of rows of cells.
        rows: usize,
        /// Number of columns of cells.
        columns: usize,
    },
    /// An object has a label that no kind contains.
    #[error("an object has label {label}, and the kinds have fewer classes together")]
    Label {
        /// The label.
        label: usize,
    },
    /// No scene is left after skipping.
    #[error("no scene is left after the first {skip}")]
    Empty {
        /// Number of scenes skipped.
        skip: usize,
    },
    /// A detector reports objects in another form.
    #[error("`{BOXES}` has shape {shape:?}, not [found, 4]")]
    Boxes {
        /// Shape of the output.
        shape: Vec<usize>,
    },
    /// A detector found an object of a kind that the set does not contain.
    #[error("`{BOXES}` has an object of kind {kind}; the set names {kinds}")]
    Kind {
        /// Index of the kind, from 0.
        kind: usize,
        /// Number of kinds in the set.
        kinds: usize,
    },
    /// The model accepts no images.
    #[error(transparent)]
    Input(Box<DataError>),
    /// The model does not accept a scene.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor has the wrong type or shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
