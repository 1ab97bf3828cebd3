//! Tensors in the format of the Open Inference Protocol v2 (`name`, `shape`, `datatype`, raw little-endian data).
//!
//! The data is a [`Bytes`], so that tensors are passed between actors and sliced from received messages without a copy.

use bytes::Bytes;
use thiserror::Error;

pub(crate) use crate::runtime::datatype::Datatype;

/// A named tensor, row-major, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the input or output.
    pub name: String,
    /// Size of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// Element type.
    pub datatype: Datatype,
    /// Raw elements.
    pub data: Bytes,
}

/// Why bytes are not a valid tensor.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The protocol has no datatype of this name.
    #[error(
        "unknown datatype `{datatype}`; the Open Inference Protocol has BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64 and BYTES"
    )]
    UnknownDatatype {
        /// The name received.
        datatype: String,
    },
    /// The shape and the number of bytes disagree.
    #[error("tensor `{name}` has {actual} bytes, but shape {shape:?} of {datatype} takes {expected}")]
    WrongLength {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Name of the tensor's datatype.
        datatype: &'static str,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes received.
        actual: usize,
    },
    /// The product of the dimensions overflows.
    #[error("tensor `{name}` has shape {shape:?}, whose element count overflows")]
    Overflow {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// The tensor has another type than the requested one.
    #[error("tensor `{name}` is {actual}, not {expected}")]
    WrongDatatype {
        /// Name of the tensor.
        name: String,
        /// The requested type.
        expected: &'static str,
        /// Type of the tensor.
        actual: &'static str,
    },
    /// The element lengths of a `BYTES` tensor do not add up to its bytes.
    #[error(
        "tensor `{name}` is BYTES of shape {shape:?}, but its elements' lengths do not add up to its {actual} bytes"
    )]
    WrongElements {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Bytes received.
        actual: usize,
    },
    /// A `BYTES` element requested as text is not UTF-8.
    #[error("tensor `{name}` is not UTF-8 text at element {index}")]
    NotText {
        /// Name of the tensor.
        name: String,
        /// Position of the first invalid element.
        index: usize,
    },
    /// The tensor contains NaN or infinity.
    #[error("tensor `{name}` holds {value} at element {index}; only finite numbers are served")]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// Position of the first invalid element.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
}

impl Tensor {
    /// Builds a tensor of f32 values with one copy.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] if `values` does not fill `shape`.
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

    /// Builds a tensor of i64 values with one copy.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`] if `values` does not fill `shape`.
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

    /// Builds a `BYTES` tensor of texts with one copy, of shape `[texts.len()]`.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] if a text exceeds the protocol's 32-bit length.
    pub fn from_texts(name: impl Into<String>, texts: &[&str]) -> Result<Self, TensorError> {
        Self::from_byte_strings(
            name,
            &texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>(),
        )
    }

    /// Builds a `BYTES` tensor of byte strings with one copy, of shape `[strings.len()]`.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] if a string exceeds the protocol's 32-bit length.
    pub fn from_byte_strings(name: impl Into<String>, strings: &[&[u8]]) -> Result<Self, TensorError> {
        let (name, shape) = (name.into(), vec![strings.len()]);
        let mut data = Vec::with_capacity(strings.iter().map(|string| string.len() + 4).sum());
        for string in strings {
            let Ok(length) = u32::try_from(string.len()) else {
                return Err(TensorError::Overflow { name, shape });
            };
            data.extend(length.to_le_bytes());
            data.extend_from_slice(string);
        }
        Ok(Self {
            name,
            shape,
            datatype: Datatype::Bytes,
            data: data.into(),
        })
    }

    /// Returns the number of elements.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] if the product of the dimensions overflows.
    pub fn elements(&self) -> Result<usize, TensorError> {
        self.shape
            .iter()
            .try_fold(1_usize, |product, extent| product.checked_mul(*extent))
            .ok_or_else(|| TensorError::Overflow {
                name: self.name.clone(),
                shape: self.shape.clone(),
            })
    }

    /// Returns the tensor if its data matches its shape.
    ///
    /// # Errors
    /// [`TensorError::WrongLength`], [`TensorError::WrongElements`] or [`TensorError::Overflow`].
    pub fn checked(self) -> Result<Self, TensorError> {
        let elements = self.elements()?;
        let Some(size) = self.datatype.size() else {
            return self.elements_of_bytes().map(|_| ()).map(|()| self);
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

    /// Returns the elements as f32; `FP32` only, without conversion.
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

    /// Returns the elements as i64; `INT64` only, without conversion.
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

    /// Returns the elements as texts; `BYTES` only.
    ///
    /// # Errors
    /// [`TensorError::WrongDatatype`], [`TensorError::WrongElements`] or [`TensorError::NotText`].
    pub fn to_texts(&self) -> Result<Vec<&str>, TensorError> {
        self.to_byte_strings()?
            .into_iter()
            .enumerate()
            .map(|(index, bytes)| {
                std::str::from_utf8(bytes).map_err(|_| TensorError::NotText {
                    name: self.name.clone(),
                    index,
                })
            })
            .collect()
    }

    /// Returns the elements as they are; `BYTES` only.
    ///
    /// # Errors
    /// [`TensorError::WrongDatatype`] or [`TensorError::WrongElements`].
    pub fn to_byte_strings(&self) -> Result<Vec<&[u8]>, TensorError> {
        self.expect_type(Datatype::Bytes)?;
        self.elements_of_bytes()
    }

    /// Checks that every element is finite; types without NaN and infinity always pass.
    ///
    /// # Errors
    /// [`TensorError::NotFinite`] with the first NaN or infinity.
    pub(crate) fn check_finite(&self) -> Result<(), TensorError> {
        let offending = match self.datatype {
            Datatype::F32 => first_not_finite(
                &self.data,
                |b| f32::from_le_bytes(b).is_finite(),
                |b| f64::from(f32::from_le_bytes(b)),
            ),
            Datatype::F64 => first_not_finite(
                &self.data,
                |b| f64::from_le_bytes(b).is_finite(),
                f64::from_le_bytes,
            ),
            Datatype::F16 => first_not_finite(
                &self.data,
                |b| half::f16::from_le_bytes(b).is_finite(),
                |b| half::f16::from_le_bytes(b).to_f64(),
            ),
            Datatype::Bf16 => first_not_finite(
                &self.data,
                |b| half::bf16::from_le_bytes(b).is_finite(),
                |b| half::bf16::from_le_bytes(b).to_f64(),
            ),
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

    /// Returns the elements of a `BYTES` tensor and checks that their number matches the shape.
    fn elements_of_bytes(&self) -> Result<Vec<&[u8]>, TensorError> {
        let expected = self.elements()?;
        let mut rest = self.data.as_ref();
        let mut elements = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk() {
            let Some((element, after)) = after.split_at_checked(u32::from_le_bytes(*length) as usize) else {
                break;
            };
            elements.push(element);
            rest = after;
        }
        if rest.is_empty() && elements.len() == expected {
            return Ok(elements);
        }
        Err(TensorError::WrongElements {
            name: self.name.clone(),
            shape: self.shape.clone(),
            actual: self.data.len(),
        })
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

/// Returns index and value of the first element that is NaN or infinite.
fn first_not_finite<const N: usize>(
    data: &[u8],
    is_finite: impl Fn([u8; N]) -> bool,
    read: impl Fn([u8; N]) -> f64,
) -> Option<(usize, f64)> {
    /// Number of elements that are checked together.
    const BLOCK: usize = 1024;
    let (elements, _) = data.as_chunks::<N>();
    let sound = |block: &[[u8; N]]| {
        block
            .iter()
            .fold(true, |sound, element| sound & is_finite(*element))
    };
    let block = elements.chunks(BLOCK).position(|block| !sound(block))?;
    let from = block * BLOCK;
    let mut rest = elements.iter().enumerate().skip(from);
    let (index, element) = rest.find(|(_, element)| !is_finite(**element))?;
    Some((index, read(*element)))
}

#[cfg(test)]
mod tests;
