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
pub(crate) use input::{FileReader, ImageInput};
pub use input::{IMAGE_FILE, image_file};

/// Maximum pixels of a decoded or resized image: 32 Mi, which take 96 MiB as RGB.
pub const MAX_PIXELS: usize = 1 << 25;

/// Maximum side of an image, pixels; the limit of JPEG.
const MAX_SIDE: usize = 65_535;

/// Pixels of 8 bits per channel, row-major, channels interleaved.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pixels {
    width: usize,
    height: usize,
    /// 1 (grey) or 3 (RGB); 2 or 4 for a file with an alpha channel, which comes last.
    channels: usize,
    data: Vec<u8>,
}

/// Treatment of transparency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transparency {
    /// Drops the alpha channel, as PIL does when it converts to RGB.
    Dropped,
    /// Composites the image onto white, as transformers does for `do_convert_rgb`.
    OnWhite,
}

/// Returns the height and width of the images that a `preprocessor_config.json` produces for a model with `channels`
/// channels; `None` if they depend on the image.
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

/// Checks that images of the height and width that `key` of a configuration states are allowed.
///
/// # Errors
/// [`LoadError::BadKey`] if they are too large or empty.
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
