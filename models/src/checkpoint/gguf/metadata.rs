//! Metadata of a file: values by key.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::reader::Reader;
use crate::checkpoint::LoadError;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Texts(Vec<String>),
    /// An array of numbers, or of booleans as 0 and 1.
    Numbers(Vec<f64>),
}

/// Names of the value types, by their number in the format.
const TYPES: [&str; 13] = [
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
];
const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Value {
    /// Reads a value of a type. The error is the reason.
    pub(super) fn read(reader: &mut Reader<'_>, kind: u32) -> Result<Self, String> {
        match kind {
            STRING => reader.text().map(Self::Text),
            ARRAY => {
                let kind = reader.u32()?;
                let least = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    STRING | 10..=12 => 8,
                    ARRAY => return Err("arrays of arrays are not supported".into()),
                    _ => return Err(unknown_type(kind)),
                };
                let count = reader.count(least)?;
                if kind == STRING {
                    let texts = (0..count).map(|_| reader.text());
                    return texts.collect::<Result<_, _>>().map(Self::Texts);
                }
                let numbers = (0..count).map(|_| {
                    Ok(match Self::scalar(reader, kind)? {
                        Self::Bool(is) => f64::from(u8::from(is)),
                        Self::Integer(integer) => integer as f64,
                        Self::Float(float) => float,
                        _ => return Err(unknown_type(kind)),
                    })
                });
                numbers.collect::<Result<_, String>>().map(Self::Numbers)
            }
            _ => Self::scalar(reader, kind),
        }
    }

    fn scalar(reader: &mut Reader<'_>, kind: u32) -> Result<Self, String> {
        Ok(match kind {
            0 => Self::Integer(u8::from_le_bytes(reader.number()?).into()),
            1 => Self::Integer(i8::from_le_bytes(reader.number()?).into()),
            2 => Self::Integer(u16::from_le_bytes(reader.number()?).into()),
            3 => Self::Integer(i16::from_le_bytes(reader.number()?).into()),
            4 => Self::Integer(reader.u32()?.into()),
            5 => Self::Integer(i32::from_le_bytes(reader.number()?).into()),
            6 => Self::Float(f32::from_le_bytes(reader.number()?).into()),
            7 => match reader.number::<1>()? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                [other] => return Err(format!("{other} is not a boolean")),
            },
            10 => Self::Integer(reader.u64()?.into()),
            11 => Self::Integer(i64::from_le_bytes(reader.number()?).into()),
            12 => Self::Float(f64::from_le_bytes(reader.number()?)),
            _ => return Err(unknown_type(kind)),
        })
    }

    /// Formats the value for an error; arrays by their length.
    fn shown(&self) -> String {
        match self {
            Self::Bool(is) => is.to_string(),
            Self::Integer(integer) => integer.to_string(),
            Self::Float(float) => float.to_string(),
            Self::Text(text) => json!(text.chars().take(80).collect::<String>()).to_string(),
            Self::Texts(texts) => format!("an array of {} texts", texts.len()),
            Self::Numbers(numbers) => format!("an array of {} numbers", numbers.len()),
        }
    }

    /// Returns the number; for an array of equal numbers, that number.
    fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(integer) => Some(*integer as f64),
            Self::Float(float) => Some(*float),
            Self::Numbers(numbers) => {
                let first = *numbers.first()?;
                numbers
                    .iter()
                    .all(|number| number.total_cmp(&first).is_eq())
                    .then_some(first)
            }
            _ => None,
        }
    }
}

fn unknown_type(kind: u32) -> String {
    format!(
        "{kind} is not a type of values; the format has 0 to {} ({})",
        TYPES.len() - 1,
        TYPES.join(", ")
    )
}

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Metadata {
    /// Name of the file in errors.
    pub(super) file: String,
    /// `general.architecture`.
    pub(super) architecture: String,
    pub(super) values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Returns the name of an architecture-specific key, such as `llama.block_count`.
    pub(super) fn own(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Builds the error for a value that is not supported.
    pub(super) fn invalid(&self, key: &str, reason: impl Into<String>) -> LoadError {
        LoadError::BadKey {
            file: self.file.clone(),
            key: key.to_owned(),
            value: self
                .values
                .get(key)
                .map_or_else(|| "nothing".into(), Value::shown),
            reason: reason.into(),
        }
    }

    /// Builds the error for a missing key.
    pub(super) fn missing(&self, key: &str) -> LoadError {
        LoadError::MissingKey {
            file: self.file.clone(),
            key: key.to_owned(),
        }
    }

    /// Returns the string of a key; `None` if it is missing.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(key, "it must be a text")),
        }
    }

    /// Returns the strings of a key; empty if it is missing.
    pub(super) fn texts(&self, key: &str) -> Result<&[String], LoadError> {
        match self.values.get(key) {
            None => Ok(&[]),
            Some(Value::Texts(texts)) => Ok(texts),
            Some(Value::Numbers(numbers)) if numbers.is_empty() => Ok(&[]),
            Some(_) => Err(self.invalid(key, "it must be an array of texts")),
        }
    }

    /// Returns the numbers of a key; empty if it is missing.
    pub(super) fn numbers(&self, key: &str) -> Result<&[f64], LoadError> {
        match self.values.get(key) {
            None => Ok(&[]),
            Some(Value::Numbers(numbers)) => Ok(numbers),
            Some(_) => Err(self.invalid(key, "it must be an array of numbers")),
        }
    }

    /// Returns the boolean of a key; `None` if it is missing.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.invalid(key, "it must be true or false")),
        }
    }

    /// Returns the number of a key; `None` if it is missing. An array must have the same number for every layer.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        match value.number() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.invalid(key, "it must be a number, the same for every layer")),
        }
    }

    /// Returns the non-negative integer of a key; `None` if it is missing.
    pub(super) fn whole(&self, key: &str) -> Result<Option<u64>, LoadError> {
        match self.number(key)? {
            None => Ok(None),
            Some(number) if number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0 => {
                Ok(Some(number as u64))
            }
            Some(_) => Err(self.invalid(key, "it must be a whole number of 32 bits")),
        }
    }

    /// Returns the number of an architecture-specific key as JSON; `None` if it is missing.
    pub(super) fn own_number(&self, key: &str) -> Result<Option<Json>, LoadError> {
        Ok(self.number(&self.own(key))?.map(|number| json!(number)))
    }

    /// Returns the non-negative integer of an architecture-specific key; `None` if it is missing.
    pub(super) fn own_whole(&self, key: &str) -> Result<Option<u64>, LoadError> {
        self.whole(&self.own(key))
    }
}
