//! `model.safetensors`: a strict source of weights.
//!
//! Strict, because a model that runs on a wrong or half-used file still answers, only wrongly: a family takes every
//! tensor by name and shape, and what is left over is an error.
//!
//! This reads with the `safetensors` crate's header types and not with burn's `SafetensorsStore`. The store fills an
//! initialised module and reports what it missed afterwards as a list, so that a file which does not fit costs the
//! random initialisation of a whole model first, names are rewritten by patterns before errors can quote them, and
//! shapes are compared after the transposition of the linear layers. Asked tensor by tensor, an error names what the
//! file calls the tensor and both shapes as the file has them, three projections can be taken into one matrix, and
//! each tensor is read when it is wanted: loading never holds more than one tensor beside the model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use burn::tensor::{Device, Tensor, TensorData};
use bytes::Bytes;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::LoadError;

/// The format's own limit for its JSON header.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes of the little-endian header length that opens the file.
const PREFIX: u64 = 8;

/// Buffers that old versions of transformers saved beside the weights, by the end of their names. No model needs them:
/// they hold 0, 1, 2, ... or a count of training steps.
pub const IGNORED_BUFFERS: [&str; 3] = ["position_ids", "token_type_ids", "num_batches_tracked"];

/// The tensors of a file, each to be taken once.
#[derive(Debug)]
pub struct Weights {
    /// What errors call the whole: the one file, or the index of several.
    file: String,
    shards: Vec<Shard>,
    /// What is not taken yet, and the part that it is in.
    remaining: BTreeMap<String, (usize, TensorInfo)>,
    taken: WeightTotals,
}

/// One file.
#[derive(Debug)]
struct Shard {
    file: String,
    source: Source,
    /// Where the tensors begin, bytes from the start of the file.
    data_start: u64,
}

/// What was taken out of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightTotals {
    /// Number of weights.
    pub parameters: u64,
    /// What they take in memory once loaded as f32, bytes.
    pub bytes: u64,
}

#[derive(Debug)]
enum Source {
    File(File),
    Memory(Bytes),
}

impl Weights {
    /// Reads the header of an open file; `file` is what errors call it.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] when the header is not one, or does not describe exactly the bytes that follow it.
    pub fn from_file(file: impl Into<String>, handle: File) -> Result<Self, LoadError> {
        let file = file.into();
        let length = handle
            .metadata()
            .map_err(|error| bad_weights(&file, error.to_string()))?
            .len();
        Self::open(file, Source::File(handle), length)
    }

    /// Reads the header of a file in memory; `file` is what errors call it.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] when the header is not one, or does not describe exactly the bytes that follow it.
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
                format!("it announces a header of {header} bytes in a file of {length}"),
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
        let remaining = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, (0, info.clone())))
            .collect();
        Ok(Self {
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

    /// Several files as one, as large checkpoints are saved; `index` is what errors call the whole, and `index` says which
    /// file every tensor is in, by the files' positions.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] when a tensor is not where the index says, or in two places.
    pub fn from_shards(
        index: impl Into<String>,
        files: Vec<Self>,
        shard_of_tensor: &BTreeMap<String, usize>,
    ) -> Result<Self, LoadError> {
        let mut whole = Self {
            file: index.into(),
            shards: Vec::new(),
            remaining: BTreeMap::new(),
            taken: WeightTotals::default(),
        };
        for (place, file) in files.into_iter().enumerate() {
            let first = whole.shards.len();
            for (name, (shard, info)) in file.remaining {
                if shard_of_tensor.get(&name) != Some(&place) {
                    let reason = format!(
                        "it holds the tensor `{name}`, which `{}` does not say",
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
            None => Ok(whole),
            Some(name) => Err(bad_weights(
                &whole.file,
                format!("it lists the tensor `{name}`, which is in none of its files"),
            )),
        }
    }

    /// What errors call the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Whether a tensor of this name is there and not taken yet.
    pub fn contains(&self, name: &str) -> bool {
        self.remaining.contains_key(name)
    }

    /// Takes a tensor's elements, row-major, as f32 (from F32, F16 or BF16).
    ///
    /// A `.weight` or `.bias` is also found under its name of the TensorFlow days, `.gamma` or `.beta`, as which the
    /// first BERT checkpoints carry their layer norms.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`], [`LoadError::WrongDtype`], [`LoadError::NotFinite`],
    /// or [`LoadError::BadWeights`] when the file cannot be read any more.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let legacy = legacy_name(name).filter(|_| !self.contains(name));
        let name = legacy
            .as_deref()
            .filter(|legacy| self.contains(legacy))
            .unwrap_or(name);
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
                format!("the file of tensor `{name}` is gone"),
            ));
        };
        if info.shape != shape {
            return Err(LoadError::WrongShape {
                file: file.clone(),
                name: name.to_owned(),
                expected: shape.to_vec(),
                actual: info.shape.clone(),
            });
        }
        let (dtype, (from, to)) = (info.dtype, info.data_offsets);
        let bytes = source
            .read(*data_start + from as u64, (to - from) as u64)
            .map_err(|reason| bad_weights(file, format!("tensor `{name}` cannot be read: {reason}")))?;
        let values = to_f32(dtype, &bytes).ok_or_else(|| LoadError::WrongDtype {
            file: file.clone(),
            name: name.to_owned(),
            dtype: dtype.to_string(),
        })?;
        if let Some((index, value)) = values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
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

    /// Takes the weight of a linear layer as `[inputs, outputs]`, which torch stores as `[outputs, inputs]`.
    ///
    /// # Errors
    /// As [`Weights::take`], shapes as the file has them.
    pub fn take_transposed(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Vec<f32>, LoadError> {
        Ok(transposed(&self.take(name, &[outputs, inputs])?, inputs))
    }

    /// Leaves out what no model needs: tensors whose names end with one of `suffixes`.
    pub fn ignore_suffixes(&mut self, suffixes: &[&str]) {
        self.remaining
            .retain(|name, _| !suffixes.iter().any(|end| name.ends_with(end)));
    }

    /// Takes a tensor onto a device, as f32.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub fn tensor<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
        device: &Device,
    ) -> Result<Tensor<D>, LoadError> {
        let values = self.take(name, &shape)?;
        Ok(Tensor::from_data(TensorData::new(values, shape), device))
    }

    /// Takes the weight of a linear layer onto a device, transposed: torch stores `[outputs, inputs]`, burn multiplies
    /// by `[inputs, outputs]`. Transposed here once, since a product with a transposed view costs an order of magnitude
    /// more for small batches.
    ///
    /// # Errors
    /// As [`Weights::take`], shapes as the file has them.
    pub fn matrix(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        device: &Device,
    ) -> Result<Tensor<2>, LoadError> {
        let values = self.take_transposed(name, inputs, outputs)?;
        Ok(Tensor::from_data(
            TensorData::new(values, [inputs, outputs]),
            device,
        ))
    }

    /// Takes a convolution's kernel of shape `[outputs, channels, height, width]` as the matrix
    /// `[channels * height * width, outputs]` that its windows are multiplied by.
    ///
    /// # Errors
    /// As [`Weights::take`], shapes as the file has them.
    pub fn kernel_matrix(
        &mut self,
        name: &str,
        shape: [usize; 4],
        device: &Device,
    ) -> Result<Tensor<2>, LoadError> {
        let values = self.take(name, &shape)?;
        let [outputs, ..] = shape;
        let inputs = values.len() / outputs.max(1);
        let data = TensorData::new(transposed(&values, inputs), [inputs, outputs]);
        Ok(Tensor::from_data(data, device))
    }

    /// What was taken, whatever is left.
    pub fn totals(&self) -> WeightTotals {
        self.taken
    }

    /// What was taken, if nothing is left but [`IGNORED_BUFFERS`] buffers and tensors whose names begin with one of `unused`:
    /// those an architecture saves without ever computing with them.
    ///
    /// # Errors
    /// [`LoadError::UnusedTensors`] with the names that are left.
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

fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    match dtype {
        Dtype::F32 => Some(elements(bytes, f32::from_le_bytes)),
        Dtype::F16 => Some(elements(bytes, |b| half::f16::from_le_bytes(b).to_f32())),
        Dtype::BF16 => Some(elements(bytes, |b| half::bf16::from_le_bytes(b).to_f32())),
        _ => None,
    }
}

fn elements<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().map(|element| read(*element)).collect()
}

/// Rows that [`transposed`] moves together: 16 f32 make a cache line of the result.
const BLOCK: usize = 16;

/// The transpose of a row-major matrix with `columns` columns.
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
