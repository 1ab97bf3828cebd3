//! Why an image file cannot be used.

use thiserror::Error;

use super::{MAX_PIXELS, MAX_SIDE};

/// An image file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes begin like no supported format.
    #[error("it is not a PNG, JPEG, WebP, GIF or BMP file; convert it")]
    Format,
    /// The file is damaged or incomplete.
    #[error("the {format} file cannot be decoded: {reason}")]
    Damaged {
        /// Its format.
        format: &'static str,
        /// Message of the decoder.
        reason: String,
    },
    /// The colours are in a model that is not converted.
    #[error("its colours are {colours}; convert it to RGB or grey")]
    Colours {
        /// The colour model.
        colours: String,
    },
    /// The image has no pixels.
    #[error("it has no pixels")]
    Empty,
    /// The image is too large.
    #[error(
        "it has {width}x{height} pixels; at most {MAX_PIXELS} pixels and {MAX_SIDE} per side are decoded: resize it before it is sent"
    )]
    TooLarge {
        /// Pixels per row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A data URL is not valid base64.
    #[error("it begins like a data URL, but is not `data:image/...;base64,` with valid base64")]
    DataUrl,
    /// The prepared image has another size than the model takes.
    #[error(
        "prepared by preprocessor_config.json it has {width}x{height} pixels, and the model takes {expected_width}x{expected_height}: crop or resize it to that ratio"
    )]
    Unfit {
        /// Pixels per row.
        width: usize,
        /// Rows.
        height: usize,
        /// Pixels per row that the model takes.
        expected_width: usize,
        /// Rows that the model takes.
        expected_height: usize,
    },
}
