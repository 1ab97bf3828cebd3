//! Labelled images in IDX files, the format of MNIST.
//!
//! An IDX file consists of two zero bytes, a type code, the number of dimensions, as many big-endian u32 sizes, and the
//! elements. An image set has two files: pixels `[count, height, width]` and labels `[count]`, both of type u8.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use thiserror::Error;

use crate::runtime::tensor::{Tensor, TensorError};

/// Type code of unsigned bytes, the only type of image sets.
const UNSIGNED_BYTE: u8 = 0x08;
/// Maximum size of an image set, bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The content of an IDX file of unsigned bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idx {
    /// Size of each dimension.
    pub shape: Vec<usize>,
    /// The elements, row-major, as many as the shape states.
    pub data: Vec<u8>,
}

/// Labelled grey images of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledImages {
    height: usize,
    width: usize,
    /// Pixels of all images, row-major, `labels.len() * height * width` in total.
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

/// Why bytes are not a valid image set.
#[derive(Debug, Error)]
pub enum IdxError {
    /// The file cannot be read.
    #[error("cannot read `{file}`: {source}")]
    Io {
        /// The file.
        file: String,
        /// Message of the operating system.
        source: std::io::Error,
    },
    /// The first bytes are not those of an IDX file of unsigned bytes.
    #[error(
        "`{file}` begins with {found:02x?}, not with 00 00 08 and a number of dimensions: it is not an IDX file of unsigned bytes{hint}"
    )]
    BadMagic {
        /// The file.
        file: String,
        /// First bytes of the file, at most four.
        found: Vec<u8>,
        /// A hint how to fix the problem, if the bytes reveal the format.
        hint: &'static str,
    },
    /// The number of dimensions is wrong.
    #[error("`{file}` has shape {actual:?}; {wanted}")]
    WrongShape {
        /// The file.
        file: String,
        /// Shape of the file.
        actual: Vec<usize>,
        /// The expected shape, as text.
        wanted: &'static str,
    },
    /// The header does not match the number of bytes.
    #[error("`{file}` has {actual} bytes, but its header states {expected}")]
    WrongLength {
        /// The file.
        file: String,
        /// File size according to the header, header included, bytes.
        expected: u64,
        /// File size, bytes.
        actual: u64,
    },
    /// The file exceeds the size limit.
    #[error("`{file}` has or states more than the limit of {limit} bytes")]
    TooLarge {
        /// The file.
        file: String,
        /// The limit, bytes.
        limit: u64,
    },
    /// The numbers of images and labels differ.
    #[error(
        "`{images_file}` has {images} images and `{labels_file}` {labels} labels; the numbers must be equal"
    )]
    CountMismatch {
        /// The images' file.
        images_file: String,
        /// Number of images in the file.
        images: usize,
        /// The labels' file.
        labels_file: String,
        /// Number of labels in the file.
        labels: usize,
    },
    /// The parts of a split need more images than there are.
    #[error("a split into {parts:?} needs {needed} images; there are {images}")]
    SplitTooLarge {
        /// The requested parts.
        parts: Vec<usize>,
        /// Sum of the parts, saturating.
        needed: usize,
        /// Available images.
        images: usize,
    },
}

impl Idx {
    /// Parses the bytes of a file; `file` is its name in errors.
    ///
    /// # Errors
    /// [`IdxError::BadMagic`], [`IdxError::WrongLength`] for missing or extra bytes, or [`IdxError::TooLarge`] if the
    /// header states more than 1 GiB.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, IdxError> {
        let Some(([0, 0, UNSIGNED_BYTE, dimensions @ 1..=u8::MAX], rest)) = bytes.split_first_chunk::<4>()
        else {
            let found = bytes.iter().copied().take(4).collect::<Vec<_>>();
            return Err(IdxError::BadMagic {
                file: file.to_owned(),
                hint: if found.starts_with(&[0x1f, 0x8b]) {
                    "; it is compressed with gzip: gunzip it first"
                } else {
                    ""
                },
                found,
            });
        };
        let header = 4 + 4 * u64::from(*dimensions);
        let wrong_length = |expected| IdxError::WrongLength {
            file: file.to_owned(),
            expected,
            actual: bytes.len() as u64,
        };
        let (extents, data) = rest
            .split_at_checked(4 * usize::from(*dimensions))
            .ok_or_else(|| wrong_length(header))?;
        let (extents, _) = extents.as_chunks::<4>();
        let extents = extents.iter().map(|extent| u32::from_be_bytes(*extent));
        let announced = extents
            .clone()
            .try_fold(1_u64, |product, extent| product.checked_mul(u64::from(extent)))
            .filter(|elements| *elements <= MAX_BYTES)
            .ok_or_else(|| IdxError::TooLarge {
                file: file.to_owned(),
                limit: MAX_BYTES,
            })?;
        if announced != data.len() as u64 {
            return Err(wrong_length(header + announced));
        }
        Ok(Self {
            shape: extents.map(|extent| extent as usize).collect(),
            data: data.to_vec(),
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The errors of [`Idx::parse`], and [`IdxError::Io`].
    pub fn read(path: &Path) -> Result<Self, IdxError> {
        let file = path.display().to_string();
        let mut bytes = Vec::new();
        // Reads one byte over the limit, to detect files that are too large.
        File::open(path)
            .and_then(|handle| handle.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|source| IdxError::Io {
                file: file.clone(),
                source,
            })?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(IdxError::TooLarge {
                file,
                limit: MAX_BYTES,
            });
        }
        Self::parse(&file, &bytes)
    }
}

impl LabelledImages {
    /// Reads a file of images and the file of their labels.
    ///
    /// # Errors
    /// [`IdxError`], naming the file.
    pub fn read(images: &Path, labels: &Path) -> Result<Self, IdxError> {
        Self::join(
            (&images.display().to_string(), Idx::read(images)?),
            (&labels.display().to_string(), Idx::read(labels)?),
        )
    }

    /// Parses files in memory; each is given with the name to use in errors.
    ///
    /// # Errors
    /// [`IdxError`], naming the file.
    pub fn parse(images: (&str, &[u8]), labels: (&str, &[u8])) -> Result<Self, IdxError> {
        Self::join(
            (images.0, Idx::parse(images.0, images.1)?),
            (labels.0, Idx::parse(labels.0, labels.1)?),
        )
    }

    fn join(
        (images_file, images): (&str, Idx),
        (labels_file, labels): (&str, Idx),
    ) -> Result<Self, IdxError> {
        let &[count, height @ 1..=usize::MAX, width @ 1..=usize::MAX] = images.shape.as_slice() else {
            return Err(IdxError::WrongShape {
                file: images_file.to_owned(),
                actual: images.shape,
                wanted: "images must be [count, height, width] with positive sides",
            });
        };
        if labels.shape.len() != 1 {
            return Err(IdxError::WrongShape {
                file: labels_file.to_owned(),
                actual: labels.shape,
                wanted: "labels must be [count]",
            });
        }
        if count != labels.data.len() {
            return Err(IdxError::CountMismatch {
                images_file: images_file.to_owned(),
                images: count,
                labels_file: labels_file.to_owned(),
                labels: labels.data.len(),
            });
        }
        Ok(Self {
            height,
            width,
            pixels: images.data,
            labels: labels.data,
        })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Height and width of every image, pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.height, self.width)
    }

    /// Iterates over the pixels of each image, row-major, with the label.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], u8)> {
        self.pixels
            .chunks_exact(self.height * self.width)
            .zip(self.labels.iter().copied())
    }

    /// Returns every image as a model input with its label, in order: an FP32 tensor `name` of shape
    /// `[1, height, width]`, each pixel multiplied by `rescale` (1/16 for the 8x8 digits, 1/255 for MNIST).
    pub fn tensors(
        &self,
        name: &str,
        rescale: f32,
    ) -> impl ExactSizeIterator<Item = Result<(Tensor, u8), TensorError>> {
        self.iter().map(move |(pixels, label)| {
            let values: Vec<f32> = pixels.iter().map(|pixel| f32::from(*pixel) * rescale).collect();
            let tensor = Tensor::from_f32(name, &[1, self.height, self.width], &values)?;
            Ok((tensor, label))
        })
    }

    /// Splits the images in file order into consecutive parts of the given sizes.
    ///
    /// # Errors
    /// [`IdxError::SplitTooLarge`] if there are not enough images.
    pub fn split<const N: usize>(&self, parts: [usize; N]) -> Result<[Self; N], IdxError> {
        let needed = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(*part));
        if needed > self.len() {
            return Err(IdxError::SplitTooLarge {
                parts: parts.to_vec(),
                needed,
                images: self.len(),
            });
        }
        let mut images = self.iter();
        Ok(parts.map(|count| {
            let part = images.by_ref().take(count);
            let (pixels, labels): (Vec<&[u8]>, Vec<u8>) = part.unzip();
            Self {
                height: self.height,
                width: self.width,
                pixels: pixels.concat(),
                labels,
            }
        }))
    }
}

#[cfg(test)]
mod tests;
