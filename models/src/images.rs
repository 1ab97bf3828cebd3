//! Image files as inputs: decoding, and the preparation that a checkpoint's `preprocessor_config.json` describes.
//!
//! The results follow the image processors of transformers on their PIL path: EXIF orientation, conversion to the channels
//! of the model, resizing with PIL's filters in its integer arithmetic, centre crop, rescaling, normalisation.
//!
//! | file | holds |
//! |---|---|
//! | `decode` | files as pixels, with limits checked before memory is allocated; PNG and JPEG |
//! | `formats` | WebP, GIF and BMP |
//! | `exif` | the orientation of a photograph |
//! | `data_url` | files as base64 text, for requests in JSON |
//! | `resample` | PIL's `Image.resize` on bytes |
//! | `settings` | `preprocessor_config.json` |
//! | `processor` | the steps from pixels to a tensor |
//! | `input` | the inputs of an image model: a tensor, or a file |

mod data_url;
mod decode;
mod error;
mod exif;
mod formats;
mod input;
mod processor;
mod resample;
mod settings;

#[cfg(test)]
mod tests;

use crate::checkpoint::{Config, LoadError};

pub use data_url::base64;
pub use error::ImageError;
pub(crate) use input::ImageInput;
pub use input::{IMAGE_FILE, image_file};

/// Most pixels of a decoded or resized image: 32 Mi, which take 96 MiB as RGB.
pub const MAX_PIXELS: usize = 1 << 25;

/// Longest side of an image, pixels: that of JPEG.
const MAX_SIDE: usize = 65_535;

/// Pixels of 8 bits per channel, row-major, the channels of a pixel beside each other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pixels {
    width: usize,
    height: usize,
    /// 1 (grey) or 3 (RGB); of a file that is not yet opaque also 2 or 4, the last for the opacity.
    channels: usize,
    data: Vec<u8>,
}

/// What becomes of transparency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transparency {
    /// The colours stay, as where PIL converts to RGB.
    Dropped,
    /// The image lies on white, as where transformers does (`do_convert_rgb`).
    OnWhite,
}

/// Returns height and width of the images that a `preprocessor_config.json` prepares for a model with so many channels;
/// `None` if they depend on the image.
///
/// # Errors
/// [`LoadError`] if the file describes steps that are not supported, or images that are too large.
pub(crate) fn fixed_size(config: &Config, channels: usize) -> Result<Option<[usize; 2]>, LoadError> {
    let fixed = settings::Settings::read(config, channels)?.fixed_size();
    if let Some(sides) = fixed {
        limit_size(config, "size", sides)?;
    }
    Ok(fixed)
}

/// Checks the height and width of images that `key` of a configuration states.
///
/// # Errors
/// [`LoadError::BadKey`] if they are too large.
pub(crate) fn limit_size(config: &Config, key: &str, [height, width]: [usize; 2]) -> Result<(), LoadError> {
    check_size(width, height).map_err(|error| config.invalid_value(key, error.to_string()))
}

/// Checks the size of an image before memory is allocated for it.
///
/// # Errors
/// [`ImageError::TooLarge`] or [`ImageError::Empty`].
fn check_size(width: usize, height: usize) -> Result<(), ImageError> {
    if width == 0 || height == 0 {
        return Err(ImageError::Empty);
    }
    let small = width
        .checked_mul(height)
        .is_some_and(|pixels| pixels <= MAX_PIXELS);
    if small && width.max(height) <= MAX_SIDE {
        return Ok(());
    }
    Err(ImageError::TooLarge { width, height })
}
