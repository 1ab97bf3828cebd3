//! Raw tensors of a quantised weight.

use half::{bf16, f16};
use safetensors::Dtype;

/// Why tensors do not hold the requested weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::checkpoint) enum Fault {
    /// The tensors hold a weight of this shape.
    Shape(Vec<usize>),
    /// Another reason.
    Reason(String),
}

/// A raw tensor.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct StoredTensor {
    pub(in crate::checkpoint) dtype: Dtype,
    pub(in crate::checkpoint) shape: Vec<usize>,
    pub(in crate::checkpoint) bytes: Vec<u8>,
}

/// The tensors of one weight by role, with their names; `None` if the file lacks one.
#[derive(Debug, Clone, Default)]
pub(in crate::checkpoint) struct Stored {
    pub(in crate::checkpoint) parts: Vec<(&'static str, String, Option<StoredTensor>)>,
}

/// A raw tensor with its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    name: &'a str,
    tensor: &'a StoredTensor,
}

impl Stored {
    /// Returns the tensor of a role; `None` if the file lacks it.
    pub(super) fn optional(&self, role: &str) -> Option<Named<'_>> {
        let (_, name, tensor) = self.parts.iter().find(|(part, ..)| *part == role)?;
        let tensor = tensor.as_ref()?;
        Some(Named { name, tensor })
    }

    /// Returns the tensor of a required role.
    pub(super) fn required(&self, role: &str) -> Result<Named<'_>, Fault> {
        self.optional(role).ok_or_else(|| {
            let named = self.parts.iter().find(|(part, ..)| *part == role);
            let name = named.map_or(role, |(_, name, _)| name.as_str());
            let there = self.parts.iter().find(|(.., tensor)| tensor.is_some());
            let there = there.map_or_else(String::new, |(_, there, _)| format!(" beside `{there}`"));
            Fault::Reason(format!("the tensor `{name}` is missing{there}"))
        })
    }
}

impl<'a> Named<'a> {
    pub(super) fn dtype(&self) -> Dtype {
        self.tensor.dtype
    }

    pub(super) fn shape(&self) -> &'a [usize] {
        &self.tensor.shape
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.tensor.bytes
    }

    /// Builds a fault that names this tensor.
    pub(super) fn fault(&self, reason: impl std::fmt::Display) -> Fault {
        let (dtype, shape) = (self.dtype(), self.shape());
        Fault::Reason(format!(
            "the tensor `{}` ({dtype}, {shape:?}) {reason}",
            self.name
        ))
    }

    /// Checks the shape of the tensor.
    pub(super) fn of_shape(self, shape: &[usize]) -> Result<Self, Fault> {
        if self.shape() == shape {
            Ok(self)
        } else {
            Err(self.fault(format_args!("should have the shape {shape:?}")))
        }
    }

    /// Checks the type of the tensor.
    pub(super) fn of_type(self, dtype: Dtype) -> Result<Self, Fault> {
        if self.dtype() == dtype {
            Ok(self)
        } else {
            Err(self.fault(format_args!("should be {dtype}")))
        }
    }

    /// Converts the tensor to f32, from any type of scales, codes and offsets.
    pub(super) fn numbers(&self) -> Result<Vec<f32>, Fault> {
        let bytes = self.bytes();
        Ok(match self.dtype() {
            Dtype::F32 => elements(bytes, f32::from_le_bytes),
            Dtype::F16 => elements(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => elements(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Dtype::I8 => elements(bytes, |[byte]| f32::from(byte.cast_signed())),
            Dtype::F8_E8M0 => elements(bytes, |[byte]| exponential(byte)),
            Dtype::F8_E4M3 => elements(bytes, |[byte]| e4m3(byte)),
            _ => return Err(self.fault("has a type that is not read here")),
        })
    }

    /// Reads the words of packed codes.
    pub(super) fn words(&self) -> Result<Vec<u32>, Fault> {
        match self.dtype() {
            Dtype::I32 | Dtype::U32 => Ok(elements(self.bytes(), u32::from_le_bytes)),
            _ => Err(self.fault("should be I32")),
        }
    }

    /// Reads integers, such as sizes or indices.
    pub(super) fn integers(&self) -> Result<Vec<i64>, Fault> {
        match self.dtype() {
            Dtype::I32 => Ok(elements(self.bytes(), |bytes| {
                i64::from(i32::from_le_bytes(bytes))
            })),
            Dtype::I64 => Ok(elements(self.bytes(), i64::from_le_bytes)),
            _ => Err(self.fault("should be I32 or I64")),
        }
    }

    /// Reads the group of each of `inputs` inputs and checks that it is below `groups`.
    pub(super) fn groups(&self, inputs: usize, groups: usize) -> Result<Vec<usize>, Fault> {
        let read = self.of_shape(&[inputs])?.integers()?.into_iter();
        let read = read.map(|group| usize::try_from(group).ok().filter(|group| *group < groups));
        let read = read.collect::<Option<Vec<usize>>>();
        read.ok_or_else(|| self.fault(format_args!("should name groups below {groups}")))
    }
}

/// Returns 2^(byte - 127): a scale of the OCP microscaling formats, in which 255 is NaN.
pub(super) fn exponential(byte: u8) -> f32 {
    match byte {
        // 2^-127 is subnormal.
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

fn elements<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().map(|element| read(*element)).collect()
}

/// Converts E4M3 without infinities (Micikevicius et al. 2022): one sign bit, four exponent bits, three mantissa bits.
pub(super) fn e4m3(byte: u8) -> f32 {
    /// 2^120, the difference of the exponent biases.
    const BIAS: f32 = f32::from_bits((120 + 127) << 23);
    let magnitude = match byte & 127 {
        127 => f32::NAN,
        bits => f32::from_bits(u32::from(bits) << 20) * BIAS,
    };
    if byte < 128 { magnitude } else { -magnitude }
}
