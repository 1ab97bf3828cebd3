//! Tensors as they travel: the Open Inference Protocol v2 (`name`, `shape`, `datatype`, raw little-endian data).
//!
//! The data is a [`Bytes`], so that a tensor is passed between actors, and cut out of a received message, without a
//! copy.

use bytes::Bytes;
use thiserror::Error;

/// Element type, by its Open Inference Protocol name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// `BOOL`, one byte, 0 or 1.
    Bool,
    /// `UINT8`.
    U8,
    /// `INT8`.
    I8,
    /// `INT32`.
    I32,
    /// `INT64`.
    I64,
    /// `FP16`.
    F16,
    /// `BF16`.
    Bf16,
    /// `FP32`.
    F32,
    /// `FP64`.
    F64,
    /// `BYTES`: UTF-8 text or opaque bytes; each element is a little-endian u32 length and that many bytes.
    Bytes,
}

impl Datatype {
    /// Every type, in the order of the protocol's table.
    pub const ALL: [Self; 10] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::Bytes,
    ];

    /// The protocol's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "UINT8",
            Self::I8 => "INT8",
            Self::I32 => "INT32",
            Self::I64 => "INT64",
            Self::F16 => "FP16",
            Self::Bf16 => "BF16",
            Self::F32 => "FP32",
            Self::F64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// The type of that name.
    ///
    /// # Errors
    /// [`TensorError::UnknownDatatype`] when the protocol has no such name.
    pub fn from_name(name: &str) -> Result<Self, TensorError> {
        Self::ALL
            .into_iter()
            .find(|datatype| datatype.name() == name)
            .ok_or_else(|| TensorError::UnknownDatatype {
                datatype: name.to_owned(),
            })
    }

    /// Bytes per element; `None` for [`Datatype::Bytes`], whose elements carry their length.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::U8 | Self::I8 => Some(1),
            Self::F16 | Self::Bf16 => Some(2),
            Self::I32 | Self::F32 => Some(4),
            Self::I64 | Self::F64 => Some(8),
            Self::Bytes => None,
        }
    }
}

/// A named tensor: row-major, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the input or output it is.
    pub name: String,
    /// Extent of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// Element type.
    pub datatype: Datatype,
    /// The elements.
    pub data: Bytes,
}

/// Why bytes are not the tensor they claim to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TensorError {
    /// The protocol has no datatype of this name.
    #[error(
        "unknown datatype `{datatype}`; the Open Inference Protocol has BOOL, UINT8, INT8, INT32, INT64, FP16, BF16, FP32, FP64 and BYTES here"
    )]
    UnknownDatatype {
        /// The name received.
        datatype: String,
    },
    /// The shape and the number of bytes disagree.
    #[error("tensor `{name}` has {actual} bytes, but shape {shape:?} of {datatype} takes {expected}")]
    WrongLength {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its datatype's name.
        datatype: &'static str,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes received.
        actual: usize,
    },
    /// The product of the extents overflows.
    #[error("tensor `{name}` has shape {shape:?}, whose element count overflows")]
    Overflow {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// It is not of the type that was asked for.
    #[error("tensor `{name}` is {actual}, not {expected}")]
    WrongDatatype {
        /// Its name.
        name: String,
        /// The type asked for.
        expected: &'static str,
        /// Its type.
        actual: &'static str,
    },
    /// A float in it is NaN or infinite.
    #[error("tensor `{name}` holds {value} at element {index}; only finite numbers are served")]
    NotFinite {
        /// Its name.
        name: String,
        /// Position of the first offending element.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
}

impl Tensor {
    /// A one-copy tensor of f32 values.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] when `values` does not fill `shape`.
    pub fn from_f32(name: impl Into<String>, shape: &[usize], values: &[f32]) -> Result<Self, TensorError> {
        let data = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>();
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            datatype: Datatype::F32,
            data: data.into(),
        }
        .checked()
    }

    /// A one-copy tensor of i64 values.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] when `values` does not fill `shape`.
    pub fn from_i64(name: impl Into<String>, shape: &[usize], values: &[i64]) -> Result<Self, TensorError> {
        let data = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>();
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            datatype: Datatype::I64,
            data: data.into(),
        }
        .checked()
    }

    /// Number of elements.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] when the product of the extents overflows.
    pub fn elements(&self) -> Result<usize, TensorError> {
        self.shape
            .iter()
            .try_fold(1_usize, |product, extent| product.checked_mul(*extent))
            .ok_or_else(|| TensorError::Overflow {
                name: self.name.clone(),
                shape: self.shape.clone(),
            })
    }

    /// The tensor itself, if its bytes fill its shape.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] or [`TensorError::Overflow`].
    pub fn checked(self) -> Result<Self, TensorError> {
        let elements = self.elements()?;
        let Some(size) = self.datatype.size() else {
            return Ok(self);
        };
        let expected = elements.checked_mul(size).ok_or_else(|| TensorError::Overflow {
            name: self.name.clone(),
            shape: self.shape.clone(),
        })?;
        if expected == self.data.len() {
            return Ok(self);
        }
        Err(TensorError::WrongLength {
            name: self.name,
            shape: self.shape,
            datatype: self.datatype.name(),
            expected,
            actual: self.data.len(),
        })
    }

    /// The elements as f32; `FP32` only, nothing is converted silently.
    ///
    /// # Errors
    /// [`TensorError::WrongDatatype`] for any other type.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        self.expect_type(Datatype::F32)?;
        Ok(self
            .data
            .chunks_exact(4)
            .filter_map(|b| b.try_into().ok())
            .map(f32::from_le_bytes)
            .collect())
    }

    /// The elements as i64; `INT64` only, nothing is converted silently.
    ///
    /// # Errors
    /// [`TensorError::WrongDatatype`] for any other type.
    pub fn to_i64(&self) -> Result<Vec<i64>, TensorError> {
        self.expect_type(Datatype::I64)?;
        Ok(self
            .data
            .chunks_exact(8)
            .filter_map(|b| b.try_into().ok())
            .map(i64::from_le_bytes)
            .collect())
    }

    /// Nothing, if every element is a finite number (types that cannot hold anything else always pass).
    ///
    /// # Errors
    /// [`TensorError::NotFinite`] with the first NaN or infinity.
    pub fn check_finite(&self) -> Result<(), TensorError> {
        let offending = match self.datatype {
            Datatype::F32 => first_not_finite(self.data.chunks_exact(4), |b: [u8; 4]| {
                f64::from(f32::from_le_bytes(b))
            }),
            Datatype::F64 => first_not_finite(self.data.chunks_exact(8), f64::from_le_bytes),
            Datatype::F16 => first_not_finite(self.data.chunks_exact(2), |b| {
                half::f16::from_le_bytes(b).to_f64()
            }),
            Datatype::Bf16 => first_not_finite(self.data.chunks_exact(2), |b| {
                half::bf16::from_le_bytes(b).to_f64()
            }),
            _ => None,
        };
        match offending {
            None => Ok(()),
            Some((index, value)) => Err(TensorError::NotFinite {
                name: self.name.clone(),
                index,
                value: value.to_string(),
            }),
        }
    }

    fn expect_type(&self, expected: Datatype) -> Result<(), TensorError> {
        if self.datatype == expected {
            return Ok(());
        }
        Err(TensorError::WrongDatatype {
            name: self.name.clone(),
            expected: expected.name(),
            actual: self.datatype.name(),
        })
    }
}

/// Position and value of the first element that is NaN or infinite.
fn first_not_finite<'a, const N: usize>(
    elements: impl Iterator<Item = &'a [u8]>,
    read: impl Fn([u8; N]) -> f64,
) -> Option<(usize, f64)> {
    elements
        .filter_map(|bytes| <[u8; N]>::try_from(bytes).ok())
        .map(read)
        .enumerate()
        .find(|(_, value)| !value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_do_not_fill_the_shape_are_refused() {
        let error = Tensor::from_f32("x", &[2, 2], &[1.0, 2.0, 3.0]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor `x` has 12 bytes, but shape [2, 2] of FP32 takes 16"
        );
    }

    #[test]
    fn a_shape_whose_product_overflows_is_refused() {
        let tensor = Tensor {
            name: "x".into(),
            shape: vec![usize::MAX, 2],
            datatype: Datatype::U8,
            data: Bytes::new(),
        };
        assert!(matches!(tensor.checked(), Err(TensorError::Overflow { .. })));
    }

    #[test]
    fn the_first_not_finite_element_is_named() {
        let tensor = Tensor::from_f32("x", &[3], &[0.0, f32::NAN, f32::INFINITY]).unwrap();
        assert!(matches!(
            tensor.check_finite(),
            Err(TensorError::NotFinite { index: 1, .. })
        ));
    }

    #[test]
    fn every_datatype_is_found_by_its_name() {
        for datatype in Datatype::ALL {
            assert_eq!(Datatype::from_name(datatype.name()), Ok(datatype));
        }
        assert!(Datatype::from_name("FP8").is_err());
    }
}
