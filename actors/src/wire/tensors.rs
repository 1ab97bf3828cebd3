//! Tensors in messages: maps of `name`, `shape`, `datatype` and `data`, as in the Open Inference Protocol v2.
//!
//! `data` is bytes. Peers may also send an array of numbers, booleans or texts, flat or nested: the protocol's JSON
//! form, convenient for languages without typed arrays.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use kaskade_models::{Datatype, Tensor};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{self, Serialize, SerializeSeq, Serializer};

use super::codec::share;
use super::lists::at_most;

/// Largest number of tensors in one message.
pub const MAX_TENSORS: usize = 64;

/// Largest number of dimensions of a tensor.
pub const MAX_RANK: usize = 16;

/// Returns the approximate MessagePack size of the tensors, bytes, rounded up.
pub(super) fn size_hint(tensors: &[Tensor]) -> usize {
    tensors
        .iter()
        .map(|tensor| tensor.data.len() + tensor.name.len() + 9 * tensor.shape.len() + 48)
        .sum()
}

pub(super) fn serialize<S: Serializer>(tensors: &[Tensor], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tensors.iter().map(|tensor| Written {
        name: &tensor.name,
        shape: &tensor.shape,
        datatype: tensor.datatype.name(),
        data: WrittenData(tensor),
    }))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Tensor>, D::Error> {
    let received: Vec<Received<'de>> = at_most::<_, _, MAX_TENSORS>(deserializer)?;
    received
        .into_iter()
        .map(|tensor| tensor.check().map_err(de::Error::custom))
        .collect()
}

/// Deserializes an optional list; missing and nil are `None`.
pub(super) fn deserialize_optional<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Tensor>>, D::Error> {
    struct List(Vec<Tensor>);
    impl<'de> Deserialize<'de> for List {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserialize(deserializer).map(Self)
        }
    }
    Ok(Option::<List>::deserialize(deserializer)?.map(|list| list.0))
}

#[derive(serde::Serialize)]
struct Written<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    data: WrittenData<'a>,
}

/// Serializes the elements of a tensor: as bytes in MessagePack, as an array in JSON. FP16, BF16, BYTES that are not
/// text, NaN and infinities have no JSON form, which is an error of the serializer.
pub struct WrittenData<'a>(pub &'a Tensor);

impl Serialize for WrittenData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tensor = self.0;
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&tensor.data);
        }
        let data = &tensor.data;
        match tensor.datatype {
            Datatype::Bool => serializer.collect_seq(data.iter().map(|byte| *byte != 0)),
            Datatype::U8 => serializer.collect_seq(data.iter()),
            Datatype::U16 => serializer.collect_seq(elements(data, u16::from_le_bytes)),
            Datatype::U32 => serializer.collect_seq(elements(data, u32::from_le_bytes)),
            Datatype::U64 => serializer.collect_seq(elements(data, u64::from_le_bytes)),
            Datatype::I8 => serializer.collect_seq(elements(data, i8::from_le_bytes)),
            Datatype::I16 => serializer.collect_seq(elements(data, i16::from_le_bytes)),
            Datatype::I32 => serializer.collect_seq(elements(data, i32::from_le_bytes)),
            Datatype::I64 => serializer.collect_seq(elements(data, i64::from_le_bytes)),
            Datatype::F32 => floats(
                tensor,
                elements(data, f32::from_le_bytes),
                f32::is_finite,
                serializer,
            ),
            Datatype::F64 => floats(
                tensor,
                elements(data, f64::from_le_bytes),
                f64::is_finite,
                serializer,
            ),
            Datatype::F16 | Datatype::Bf16 => Err(ser::Error::custom(format!(
                "tensor `{}` is {}, which has no JSON form; ask for MessagePack",
                tensor.name,
                tensor.datatype.name()
            ))),
            Datatype::Bytes => texts(tensor, serializer),
        }
    }
}

fn elements<const N: usize, T>(data: &[u8], read: impl Fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    data.chunks_exact(N)
        .filter_map(|bytes| bytes.try_into().ok())
        .map(read)
}

fn floats<S: Serializer, T: Copy + Serialize + fmt::Display>(
    tensor: &Tensor,
    values: impl Iterator<Item = T>,
    is_finite: impl Fn(T) -> bool,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(None)?;
    for value in values {
        // serde_json would write null, which a reader could not tell from a missing value.
        if !is_finite(value) {
            return Err(ser::Error::custom(format!(
                "tensor `{}` holds {value}, which has no JSON form",
                tensor.name
            )));
        }
        list.serialize_element(&value)?;
    }
    list.end()
}

fn texts<S: Serializer>(tensor: &Tensor, serializer: S) -> Result<S::Ok, S::Error> {
    match tensor.to_texts() {
        Ok(texts) => serializer.collect_seq(texts),
        Err(error) => Err(ser::Error::custom(format!(
            "{error}, which has no JSON form; ask for MessagePack"
        ))),
    }
}

#[derive(serde::Deserialize)]
struct Received<'a> {
    name: String,
    #[serde(deserialize_with = "at_most::<_, _, MAX_RANK>")]
    shape: Vec<u64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    data: Data,
}

impl Received<'_> {
    fn check(self) -> Result<Tensor, String> {
        let datatype = Datatype::from_name(&self.datatype).map_err(|error| error.to_string())?;
        let shape = self
            .shape
            .iter()
            .map(|extent| usize::try_from(*extent))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| {
                format!(
                    "tensor `{}` has shape {:?}, too large to address",
                    self.name, self.shape
                )
            })?;
        let data = self
            .data
            .into_bytes(datatype)
            .map_err(|reason| format!("tensor `{}`: {reason}", self.name))?;
        let tensor = Tensor {
            name: self.name,
            shape,
            datatype,
            data,
        };
        tensor.checked().map_err(|error| error.to_string())
    }
}

/// Tensor data as received: bytes, or an array of numbers, booleans or texts, flat or nested.
#[derive(Debug)]
pub enum Data {
    /// Raw bytes of the tensor.
    Raw(Bytes),
    /// Booleans, one byte each.
    Booleans(Vec<u8>),
    /// Integers.
    Integers(Vec<i64>),
    /// Non-negative integers, some above `i64::MAX`.
    Unsigned(Vec<u64>),
    /// Floats, or floats and integers.
    Floats(Vec<f64>),
    /// Texts in the `BYTES` encoding: each element preceded by its length.
    Texts(Vec<u8>),
    /// An array without elements, which fits every type.
    Empty,
}

impl Data {
    /// Returns the bytes of a tensor with the element type `datatype`.
    ///
    /// # Errors
    /// The reason, as text for users, if the elements do not have or fit that type.
    pub fn into_bytes(self, datatype: Datatype) -> Result<Bytes, String> {
        let mismatch = |held: &str| {
            Err(format!(
                "its data is an array of {held}, not {}{}",
                datatype.name(),
                match datatype {
                    Datatype::F16 | Datatype::Bf16 => "; send it as bytes",
                    _ => "",
                }
            ))
        };
        match self {
            Self::Raw(bytes) => Ok(bytes),
            Self::Empty => Ok(Bytes::new()),
            Self::Booleans(values) if datatype == Datatype::Bool => Ok(values.into()),
            Self::Booleans(_) => mismatch("booleans"),
            Self::Texts(bytes) if datatype == Datatype::Bytes => Ok(bytes.into()),
            Self::Texts(_) => mismatch("texts"),
            Self::Integers(values) => match datatype {
                Datatype::U8 => narrow(&values, u8::to_le_bytes, datatype),
                Datatype::U16 => narrow(&values, u16::to_le_bytes, datatype),
                Datatype::U32 => narrow(&values, u32::to_le_bytes, datatype),
                Datatype::U64 => narrow(&values, u64::to_le_bytes, datatype),
                Datatype::I8 => narrow(&values, i8::to_le_bytes, datatype),
                Datatype::I16 => narrow(&values, i16::to_le_bytes, datatype),
                Datatype::I32 => narrow(&values, i32::to_le_bytes, datatype),
                Datatype::I64 => narrow(&values, i64::to_le_bytes, datatype),
                Datatype::F32 => Ok(values
                    .iter()
                    .flat_map(|value| (*value as f32).to_le_bytes())
                    .collect()),
                Datatype::F64 => Ok(values
                    .iter()
                    .flat_map(|value| (*value as f64).to_le_bytes())
                    .collect()),
                _ => mismatch("integers"),
            },
            Self::Unsigned(values) => match datatype {
                Datatype::U64 => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
                Datatype::F32 => Ok(values
                    .iter()
                    .flat_map(|value| (*value as f32).to_le_bytes())
                    .collect()),
                Datatype::F64 => Ok(values
                    .iter()
                    .flat_map(|value| (*value as f64).to_le_bytes())
                    .collect()),
                _ => mismatch("integers above the largest INT64"),
            },
            Self::Floats(values) => match datatype {
                Datatype::F32 => Ok(values
                    .iter()
                    .flat_map(|value| (*value as f32).to_le_bytes())
                    .collect()),
                Datatype::F64 => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
                _ => mismatch("floats"),
            },
        }
    }
}

fn narrow<const N: usize, T: TryFrom<i64>>(
    values: &[i64],
    write: impl Fn(T) -> [u8; N],
    datatype: Datatype,
) -> Result<Bytes, String> {
    let mut bytes = Vec::with_capacity(values.len() * N);
    for value in values {
        let narrowed =
            T::try_from(*value).map_err(|_| format!("{value} does not fit {}", datatype.name()))?;
        bytes.extend_from_slice(&write(narrowed));
    }
    Ok(bytes.into())
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor data: bytes, or an array of numbers, booleans or texts")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Data, E> {
        Ok(Data::Raw(share(bytes)))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Data, E> {
        Ok(Data::Raw(Bytes::copy_from_slice(bytes)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Data, A::Error> {
        let mut data = Data::Empty;
        while list.next_element_seed(Append(&mut data))?.is_some() {}
        Ok(data)
    }
}

/// Appends an element, or a nested array of elements, to the data.
struct Append<'a>(&'a mut Data);

impl<'de> de::DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Append<'_> {
    fn mixed<E: de::Error>(&self, with: &str) -> E {
        let held = match self.0 {
            Data::Booleans(_) => "booleans",
            Data::Integers(_) | Data::Unsigned(_) | Data::Floats(_) => "numbers",
            Data::Texts(_) => "texts",
            Data::Raw(_) | Data::Empty => "nothing",
        };
        E::custom(format!("tensor data mixes {held} with {with}"))
    }
}

impl<'de> Visitor<'de> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a boolean, a text, or an array of them")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        match self.0 {
            Data::Booleans(values) => values.push(value.into()),
            Data::Empty => *self.0 = Data::Booleans(vec![value.into()]),
            _ => return Err(self.mixed("a boolean")),
        }
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        match self.0 {
            Data::Integers(values) => values.push(value),
            Data::Unsigned(values) => match u64::try_from(value) {
                Ok(value) => values.push(value),
                Err(_) => {
                    return Err(E::custom(
                        "tensor data mixes negative integers with some above the largest INT64",
                    ));
                }
            },
            Data::Floats(values) => values.push(value as f64),
            Data::Empty => *self.0 = Data::Integers(vec![value]),
            _ => return Err(self.mixed("a number")),
        }
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        if let Ok(value) = i64::try_from(value) {
            return self.visit_i64(value);
        }
        match self.0 {
            Data::Unsigned(values) => values.push(value),
            Data::Integers(values) => {
                let unsigned = values
                    .iter()
                    .map(|value| u64::try_from(*value))
                    .collect::<Result<Vec<_>, _>>();
                let mut unsigned = unsigned.map_err(|_| {
                    E::custom("tensor data mixes negative integers with some above the largest INT64")
                })?;
                unsigned.push(value);
                *self.0 = Data::Unsigned(unsigned);
            }
            Data::Floats(values) => values.push(value as f64),
            Data::Empty => *self.0 = Data::Unsigned(vec![value]),
            _ => return Err(self.mixed("a number")),
        }
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        match self.0 {
            Data::Floats(values) => values.push(value),
            Data::Integers(values) => {
                let mut floats = values.iter().map(|value| *value as f64).collect::<Vec<_>>();
                floats.push(value);
                *self.0 = Data::Floats(floats);
            }
            Data::Unsigned(values) => {
                let mut floats = values.iter().map(|value| *value as f64).collect::<Vec<_>>();
                floats.push(value);
                *self.0 = Data::Floats(floats);
            }
            Data::Empty => *self.0 = Data::Floats(vec![value]),
            _ => return Err(self.mixed("a number")),
        }
        Ok(())
    }

    fn visit_f32<E: de::Error>(self, value: f32) -> Result<(), E> {
        self.visit_f64(value.into())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<(), E> {
        if matches!(self.0, Data::Empty) {
            *self.0 = Data::Texts(Vec::new());
        }
        let Data::Texts(elements) = self.0 else {
            return Err(self.mixed("a text"));
        };
        let length = u32::try_from(bytes.len()).map_err(E::custom)?;
        elements.extend_from_slice(&length.to_le_bytes());
        elements.extend_from_slice(bytes);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Append(self.0))?.is_some() {}
        Ok(())
    }
}
