//! Tensors of the protocol's messages.
//!
//! A message has its tensors' bytes raw, in one list for all of them, or as typed contents of each tensor. Typed integers of
//! 8 and 16 bits travel in fields of 32 bits; FP16 and BF16 have raw contents only.

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor, TensorError};
use thiserror::Error;

use crate::proto::InferTensorContents;
use crate::proto::model_infer_request::InferInputTensor;
use crate::proto::model_infer_response::InferOutputTensor;

/// Why the tensors of a message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ContentsError {
    /// The message has raw contents, but not one per tensor.
    #[error(
        "the message has {tensors} tensors and {raw} raw contents; send one for each tensor, or typed `contents` alone"
    )]
    Count {
        /// Tensors of the message.
        tensors: usize,
        /// Raw contents of the message.
        raw: usize,
    },
    /// A tensor has both raw and typed contents.
    #[error("tensor `{name}` has both raw and typed contents; send one of them")]
    Both {
        /// Name of the tensor.
        name: String,
    },
    /// A dimension is negative or too large.
    #[error("the shape {shape:?} of tensor `{name}` has a dimension that is not a size")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        shape: Vec<i64>,
    },
    /// The datatype has no typed contents.
    #[error("tensor `{name}` is {datatype}, which has no typed contents; send raw contents")]
    RawOnly {
        /// Name of the tensor.
        name: String,
        /// Datatype of the tensor.
        datatype: &'static str,
    },
    /// A typed element does not fit its datatype.
    #[error("element {index} of tensor `{name}` does not fit {datatype}")]
    Range {
        /// Name of the tensor.
        name: String,
        /// Position of the element.
        index: usize,
        /// Datatype of the tensor.
        datatype: &'static str,
    },
    /// The bytes are no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// A tensor of a message.
struct Read {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    contents: Option<InferTensorContents>,
}

/// Returns the inputs of a request. Raw contents are not copied.
///
/// # Errors
/// [`ContentsError`].
pub fn inputs(tensors: Vec<InferInputTensor>, raw: Vec<Bytes>) -> Result<Vec<Tensor>, ContentsError> {
    let tensors = tensors.into_iter().map(|tensor| Read {
        name: tensor.name,
        datatype: tensor.datatype,
        shape: tensor.shape,
        contents: tensor.contents,
    });
    all(tensors, raw)
}

/// Returns the outputs of a response. Raw contents are not copied.
///
/// # Errors
/// [`ContentsError`].
pub fn outputs(tensors: Vec<InferOutputTensor>, raw: Vec<Bytes>) -> Result<Vec<Tensor>, ContentsError> {
    let tensors = tensors.into_iter().map(|tensor| Read {
        name: tensor.name,
        datatype: tensor.datatype,
        shape: tensor.shape,
        contents: tensor.contents,
    });
    all(tensors, raw)
}

fn all(tensors: impl ExactSizeIterator<Item = Read>, raw: Vec<Bytes>) -> Result<Vec<Tensor>, ContentsError> {
    let count = tensors.len();
    if raw.is_empty() {
        return tensors.map(|read| one(read, None)).collect();
    }
    if raw.len() != count {
        return Err(ContentsError::Count {
            tensors: count,
            raw: raw.len(),
        });
    }
    tensors.zip(raw).map(|(read, raw)| one(read, Some(raw))).collect()
}

fn one(read: Read, raw: Option<Bytes>) -> Result<Tensor, ContentsError> {
    let Read {
        name,
        datatype,
        shape,
        contents,
    } = read;
    let datatype = Datatype::from_name(&datatype)?;
    let sizes = shape
        .iter()
        .map(|size| usize::try_from(*size))
        .collect::<Result<Vec<_>, _>>();
    let Ok(sizes) = sizes else {
        return Err(ContentsError::Shape { name, shape });
    };
    let contents = contents.filter(|contents| *contents != InferTensorContents::default());
    let data = match (raw, contents) {
        (Some(_), Some(_)) => return Err(ContentsError::Both { name }),
        (Some(raw), None) => raw,
        (None, contents) => typed(&name, datatype, &contents.unwrap_or_default())?,
    };
    let tensor = Tensor {
        name,
        shape: sizes,
        datatype,
        data,
    };
    Ok(tensor.checked()?)
}

/// Returns the bytes of typed contents.
fn typed(name: &str, datatype: Datatype, contents: &InferTensorContents) -> Result<Bytes, ContentsError> {
    /// Elements as they are.
    macro_rules! plain {
        ($elements:expr) => {
            $elements
                .iter()
                .flat_map(|element| element.to_le_bytes())
                .collect()
        };
    }
    /// Elements of a wider field.
    macro_rules! narrow {
        ($elements:expr, $narrow:ty) => {{
            let mut bytes = Vec::with_capacity($elements.len() * size_of::<$narrow>());
            for (index, element) in $elements.iter().enumerate() {
                let element = <$narrow>::try_from(*element).map_err(|_| ContentsError::Range {
                    name: name.to_owned(),
                    index,
                    datatype: datatype.name(),
                })?;
                bytes.extend(element.to_le_bytes());
            }
            bytes
        }};
    }
    let bytes: Vec<u8> = match datatype {
        Datatype::Bool => contents
            .bool_contents
            .iter()
            .map(|element| u8::from(*element))
            .collect(),
        Datatype::U8 => narrow!(contents.uint_contents, u8),
        Datatype::U16 => narrow!(contents.uint_contents, u16),
        Datatype::U32 => plain!(contents.uint_contents),
        Datatype::U64 => plain!(contents.uint64_contents),
        Datatype::I8 => narrow!(contents.int_contents, i8),
        Datatype::I16 => narrow!(contents.int_contents, i16),
        Datatype::I32 => plain!(contents.int_contents),
        Datatype::I64 => plain!(contents.int64_contents),
        Datatype::F32 => plain!(contents.fp32_contents),
        Datatype::F64 => plain!(contents.fp64_contents),
        Datatype::F16 | Datatype::Bf16 => {
            return Err(ContentsError::RawOnly {
                name: name.to_owned(),
                datatype: datatype.name(),
            });
        }
        Datatype::Bytes => {
            let mut bytes = Vec::new();
            for (index, element) in contents.bytes_contents.iter().enumerate() {
                let length = u32::try_from(element.len()).map_err(|_| ContentsError::Range {
                    name: name.to_owned(),
                    index,
                    datatype: datatype.name(),
                })?;
                bytes.extend(length.to_le_bytes());
                bytes.extend_from_slice(element);
            }
            bytes
        }
    };
    Ok(bytes.into())
}

/// Returns the shape of a tensor as messages have it.
pub fn shape(tensor: &Tensor) -> Vec<i64> {
    let sizes = tensor.shape.iter();
    sizes
        .map(|size| i64::try_from(*size).unwrap_or(i64::MAX))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn input(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
        InferInputTensor {
            name: "x".to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.to_vec(),
            contents,
            ..InferInputTensor::default()
        }
    }

    fn read(tensor: InferInputTensor, raw: &[&[u8]]) -> Result<Tensor, ContentsError> {
        let raw = raw.iter().map(|raw| Bytes::copy_from_slice(raw)).collect();
        inputs(vec![tensor], raw).map(|mut tensors| tensors.remove(0))
    }

    #[test]
    fn typed_contents_of_every_datatype_are_its_raw_bytes() {
        let with = |set: fn(&mut InferTensorContents)| {
            let mut contents = InferTensorContents::default();
            set(&mut contents);
            contents
        };
        let cases: [(&str, InferTensorContents, Vec<u8>); 11] = [
            ("BOOL", with(|c| c.bool_contents = vec![true]), vec![1]),
            ("UINT8", with(|c| c.uint_contents = vec![255]), vec![255]),
            ("UINT16", with(|c| c.uint_contents = vec![258]), vec![2, 1]),
            ("UINT32", with(|c| c.uint_contents = vec![258]), vec![2, 1, 0, 0]),
            (
                "UINT64",
                with(|c| c.uint64_contents = vec![u64::MAX]),
                vec![255; 8],
            ),
            ("INT8", with(|c| c.int_contents = vec![-1]), vec![255]),
            ("INT16", with(|c| c.int_contents = vec![-2]), vec![254, 255]),
            ("INT32", with(|c| c.int_contents = vec![-1]), vec![255; 4]),
            ("INT64", with(|c| c.int64_contents = vec![-1]), vec![255; 8]),
            (
                "FP64",
                with(|c| c.fp64_contents = vec![1.5]),
                1.5_f64.to_le_bytes().to_vec(),
            ),
            (
                "BYTES",
                with(|c| c.bytes_contents = vec![Bytes::from_static(b"hi")]),
                vec![2, 0, 0, 0, b'h', b'i'],
            ),
        ];
        for (datatype, contents, bytes) in cases {
            let typed = read(input(datatype, &[1], Some(contents)), &[]).unwrap();
            assert_eq!(typed.data, bytes, "{datatype}");
            assert_eq!(read(input(datatype, &[1], None), &[&bytes]).unwrap(), typed);
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_tensor() {
        let ints = |elements: &[i32]| {
            Some(InferTensorContents {
                int_contents: elements.to_vec(),
                ..InferTensorContents::default()
            })
        };
        assert!(matches!(
            read(input("INT8", &[2], ints(&[1, 128])), &[]),
            Err(ContentsError::Range { index: 1, .. })
        ));
        assert!(matches!(
            read(input("FP16", &[1], None), &[]),
            Err(ContentsError::RawOnly { .. })
        ));
        assert!(matches!(
            read(input("INT32", &[-1], None), &[&[0; 4]]),
            Err(ContentsError::Shape { .. })
        ));
        assert!(matches!(
            read(input("INT32", &[1], ints(&[1])), &[&[0; 4]]),
            Err(ContentsError::Both { .. })
        ));
        assert!(matches!(
            read(input("INT32", &[1], None), &[&[0; 4], &[0; 4]]),
            Err(ContentsError::Count { tensors: 1, raw: 2 })
        ));
        assert!(matches!(
            read(input("INT32", &[2], ints(&[1])), &[]),
            Err(ContentsError::Tensor(TensorError::WrongLength { .. }))
        ));
        assert!(matches!(
            read(input("INT32", &[i64::MAX, i64::MAX], None), &[&[0; 4]]),
            Err(ContentsError::Tensor(TensorError::Overflow { .. }))
        ));
    }

    proptest! {
        /// Whatever arrives is a tensor whose bytes fill its shape, or an error.
        #[test]
        fn any_contents_are_a_whole_tensor_or_refused(
            datatype in prop::sample::select(Datatype::ALL.map(Datatype::name).to_vec()),
            shape in prop::collection::vec(-2_i64..5, 0..4),
            raw in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
            ints in prop::collection::vec(any::<i32>(), 0..6),
        ) {
            let contents = InferTensorContents { int_contents: ints, ..InferTensorContents::default() };
            let raw: Vec<&[u8]> = raw.iter().map(Vec::as_slice).collect();
            if let Ok(tensor) = read(input(datatype, &shape, Some(contents)), &raw) {
                prop_assert_eq!(tensor.clone().checked().unwrap(), tensor);
            }
        }
    }
}
