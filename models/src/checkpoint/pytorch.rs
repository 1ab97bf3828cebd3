//! Weights that `torch.save` wrote: `pytorch_model.bin`.
//!
//! A file is a ZIP archive with the pickle `data.pkl` and one entry per storage, or, from PyTorch before 1.6, a
//! sequence of pickles followed by the storages. A pickle is a program: Python, which runs it, can be made to run any
//! code. This module reads it as data and runs nothing ([`pickle`]).
//!
//! Source: `torch/serialization.py`, `torch/_utils.py`.

mod container;
mod pickle;
mod storage;
mod tensors;

use std::collections::BTreeMap;

use safetensors::tensor::TensorInfo;

use self::container::Container;
use self::tensors::{Tensor, tensors};
use super::LoadError;
use super::weights::{Shard, Source, Strided, Weights};

pub(super) use self::container::is_pytorch;

/// Reads the header of a file; `file` is its name in errors.
///
/// # Errors
/// [`LoadError::BadWeights`] if the file is malformed, or has something other than tensors in row-major or strided
/// order.
pub(super) fn open(file: String, source: &Source, length: u64) -> Result<Weights, LoadError> {
    let read = Container::open(source, length).and_then(|container| tensors(&container));
    let tensors = read.map_err(|reason| LoadError::BadWeights {
        file: file.clone(),
        reason: format!("PyTorch's format: {reason}"),
    })?;
    let shard = |source| Shard {
        file: file.clone(),
        source,
        data_start: 0,
    };
    let mut shards = vec![shard(source.clone())];
    // A tensor under several names has one shard, so that taking it takes them all.
    let mut places = BTreeMap::new();
    let mut remaining = BTreeMap::new();
    for (name, tensor) in tensors {
        let Tensor {
            dtype,
            start,
            bytes,
            shape,
            strides,
        } = tensor;
        let (index, start) = match strides {
            None => (0, start),
            Some(strides) => {
                let place = (start, shape.clone(), strides.clone());
                let index = places.entry(place).or_insert_with(|| {
                    shards.push(shard(Source::Strided(Strided {
                        whole: Box::new(source.clone()),
                        start: start as u64,
                        shape: shape.clone(),
                        strides,
                        element: dtype.bitsize() / 8,
                    })));
                    shards.len() - 1
                });
                (*index, 0)
            }
        };
        let info = TensorInfo {
            dtype,
            shape,
            data_offsets: (start, start + bytes),
        };
        remaining.insert(name, (index, info));
    }
    Ok(Weights::of_tensors(file, shards, remaining))
}

/// Header of a file, and the byte range of each tensor.
pub(super) type Ranges = (Vec<u8>, Vec<(u64, u64)>);

/// Returns the pickle of a file, and the byte range of each tensor's storage; `None` for another format.
pub(super) fn ranges(source: &Source, length: u64) -> Option<Ranges> {
    let is_pytorch = is_pytorch(source, length).then_some(());
    let container = is_pytorch.and_then(|()| Container::open(source, length).ok())?;
    let storages = container.storages.values().map(|storage| (storage.0, storage.1));
    Some((container.pickle, storages.collect()))
}

#[cfg(test)]
mod tests;
