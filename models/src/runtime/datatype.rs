//! Element types of tensors.

use crate::runtime::tensor::TensorError;

/// Element type, by its Open Inference Protocol name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// `BOOL`, one byte, 0 or 1.
    Bool,
    /// `UINT8`.
    U8,
    /// `UINT16`.
    U16,
    /// `UINT32`.
    U32,
    /// `UINT64`.
    U64,
    /// `INT8`.
    I8,
    /// `INT16`.
    I16,
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
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::Bytes,
    ];

    /// Returns the name in the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "UINT8",
            Self::U16 => "UINT16",
            Self::U32 => "UINT32",
            Self::U64 => "UINT64",
            Self::I8 => "INT8",
            Self::I16 => "INT16",
            Self::I32 => "INT32",
            Self::I64 => "INT64",
            Self::F16 => "FP16",
            Self::Bf16 => "BF16",
            Self::F32 => "FP32",
            Self::F64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// Returns the type with a protocol name.
    ///
    /// # Errors
    /// [`TensorError::UnknownDatatype`] if the protocol has no such name.
    pub fn from_name(name: &str) -> Result<Self, TensorError> {
        Self::ALL
            .into_iter()
            .find(|datatype| datatype.name() == name)
            .ok_or_else(|| TensorError::UnknownDatatype {
                datatype: name.to_owned(),
            })
    }

    /// Bytes per element; `None` for [`Datatype::Bytes`], whose elements have individual lengths.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::U8 | Self::I8 => Some(1),
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Bytes => None,
        }
    }
}
