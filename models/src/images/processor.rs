//! Preprocesses decoded images by `preprocessor_config.json`.

use super::resample::resize;
use super::settings::{Settings, Size};
use super::{ImageError, Pixels, Transparency, check_size};
use crate::checkpoint::{Config, LoadError};

/// Converts pixels to the input tensor of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ImageProcessor {
    settings: Settings,
    channels: usize,
    /// Height and width that the model expects.
    model: [usize; 2],
}

impl ImageProcessor {
    /// Reads the settings for a model that takes `shape`.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if a step is not supported, or the images have another size than the model's.
    pub(super) fn read(config: &Config, shape: &[usize]) -> Result<Self, LoadError> {
        let &[channels @ (1 | 3), height, width] = shape else {
            return Err(config.invalid_value(
                "size",
                format!("files become [channels, height, width] with 1 or 3 channels, and the model takes {shape:?}"),
            ));
        };
        let settings = Settings::read(config, channels)?;
        let (model, fixed) = ([height, width], settings.fixed_size());
        if let Some([fixed_height, fixed_width]) = fixed.filter(|fixed| *fixed != model) {
            let key = if settings.crop.is_some() {
                "crop_size"
            } else {
                "size"
            };
            return Err(config.invalid_value(
                key,
                format!("images become {fixed_height}x{fixed_width} (height, width), and the model takes {height}x{width}"),
            ));
        }
        Ok(Self {
            settings,
            channels,
            model,
        })
    }

    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    pub(super) fn transparency(&self) -> Transparency {
        self.settings.transparency
    }

    /// Preprocesses an image; returns values `[channels, height, width]`.
    ///
    /// # Errors
    /// [`ImageError::Unfit`] if the result does not have the size that the model expects.
    pub(super) fn prepare(&self, pixels: Pixels) -> Result<Vec<f32>, ImageError> {
        let pixels = match self.settings.resize {
            None => pixels,
            Some((size, filter)) => {
                let [height, width] = resized(size, [pixels.height, pixels.width]);
                check_size(width, height)?;
                resize(pixels, width, height, filter)
            }
        };
        let pixels = match self.settings.crop {
            None => pixels,
            Some(sides) => centre_crop(&pixels, sides, self.settings.rounded),
        };
        let [expected_height, expected_width] = self.model;
        if [pixels.height, pixels.width] != self.model {
            return Err(ImageError::Unfit {
                width: pixels.width,
                height: pixels.height,
                expected_width,
                expected_height,
            });
        }
        Ok(self.values(&pixels))
    }

    /// Rescales in f64 and normalises in f32, as transformers does.
    fn values(&self, pixels: &Pixels) -> Vec<f32> {
        let mut values = Vec::with_capacity(pixels.data.len());
        for channel in 0..pixels.channels {
            let bytes = 0..=u8::MAX;
            let table: Vec<f32> = bytes.map(|byte| self.value(byte, channel)).collect();
            let first = if self.settings.reversed {
                pixels.channels - 1 - channel
            } else {
                channel
            };
            let of_channel = pixels.data.iter().skip(first).step_by(pixels.channels);
            values.extend(of_channel.filter_map(|byte| table.get(usize::from(*byte))));
        }
        values
    }

    fn value(&self, byte: u8, channel: usize) -> f32 {
        let value = match self.settings.rescale {
            None => f32::from(byte),
            Some(factor) => (f64::from(byte) * factor) as f32,
        };
        let parameters = self.settings.normalise.as_ref();
        match parameters.and_then(|(mean, std)| Some((mean.get(channel)?, std.get(channel)?))) {
            None => value,
            Some((mean, std)) => (value - mean) / std,
        }
    }
}

/// Returns height and width after resizing.
fn resized(size: Size, [height, width]: [usize; 2]) -> [usize; 2] {
    match size {
        Size::Exactly(sides) => sides,
        Size::Shortest(shorter) => {
            // Truncates like Python's `int(size * long / short)`.
            let longer = |long: usize, short: usize| (shorter as f64 * long as f64 / short as f64) as usize;
            if width <= height {
                [longer(height, width), shorter]
            } else {
                [shorter, longer(width, height)]
            }
        }
    }
}

/// Crops the centre; positions outside the image are zero.
fn centre_crop(pixels: &Pixels, [height, width]: [usize; 2], rounded: bool) -> Pixels {
    // For an odd difference, cropping removes the smaller half first, and padding adds the larger half first, as in
    // transformers; torchvision rounds the first half to even.
    let cut = |old: usize, new: usize| {
        let difference = old.saturating_sub(new);
        difference / 2 + usize::from(rounded && difference % 4 == 3)
    };
    let added = |old: usize, new: usize| new.saturating_sub(old).div_ceil(2);
    let (top, left) = (cut(pixels.height, height), cut(pixels.width, width));
    let (above, before) = (added(pixels.height, height), added(pixels.width, width));
    let channels = pixels.channels;
    let mut data = vec![0; height * width * channels];
    let lines = data.chunks_mut((width * channels).max(1)).skip(above);
    let rows = pixels.data.chunks((pixels.width * channels).max(1)).skip(top);
    for (line, row) in lines.zip(rows) {
        let source = row.iter().skip(left * channels);
        for (slot, value) in line.iter_mut().skip(before * channels).zip(source) {
            *slot = *value;
        }
    }
    Pixels {
        width,
        height,
        data,
        ..*pixels
    }
}
