//! The header of a file: metadata and tensor infos.
//!
//! Layout, little-endian: `GGUF`, version (u32), number of tensors and of keys (u64 each), the keys (name, type,
//! value), the tensors (name, number of dimensions as u32, dimensions from the innermost as u64 each, type as u32,
//! data offset as u64); then the data, at the next multiple of the alignment. Data offsets are relative to that
//! position.

use std::collections::{BTreeMap, BTreeSet};

use super::metadata::{Metadata, Value};
use super::reader::Reader;
use super::types::TensorType;
use crate::checkpoint::LoadError;
use crate::checkpoint::weights::Source;

/// First bytes of every file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// Supported versions, which do not differ in the parts that are read.
const VERSIONS: [u32; 2] = [2, 3];
/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// Default alignment of the data, bytes.
const ALIGNMENT: u64 = 32;
/// Maximum alignment, bytes.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Key of the alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) kind: TensorType,
    /// Dimensions, the innermost last.
    pub(super) shape: Vec<usize>,
    /// Byte range of the data, relative to the start of the data section.
    pub(super) range: (usize, usize),
}

/// The header of a file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: BTreeMap<String, Tensor>,
    /// Start of the data section, bytes from the beginning of the file.
    pub(super) data_start: u64,
}

impl Header {
    /// Reads the header of a file of `length` bytes; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoadError::BadGguf`], or [`LoadError::GitLfsPointer`].
    pub(super) fn read(file: &str, source: &Source, length: u64) -> Result<Self, LoadError> {
        source.check_pointer(file, length)?;
        let mut reader = Reader::new(source, length);
        let read = parse(&mut reader, length);
        let (values, tensors, data_start) = read.map_err(|reason| LoadError::BadGguf {
            file: file.to_owned(),
            reason,
        })?;
        let architecture = match values.get("general.architecture") {
            Some(Value::Text(name)) => name.clone(),
            _ => String::new(),
        };
        Ok(Self {
            metadata: Metadata {
                file: file.to_owned(),
                architecture,
                values,
            },
            tensors,
            data_start,
        })
    }
}

type Parsed = (BTreeMap<String, Value>, BTreeMap<String, Tensor>, u64);

fn parse(reader: &mut Reader<'_>, length: u64) -> Result<Parsed, String> {
    if reader.number::<4>()? != MAGIC {
        return Err("it does not begin with `GGUF`".into());
    }
    let version = reader.u32()?;
    if VERSIONS.contains(&version.swap_bytes()) {
        return Err("its numbers are big-endian; little-endian files are read".into());
    }
    if !VERSIONS.contains(&version) {
        return Err(format!(
            "its version is {version}; 2 and 3 are read, which llama.cpp has written since August 2023"
        ));
    }
    // Minimum bytes of a tensor info: name, dimension, type and offset; of a key: name, type and value.
    let tensors = reader.count(8 + 4 + 8 + 4 + 8)?;
    let keys = reader.count(8 + 4 + 1)?;
    let mut values = BTreeMap::new();
    for _ in 0..keys {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = Value::read(reader, kind).map_err(|reason| format!("key `{key}`: {reason}"))?;
        if values.contains_key(&key) {
            return Err(format!("it has the key `{key}` twice"));
        }
        values.insert(key, value);
    }
    let alignment = alignment(&values)?;
    let mut infos = Vec::new();
    for _ in 0..tensors {
        infos.push(tensor(reader, alignment)?);
    }
    let data_start = reader
        .position()
        .checked_next_multiple_of(alignment)
        .ok_or("it is too long")?;
    let found = checked(infos, length.saturating_sub(data_start))?;
    Ok((values, found, data_start))
}

fn alignment(values: &BTreeMap<String, Value>) -> Result<u64, String> {
    match values.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(Value::Integer(stated)) => u64::try_from(*stated)
            .ok()
            .filter(|stated| stated.is_power_of_two() && *stated <= MAX_ALIGNMENT)
            .ok_or_else(|| {
                format!("{ALIGNMENT_KEY} is {stated}; it must be a power of two up to {MAX_ALIGNMENT}")
            }),
        Some(_) => Err(format!("{ALIGNMENT_KEY} is not a whole number")),
    }
}

/// Reads the info of a tensor.
fn tensor(reader: &mut Reader<'_>, alignment: u64) -> Result<(String, Tensor), String> {
    let name = reader.text()?;
    let bad = |reason: String| format!("tensor `{name}` {reason}");
    let dimensions = reader.u32()?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(bad(format!(
            "has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible"
        )));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let size = reader.u64()?;
        let size = usize::try_from(size).ok().filter(|size| *size > 0);
        shape.push(size.ok_or_else(|| bad("has a dimension that is 0 or too large".into()))?);
    }
    shape.reverse();
    let kind = TensorType::of(reader.u32()?).map_err(bad)?;
    let offset = reader.u64()?;
    let width = shape.last().copied().unwrap_or_default();
    let row = kind.row_bytes(width).ok_or_else(|| {
        bad(format!(
            "has rows of {width} weights, which blocks of {} do not divide or which are too long",
            kind.name()
        ))
    })?;
    let mut outer = shape.iter().rev().skip(1);
    let bytes = outer.try_fold(row, |all, size| all.checked_mul(*size));
    // Counts weights as f32 in memory.
    let elements = shape.iter().try_fold(4_usize, |all, size| all.checked_mul(*size));
    let range = usize::try_from(offset)
        .ok()
        .zip(bytes)
        .filter(|_| elements.is_some() && offset.is_multiple_of(alignment))
        .and_then(|(from, bytes)| Some((from, from.checked_add(bytes)?)));
    let range = range.ok_or_else(|| {
        bad(format!(
            "has the shape {shape:?} and its data at {offset}, which is too large or not a multiple of {alignment}"
        ))
    })?;
    Ok((name, Tensor { kind, shape, range }))
}

/// Checks that names are unique and that the data ranges are inside the file and do not overlap.
fn checked(infos: Vec<(String, Tensor)>, length: u64) -> Result<BTreeMap<String, Tensor>, String> {
    let mut places: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut tensors = BTreeMap::new();
    for (name, tensor) in infos {
        let (from, to) = tensor.range;
        if to as u64 > length {
            return Err(format!(
                "the data of tensor `{name}` ends at byte {to} of the data, of which the file has {length}; it is cut off"
            ));
        }
        let before = places.range(..(to, 0)).next_back();
        if before.is_some_and(|(_, end)| *end > from) {
            return Err(format!(
                "the data of tensor `{name}` overlaps that of another one"
            ));
        }
        places.insert((from, to));
        if tensors.contains_key(&name) {
            return Err(format!("it has the tensor `{name}` twice"));
        }
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}
