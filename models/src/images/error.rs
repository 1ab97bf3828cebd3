//! Errors of image files.

use thiserror::Error;

use super::{MAX_PIXELS, MAX_SIDE};

/// Why an image file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes match no supported format.
    #[error("it is not a PNG, JPEG, WebP, GIF or BMP file; convert it")]
    Format,
    /// The file is damaged or incomplete.
    #[error("the {format} file cannot be decoded: {reason}")]
    Damaged {
        /// Format of the file.
        format: &'static str,
        /// Message of the decoder.
        reason: String,
    },
    /// The colour model is not supported.
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
        /// Width, pixels.
        width: usize,
        /// Height, pixels.
        height: usize,
    },
    /// A data URL is not valid base64.
    #[error("it begins like a data URL, but is not `data:image/...;base64,` with valid base64")]
    DataUrl,
    /// The preprocessed image has another size than the model expects.
    #[error(
        "prepared by preprocessor_config.json it has {width}x{height} pixels, and the model takes {expected_width}x{expected_height}: crop or resize it to that ratio"
    )]
    Unfit {
        /// Width, pixels.
        width: usize,
        /// Height, pixels.
        height: usize,
        /// Width that the model expects, pixels.
        expected_width: usize,
        /// Height that the model expects, pixels.
        expected_height: usize,
    },
}
