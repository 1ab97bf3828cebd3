//! Strict loading of weights.
//!
//! A model with wrong or partially used weights still answers, but wrongly. An architecture therefore takes every
//! tensor by name and shape, and unused tensors are an error.
//!
//! This module uses the header types of the crate `safetensors` and reads tensor by tensor, so that errors have the
//! names and shapes of the file, three projections can be fused, and at most one tensor is in memory in addition to
//! the model.

mod elements;
mod part;
mod source;
mod taking;

use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::{Metadata, TensorInfo};

pub(crate) use self::elements::transposed;
use self::elements::{kind_of, stored_type};
use self::part::Part;
pub(super) use self::source::{Shard, Source, Strided};
use super::LoadError;
use super::quantised::Scheme;
use crate::precision::WeightType;

/// Maximum size of the JSON header, bytes; the limit of the format.
const MAX_HEADER: u64 = 100_000_000;
/// Size of the little-endian header length at the beginning of the file, bytes.
const PREFIX: u64 = 8;

/// Name prefixes of a model that was saved inside a wrapper: `torch.compile`, and `DataParallel` or
/// `DistributedDataParallel`.
const WRAPPERS: [&str; 2] = ["_orig_mod.", "module."];

/// Name suffixes of buffers that old versions of transformers saved with the weights. No model needs them: they hold
/// 0, 1, 2, ... or a count of training steps.
pub(crate) const IGNORED_BUFFERS: [&str; 3] = ["position_ids", "token_type_ids", "num_batches_tracked"];

/// Tensors of a checkpoint; each can be taken once.
#[derive(Debug)]
pub struct Weights {
    /// Name of the file in errors; for shards, that of the index.
    file: String,
    shards: Vec<Shard>,
    /// Tensors not taken yet, with the index of their shard.
    remaining: BTreeMap<String, (usize, TensorInfo)>,
    /// Places of the tensors that were taken, as shard and byte range.
    taken_places: BTreeSet<(usize, (usize, usize))>,
    taken: WeightTotals,
    /// Requested type of linear layers and embeddings; `None`: as stored.
    requested: Option<WeightType>,
    /// Type of all matrices in the file; f32 if types differ.
    stored: WeightType,
    /// Quantisation scheme, if the weights are quantised.
    scheme: Option<Box<dyn Scheme>>,
    /// Name prefix of the base model's tensors, which the file may omit.
    base: String,
    /// The part of the file that is used, if not all of it.
    part: Part,
}

/// Totals of the taken weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightTotals {
    /// Number of weights.
    pub parameters: u64,
    /// Memory of the weights, bytes.
    pub bytes: u64,
}

/// Description of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawTensor {
    pub(crate) name: String,
    /// Type, as in the header.
    pub(crate) dtype: String,
    /// Whether the tensor can be read as unquantised weights.
    pub(crate) is_float: bool,
    pub(crate) shape: Vec<usize>,
    /// Size in the file, bytes.
    pub(crate) bytes: u64,
}

impl Weights {
    /// Reads the header of a file of safetensors of `length` bytes; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] if the header is malformed, or does not describe exactly the bytes that follow it.
    pub(super) fn of_safetensors(file: String, source: Source, length: u64) -> Result<Self, LoadError> {
        let read = |offset, bytes| {
            source
                .read(offset, bytes)
                .map_err(|reason| bad_weights(&file, format!("its header cannot be read: {reason}")))
        };
        let prefix = read(0, PREFIX)?;
        let header = prefix.as_slice().try_into().map_or(0, u64::from_le_bytes);
        // Checked before reading, so that a forged length allocates nothing.
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
            scheme: None,
            base: String::new(),
            part: Part::default(),
            file: file.clone(),
            shards: vec![Shard {
                file,
                source,
                data_start,
            }],
            remaining,
            taken_places: BTreeSet::new(),
            taken: WeightTotals::default(),
        })
    }

    /// Combines the shards of a checkpoint; `index` is the name of the whole in errors, and `shard_of_tensor` maps
    /// each tensor to its shard.
    ///
    /// # Errors
    /// [`LoadError::BadWeights`] if a tensor is in another shard than the index states, or in two.
    pub(crate) fn from_shards(
        index: impl Into<String>,
        files: Vec<Self>,
        shard_of_tensor: &BTreeMap<String, usize>,
    ) -> Result<Self, LoadError> {
        let mut whole = Self {
            file: index.into(),
            shards: Vec::new(),
            remaining: BTreeMap::new(),
            taken_places: BTreeSet::new(),
            taken: WeightTotals::default(),
            requested: None,
            stored: WeightType::F32,
            scheme: None,
            base: String::new(),
            part: Part::default(),
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

    /// Combines tensors by name, with their shard index; `file` is the name of the whole in errors.
    pub(super) fn of_tensors(
        file: String,
        shards: Vec<Shard>,
        remaining: BTreeMap<String, (usize, TensorInfo)>,
    ) -> Self {
        Self {
            file,
            shards,
            taken_places: BTreeSet::new(),
            taken: WeightTotals::default(),
            requested: None,
            stored: stored_type(remaining.values().map(|(_, info)| info)),
            remaining,
            scheme: None,
            base: String::new(),
            part: Part::default(),
        }
    }

    /// Returns the type of linear layers and embeddings: the requested type, else that of the file.
    pub(crate) fn weight_type(&self) -> WeightType {
        let quantised = self.scheme.as_ref().map(|scheme| scheme.weight_type());
        self.requested.or(quantised).unwrap_or(self.stored)
    }

    /// Returns the requested type of linear layers and embeddings, if there is one.
    pub(crate) fn requested_type(&self) -> Option<WeightType> {
        self.requested
    }

    /// Requests a type for linear layers and embeddings; `None` keeps that of the file.
    pub fn request(&mut self, kind: Option<WeightType>) {
        self.requested = kind;
    }

    /// Requests a type for a device without kernels for quantised weights; `None` keeps that of the file, or bf16 if
    /// the file is quantised.
    ///
    /// # Errors
    /// The requested type, if it is a quantised one.
    pub fn request_unquantised(&mut self, kind: Option<WeightType>) -> Result<(), WeightType> {
        match kind {
            Some(kind) if kind.is_quantised() => return Err(kind),
            None if self.weight_type().is_quantised() => self.request(Some(WeightType::Bf16)),
            kind => self.request(kind),
        }
        Ok(())
    }

    /// Sets the quantisation scheme of the weights.
    pub(super) fn quantised_as(&mut self, scheme: Option<Box<dyn Scheme>>) {
        self.scheme = scheme;
    }

    /// Corrects the byte total after `elements` weights were converted to `bytes` bytes.
    pub(crate) fn count_prepared(&mut self, elements: usize, bytes: usize) {
        let as_f32 = (elements * size_of::<f32>()) as u64;
        self.taken.bytes = (self.taken.bytes + bytes as u64).saturating_sub(as_f32);
    }

    /// Returns the name of the file in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Sets the name prefix of the base model's tensors, such as `model.`: they are also found without it, because the
    /// class of the base model saves them so.
    pub(crate) fn expect_base(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.base);
    }

    /// Returns whether a tensor of this name exists and is not taken yet.
    pub fn contains(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// Returns whether a tensor with this name prefix exists and is not taken yet.
    pub(crate) fn contains_prefix(&self, prefix: &str) -> bool {
        self.remaining.keys().any(|name| name.starts_with(prefix))
    }

    /// Returns the tensors that are not taken yet, by name.
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

    /// Returns names and shapes of the tensors that are not taken yet.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let tensors = self.remaining.iter();
        tensors
            .map(|(name, (_, info))| (name.clone(), info.shape.clone()))
            .collect()
    }

    /// Returns the number of elements of all tensors that are not taken yet. Packed quantised weights count as stored.
    pub fn elements(&self) -> u64 {
        let sizes = self.remaining.values().map(|(_, info)| {
            let elements: usize = info.shape.iter().product();
            elements as u64
        });
        sizes.sum()
    }

    /// Renames all tensors.
    pub(crate) fn rename(&mut self, renamed: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.remaining).into_iter();
        self.remaining = tensors.map(|(name, tensor)| (renamed(&name), tensor)).collect();
    }

    /// Strips wrapper prefixes that all tensor names have.
    pub(super) fn strip_wrappers(&mut self) {
        while let Some(prefix) = WRAPPERS.into_iter().find(|prefix| {
            !self.remaining.is_empty() && self.remaining.keys().all(|name| name.starts_with(prefix))
        }) {
            self.rename(|name| name.strip_prefix(prefix).unwrap_or(name).to_owned());
        }
    }

    /// Drops unneeded tensors by name suffix.
    pub(crate) fn ignore_suffixes(&mut self, suffixes: &[&str]) {
        self.ignore(|name| suffixes.iter().any(|end| name.ends_with(end)));
    }

    /// Drops unneeded tensors, by their names within the part that is used.
    pub(crate) fn ignore(&mut self, is_unused: impl Fn(&str) -> bool) {
        let part = &self.part;
        self.remaining.retain(|name, _| !is_unused(part.inside(name)));
    }

    /// Returns the totals of the taken weights, even if tensors remain.
    pub fn totals(&self) -> WeightTotals {
        self.taken
    }

    /// Returns whether the quantisation scheme saves a tensor that no weight needs.
    fn is_unused(&mut self, name: &str) -> bool {
        let Some(scheme) = &self.scheme else {
            return false;
        };
        if scheme.is_unused(name) {
            return true;
        }
        let are_zeros = |bytes: Vec<u8>| bytes.iter().all(|byte| *byte == 0);
        scheme.may_be_zeros(name) && self.bytes_of(name).is_ok_and(are_zeros)
    }

    /// Returns the totals if all tensors are taken. `IGNORED_BUFFERS` may remain, and so may tensors with a name
    /// prefix in `unused`, which the architecture saves but never uses, and tensors that share the data of one that was
    /// taken, which PyTorch's format has under every name.
    ///
    /// # Errors
    /// [`LoadError::UnusedTensors`] with the names of the remaining tensors.
    pub fn finish(mut self, unused: &[&str]) -> Result<WeightTotals, LoadError> {
        let tensors = self.remaining.iter();
        let names = tensors
            .filter(|(_, (shard, info))| !self.taken_places.contains(&(*shard, info.data_offsets)))
            .map(|(name, _)| name)
            .filter(|name| !IGNORED_BUFFERS.iter().any(|end| name.ends_with(end)))
            .filter(|name| !unused.iter().any(|prefix| name.starts_with(prefix)));
        let mut names: Vec<String> = names.cloned().collect();
        names.retain(|name| !self.is_unused(name));
        if names.is_empty() {
            return Ok(self.taken);
        }
        Err(LoadError::UnusedTensors {
            file: self.file,
            names,
        })
    }
}

fn bad_weights(file: &str, reason: impl Into<String>) -> LoadError {
    LoadError::BadWeights {
        file: file.to_owned(),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests;
