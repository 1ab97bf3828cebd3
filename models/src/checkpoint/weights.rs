//! `model.safetensors`: strict access to weights.
//!
//! A model with wrong or partially used weights still answers, but wrongly. An architecture therefore takes every
//! tensor by name and shape, and unused tensors are an error.
//!
//! This module uses the header types of the `safetensors` crate and reads tensor by tensor: errors have the names and
//! shapes of the file, three projections become one matrix, and at most one tensor is held in addition to the model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use bytes::Bytes;
use pulp::bytemuck::cast_slice_mut;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::LoadError;
use super::quantisation::{Layout, Quantisation};
use crate::precision::{WeightType, decode};

/// The format's limit for its JSON header.
const MAX_HEADER: u64 = 100_000_000;
/// Size of the little-endian header length at the beginning of the file, bytes.
const PREFIX: u64 = 8;

/// Buffers that old versions of transformers saved with the weights, by name suffix. No model needs them: they hold 0,
/// 1, 2, ... or a count of training steps.
pub(crate) const IGNORED_BUFFERS: [&str; 3] = ["position_ids", "token_type_ids", "num_batches_tracked"];

/// The tensors of a checkpoint; each can be taken once.
#[derive(Debug)]
pub struct Weights {
    /// Name in errors: the single file, or the index of several.
    file: String,
    shards: Vec<Shard>,
    /// Tensors not taken yet, with the index of their shard.
    remaining: BTreeMap<String, (usize, TensorInfo)>,
    taken: WeightTotals,
    /// Type that linear layers and embeddings get; `None`: as stored.
    requested: Option<WeightType>,
    /// Type of all matrices in the file; f32 if they differ.
    stored: WeightType,
    /// How matrices are quantised, if they are.
    quantised: Option<Quantisation>,
    /// Prefix of the base model's tensors, which names in the file may lack.
    base: String,
}

/// One file.
#[derive(Debug)]
struct Shard {
    file: String,
    source: Source,
    /// Offset of the tensor data, bytes from the beginning of the file.
    data_start: u64,
}

/// Totals of the taken weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightTotals {
    /// Number of weights.
    pub parameters: u64,
    /// Memory of the weights, bytes.
    pub bytes: u64,
}

/// A tensor as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawTensor {
    pub(crate) name: String,
    /// Its type, as in the header.
    pub(crate) dtype: String,
    /// Whether it is read as weights without quantisation.
    pub(crate) is_float: bool,
    pub(crate) shape: Vec<usize>,
    /// Its size in the file, bytes.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
enum Source {
    File(File),
    Memory(Bytes),
}

impl Weights {
    /// Reads the header of an open file; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] if the header is malformed, or does not describe exactly the bytes that follow it.
    pub fn from_file(file: impl Into<String>, handle: File) -> Result<Self, LoadError> {
        let file = file.into();
        let length = handle
            .metadata()
            .map_err(|error| bad_weights(&file, error.to_string()))?
            .len();
        Self::open(file, Source::File(handle), length)
    }

    /// Reads the header of a file in memory; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] if the header is malformed, or does not describe exactly the bytes that follow it.
    pub fn from_bytes(file: impl Into<String>, bytes: Bytes) -> Result<Self, LoadError> {
        let length = bytes.len() as u64;
        Self::open(file.into(), Source::Memory(bytes), length)
    }

    fn open(file: String, mut source: Source, length: u64) -> Result<Self, LoadError> {
        let mut read = |offset, bytes| {
            source
                .read(offset, bytes)
                .map_err(|reason| bad_weights(&file, format!("its header cannot be read: {reason}")))
        };
        let prefix = read(0, PREFIX)?;
        let header = prefix.as_slice().try_into().map_or(0, u64::from_le_bytes);
        // Checked before the header is read, so that a forged length allocates nothing.
        if header > MAX_HEADER || header > length.saturating_sub(PREFIX) {
            return Err(bad_weights(
                &file,
                format!(
                    "its header length of {header} bytes exceeds the limit or the file of {length} bytes"
                ),
            ));
        }
        let metadata = serde_json::from_slice::<Metadata>(&read(PREFIX, header)?)
            .map_err(|error| bad_weights(&file, format!("its header is malformed: {error}")))?;
        let data_start = PREFIX + header;
        let (described, there) = (metadata.data_len() as u64, length - data_start);
        if described != there {
            return Err(bad_weights(
                &file,
                format!("its header describes {described} bytes of tensors and {there} follow"),
            ));
        }
        let remaining: BTreeMap<String, (usize, TensorInfo)> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, (0, info.clone())))
            .collect();
        Ok(Self {
            requested: None,
            stored: stored_type(remaining.values().map(|(_, info)| info)),
            quantised: None,
            base: String::new(),
            file: file.clone(),
            shards: vec![Shard {
                file,
                source,
                data_start,
            }],
            remaining,
            taken: WeightTotals::default(),
        })
    }

    /// Combines the shards of a checkpoint; `index` is the name of the whole in errors, and `shard_of_tensor` the
    /// position of every tensor's file.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] if a tensor is in another file than the index states, or in two.
    pub(crate) fn from_shards(
        index: impl Into<String>,
        files: Vec<Self>,
        shard_of_tensor: &BTreeMap<String, usize>,
    ) -> Result<Self, LoadError> {
        let mut whole = Self {
            file: index.into(),
            shards: Vec::new(),
            remaining: BTreeMap::new(),
            taken: WeightTotals::default(),
            requested: None,
            stored: WeightType::F32,
            quantised: None,
            base: String::new(),
        };
        for (place, file) in files.into_iter().enumerate() {
            let first = whole.shards.len();
            for (name, (shard, info)) in file.remaining {
                if shard_of_tensor.get(&name) != Some(&place) {
                    let reason = format!(
                        "it contains the tensor `{name}`, which `{}` does not list for it",
                        whole.file
                    );
                    return Err(bad_weights(&file.file, reason));
                }
                whole.remaining.insert(name, (first + shard, info));
            }
            whole.shards.extend(file.shards);
        }
        match shard_of_tensor
            .keys()
            .find(|name| !whole.remaining.contains_key(*name))
        {
            None => {
                whole.stored = stored_type(whole.remaining.values().map(|(_, info)| info));
                Ok(whole)
            }
            Some(name) => Err(bad_weights(
                &whole.file,
                format!("it lists the tensor `{name}`, which none of its files contains"),
            )),
        }
    }

    /// Type that linear layers and embeddings get: the requested one, else that of the file.
    pub fn weight_type(&self) -> WeightType {
        let quantised = self.quantised.as_ref().map(|quantised| quantised.kind);
        self.requested.or(quantised).unwrap_or(self.stored)
    }

    /// The requested type of linear layers and embeddings, if there is one.
    pub(crate) fn requested_type(&self) -> Option<WeightType> {
        self.requested
    }

    /// Requests a type for linear layers and embeddings; `None` keeps that of the file.
    pub fn request(&mut self, kind: Option<WeightType>) {
        self.requested = kind;
    }

    /// States how the matrices in the file are quantised.
    pub(crate) fn quantised_as(&mut self, quantisation: Option<Quantisation>) {
        self.quantised = quantisation;
    }

    /// Corrects the total of bytes after `elements` weights were converted to `bytes` bytes.
    pub(crate) fn count_prepared(&mut self, elements: usize, bytes: usize) {
        let as_f32 = (elements * size_of::<f32>()) as u64;
        self.taken.bytes = (self.taken.bytes + bytes as u64).saturating_sub(as_f32);
    }

    /// Name of the file in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// States the prefix of the base model's tensors, such as `model.`: they are also found without it, as the class of the
    /// base model saves them.
    pub(crate) fn expect_base(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.base);
    }

    /// Whether a tensor of this name exists and is not taken yet.
    pub fn contains(&self, name: &str) -> bool {
        self.stored_name(name).is_some()
    }

    /// Whether a tensor whose name begins with `prefix` exists and is not taken yet.
    pub(crate) fn contains_prefix(&self, prefix: &str) -> bool {
        self.remaining.keys().any(|name| name.starts_with(prefix))
    }

    /// Returns the name that a tensor has in the file: the same, without the base model's prefix, or the old TensorFlow name
    /// of a norm.
    fn stored_name(&self, name: &str) -> Option<String> {
        [Some(name), name.strip_prefix(&self.base)]
            .into_iter()
            .flatten()
            .find_map(|name| {
                let names = [Some(name.to_owned()), legacy_name(name)];
                let mut names = names.into_iter().flatten();
                names.find(|name| self.remaining.contains_key(name))
            })
    }

    /// Takes a tensor's elements, row-major, as f32 (from F32, F16, BF16, or quantised as `config.json` states).
    ///
    /// A `.weight` or `.bias` is also found by its old TensorFlow name, `.gamma` or `.beta`, which the first BERT
    /// checkpoints use for their layer norms.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`], [`LoadError::WrongDtype`], [`LoadError::NotFinite`], or
    /// [`LoadError::BadWeights`] if the file cannot be read.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let stored = self.stored_name(name);
        let name = stored.as_deref().unwrap_or(name);
        let Some((shard, info)) = self.remaining.get(name) else {
            return Err(LoadError::MissingTensor {
                file: self.file.clone(),
                name: name.to_owned(),
                expected: shape.to_vec(),
            });
        };
        let Some(Shard {
            file,
            source,
            data_start,
        }) = self.shards.get_mut(*shard)
        else {
            return Err(bad_weights(
                &self.file,
                format!("the file of tensor `{name}` is missing"),
            ));
        };
        let (dtype, (from, to)) = (info.dtype, info.data_offsets);
        let quantised = self.quantised.as_ref().filter(|_| dtype == Dtype::U8);
        let layout = match quantised {
            Some(quantised) => quantised.layout(name, shape, &info.shape),
            None => kind_of(dtype).filter(|_| info.shape == shape).map(Layout::plain),
        };
        let Some(layout) = layout else {
            return Err(if quantised.is_none() && kind_of(dtype).is_none() {
                LoadError::WrongDtype {
                    file: file.clone(),
                    name: name.to_owned(),
                    dtype: dtype.to_string(),
                }
            } else {
                LoadError::WrongShape {
                    file: file.clone(),
                    name: name.to_owned(),
                    expected: shape.to_vec(),
                    actual: info.shape.clone(),
                }
            });
        };
        let offset = *data_start + from as u64;
        let read = if layout.is_f32() {
            source.read_f32(offset, (to - from) / size_of::<f32>())
        } else {
            let bytes = source.read(offset, (to - from) as u64);
            bytes.map(|bytes| layout.values(&bytes, shape))
        };
        let values =
            read.map_err(|reason| bad_weights(file, format!("tensor `{name}` cannot be read: {reason}")))?;
        if let Some((index, value)) = first_not_finite(&values) {
            return Err(LoadError::NotFinite {
                file: file.clone(),
                name: name.to_owned(),
                index,
                value: value.to_string(),
            });
        }
        self.remaining.remove(name);
        self.taken.parameters += values.len() as u64;
        self.taken.bytes += size_of_val(values.as_slice()) as u64;
        Ok(values)
    }

    /// Reads a tensor as [`Weights::take`] does, without taking it: another layer takes it.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub(crate) fn copy(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let stored = self.stored_name(name);
        let entry = stored.and_then(|stored| Some((self.remaining.get(&stored)?.clone(), stored)));
        let totals = self.taken;
        let values = self.take(name, shape)?;
        if let Some((entry, stored)) = entry {
            self.remaining.insert(stored, entry);
        }
        self.taken = totals;
        Ok(values)
    }

    /// Takes the weight of a linear layer as `[inputs, outputs]`; torch stores `[outputs, inputs]`.
    ///
    /// # Errors
    /// As [`Weights::take`], with shapes as in the file.
    pub(crate) fn take_transposed(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Vec<f32>, LoadError> {
        Ok(transposed(&self.take(name, &[outputs, inputs])?, inputs))
    }

    /// The tensors that are not taken yet, by name.
    pub(crate) fn raw(&self) -> Vec<RawTensor> {
        let tensors = self.remaining.iter().map(|(name, (_, info))| RawTensor {
            name: name.clone(),
            dtype: info.dtype.to_string(),
            is_float: kind_of(info.dtype).is_some(),
            shape: info.shape.clone(),
            bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
        });
        tensors.collect()
    }

    /// Reads the bytes of a tensor as they are in the file.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], or [`LoadError::BadWeights`] if the file cannot be read.
    pub(crate) fn bytes_of(&mut self, name: &str) -> Result<Vec<u8>, LoadError> {
        let found = self.remaining.get(name).cloned();
        let found = found.and_then(|(shard, info)| Some((self.shards.get_mut(shard)?, info)));
        let Some((shard, info)) = found else {
            return Err(LoadError::MissingTensor {
                file: self.file.clone(),
                name: name.to_owned(),
                expected: Vec::new(),
            });
        };
        let (from, to) = info.data_offsets;
        let bytes = shard
            .source
            .read(shard.data_start + from as u64, (to - from) as u64);
        bytes.map_err(|reason| bad_weights(&shard.file, format!("tensor `{name}` cannot be read: {reason}")))
    }

    /// Drops tensors that no model needs, whose names end with one of `suffixes`.
    pub(crate) fn ignore_suffixes(&mut self, suffixes: &[&str]) {
        self.ignore(|name| suffixes.iter().any(|end| name.ends_with(end)));
    }

    /// Drops tensors that no model needs, by their names.
    pub(crate) fn ignore(&mut self, is_unused: impl Fn(&str) -> bool) {
        self.remaining.retain(|name, _| !is_unused(name));
    }

    /// Takes a weight of shape `[outputs, channels, ...]` as the matrix `[inputs, outputs]` whose inputs are pixels row by
    /// row, each with its channels; `pixels` is the number of pixels per channel. The file has them channel by channel.
    ///
    /// # Errors
    /// As [`Weights::take`], with shapes as in the file.
    pub(crate) fn take_by_pixel(
        &mut self,
        name: &str,
        shape: &[usize],
        pixels: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let weight = self.take(name, shape)?;
        let inputs = shape.iter().skip(1).product::<usize>().max(1);
        let by_pixel: Vec<f32> = weight
            .chunks(inputs)
            .flat_map(|output| transposed(output, pixels))
            .collect();
        Ok(transposed(&by_pixel, inputs))
    }

    /// Totals of the taken weights, also if tensors remain.
    pub fn totals(&self) -> WeightTotals {
        self.taken
    }

    /// Returns the totals if all tensors are taken. `IGNORED_BUFFERS` and tensors whose names begin with one of
    /// `unused`, which the architecture saves but never uses, may remain.
    ///
    /// # Errors
    /// [`LoadError::UnusedTensors`] with the names of the remaining tensors.
    pub fn finish(self, unused: &[&str]) -> Result<WeightTotals, LoadError> {
        let names: Vec<String> = self
            .remaining
            .into_keys()
            .filter(|name| !IGNORED_BUFFERS.iter().any(|end| name.ends_with(end)))
            .filter(|name| !unused.iter().any(|prefix| name.starts_with(prefix)))
            .collect();
        if names.is_empty() {
            return Ok(self.taken);
        }
        Err(LoadError::UnusedTensors {
            file: self.file,
            names,
        })
    }
}

impl Source {
    /// Reads little-endian f32, from a file without a copy of their bytes.
    fn read_f32(&mut self, offset: u64, count: usize) -> Result<Vec<f32>, String> {
        if let Self::File(file) = self {
            let mut values = vec![0.0_f32; count];
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| file.read_exact(cast_slice_mut(&mut values)))
                .map_err(|error| error.to_string())?;
            if cfg!(target_endian = "big") {
                for value in &mut values {
                    *value = f32::from_bits(value.to_bits().swap_bytes());
                }
            }
            return Ok(values);
        }
        let bytes = self.read(offset, (count * size_of::<f32>()) as u64)?;
        let mut values = vec![0.0; count];
        decode(&bytes, WeightType::F32, &mut values);
        Ok(values)
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, String> {
        match self {
            Self::Memory(memory) => usize::try_from(offset)
                .ok()
                .zip(usize::try_from(bytes).ok())
                .and_then(|(offset, bytes)| memory.get(offset..offset.checked_add(bytes)?))
                .map(<[u8]>::to_vec)
                .ok_or_else(|| format!("it ends before byte {}", offset.saturating_add(bytes))),
            Self::File(file) => {
                file.seek(SeekFrom::Start(offset))
                    .map_err(|error| error.to_string())?;
                let mut buffer = Vec::new();
                file.take(bytes)
                    .read_to_end(&mut buffer)
                    .map_err(|error| error.to_string())?;
                if (buffer.len() as u64) < bytes {
                    return Err(format!("it ends before byte {}", offset.saturating_add(bytes)));
                }
                Ok(buffer)
            }
        }
    }
}

/// Returns the first element that is infinite or not a number, and its index.
fn first_not_finite(values: &[f32]) -> Option<(usize, f32)> {
    /// Elements that a thread checks together.
    const PART: usize = 1 << 16;
    /// The exponent of f32, all of whose bits are set in such an element.
    const EXPONENT: u32 = 0x7f80_0000;
    let largest = |part: &[f32]| {
        let exponents = part.iter().map(|value| value.to_bits() & EXPONENT);
        exponents.fold(0, u32::max)
    };
    let place = values
        .par_chunks(PART)
        .position_first(|part| largest(part) == EXPONENT)?;
    let mut rest = values.iter().enumerate().skip(place * PART);
    rest.find(|(_, value)| !value.is_finite())
        .map(|(index, value)| (index, *value))
}

fn bad_weights(file: &str, reason: impl Into<String>) -> LoadError {
    LoadError::BadWeights {
        file: file.to_owned(),
        reason: reason.into(),
    }
}

fn legacy_name(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.')?;
    match end {
        "weight" => Some(format!("{stem}.gamma")),
        "bias" => Some(format!("{stem}.beta")),
        _ => None,
    }
}

/// The type of weights of a tensor's type; `None` for one that holds no plain weights.
fn kind_of(dtype: Dtype) -> Option<WeightType> {
    match dtype {
        Dtype::F32 => Some(WeightType::F32),
        Dtype::F16 => Some(WeightType::F16),
        Dtype::BF16 => Some(WeightType::Bf16),
        _ => None,
    }
}

/// Returns the type that all matrices among tensors share; f32 if they differ, which represents all.
fn stored_type<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> WeightType {
    let mut kinds = tensors
        .filter(|info| info.shape.len() > 1)
        .filter_map(|info| kind_of(info.dtype));
    let first = kinds.next().unwrap_or_default();
    if kinds.all(|kind| kind == first) {
        first
    } else {
        WeightType::F32
    }
}

/// Rows that [`transposed`] moves together: 16 f32 fill a cache line of the result.
const BLOCK: usize = 16;

/// Returns the transpose of a row-major matrix with `columns` columns.
pub(crate) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let columns = columns.max(1);
    let rows = (values.len() / columns).max(1);
    let mut out = vec![0.0; values.len()];
    for (block, lines) in values.chunks(columns * BLOCK).enumerate() {
        for (column, target) in out.chunks_mut(rows).enumerate() {
            let column_of_block = lines.iter().skip(column).step_by(columns);
            for (slot, value) in target.iter_mut().skip(block * BLOCK).zip(column_of_block) {
                *slot = *value;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
