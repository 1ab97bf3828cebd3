//! Maps the tensors of a file to the names of the Hugging Face checkpoint, with the decoding of each.

use std::collections::BTreeMap;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::file::Tensor;
use super::names::Change;
use super::scheme::{Coding, Gguf, RowOrder};
use super::types::TensorType;
use super::{Model, rotary};
use crate::checkpoint::LoadError;
use crate::precision::WeightType;

/// Maximum number of experts of a layer, and of heads of a norm.
const MAX_PARTS: usize = 1 << 12;

/// Tensors that are not loaded yet, with their shard index.
type Remaining = BTreeMap<String, (usize, TensorInfo)>;

/// Returns the decoding and the locations of a model's tensors. A tensor that the architecture does not have keeps its
/// name and cannot be loaded.
///
/// # Errors
/// [`LoadError::BadGguf`] if the shape of a tensor does not fit its transformation.
pub(super) fn arrange(model: &Model) -> Result<(Gguf, Remaining), LoadError> {
    let mut arranged = Arranged {
        model,
        coded: BTreeMap::new(),
        remaining: BTreeMap::new(),
    };
    for (name, tensor) in &model.header.tensors {
        if rotary::TENSORS.contains(&name.as_str()) {
            continue;
        }
        let shard = model.shard_of_tensor.get(name).copied().unwrap_or_default();
        let added = arranged.add(name, tensor, shard);
        added.map_err(|reason| LoadError::BadGguf {
            file: model
                .shards
                .get(shard)
                .map_or(&model.file, |shard| &shard.file)
                .clone(),
            reason: format!("tensor `{name}` {reason}"),
        })?;
    }
    let scheme = Gguf {
        kind: weight_type(model.header.tensors.values()),
        coded: arranged.coded,
    };
    Ok((scheme, arranged.remaining))
}

/// Returns the type that most matrix weights have, if weights can have it in memory; else bf16.
fn weight_type<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> WeightType {
    let mut weights: BTreeMap<TensorType, u128> = BTreeMap::new();
    for tensor in tensors.filter(|tensor| tensor.shape.len() > 1) {
        let elements: usize = tensor.shape.iter().product();
        *weights.entry(tensor.kind).or_default() += elements as u128;
    }
    let most = weights.into_iter().max_by_key(|(_, count)| *count);
    most.map_or(WeightType::F32, |(kind, _)| {
        kind.weight_type().unwrap_or(WeightType::Bf16)
    })
}

struct Arranged<'a> {
    model: &'a Model,
    coded: BTreeMap<String, Coding>,
    remaining: Remaining,
}

impl Arranged<'_> {
    /// Adds a tensor of the file. The error is the reason.
    fn add(&mut self, name: &str, tensor: &Tensor, shard: usize) -> Result<(), String> {
        let Some(found) = self.model.architecture.names.find(name) else {
            return self.put(
                name.to_owned(),
                tensor.shape.clone(),
                tensor.range,
                shard,
                Dtype::U8,
            );
        };
        let [heads, groups] = ["attention.head_count", "attention.head_count_kv"].map(|key| {
            let stated = self.model.header.metadata.own_whole(key);
            stated.ok().flatten().unwrap_or_default() as usize
        });
        let groups = if groups == 0 { heads } else { groups };
        let same = RowOrder::Same;
        let (order, offset) = match found.change {
            Change::Queries => (RowOrder::AdjacentPairs { heads }, 0.0),
            Change::Keys => (RowOrder::AdjacentPairs { heads: groups }, 0.0),
            Change::ByPart => (RowOrder::ByPart { heads }, 0.0),
            Change::ByKind => {
                let queries = heads / groups.max(1);
                (RowOrder::ByKind { groups, queries }, 0.0)
            }
            Change::PlusOne => (same, -1.0),
            _ => (same, 0.0),
        };
        let coding = |shape: Vec<usize>| Coding {
            kind: tensor.kind,
            shape,
            order,
            offset,
        };
        match found.change {
            Change::Experts | Change::Heads => {
                let count = tensor.shape.first().copied().unwrap_or_default();
                let names = (0..count).map(|part| found.name.replace("{}", &part.to_string()));
                let rest: Vec<usize> = tensor.shape.iter().skip(1).copied().collect();
                if rest.is_empty() || count > MAX_PARTS {
                    return Err(format!(
                        "has the shape {:?}; it must have a first dimension of up to {MAX_PARTS} parts",
                        tensor.shape
                    ));
                }
                let parts: Vec<_> = names.map(|name| (name, rest.clone())).collect();
                self.put_parts(parts, tensor, shard, coding)
            }
            Change::Fused => {
                let rows = tensor.shape.first().copied().unwrap_or_default();
                let each = rows / (heads + 2 * groups).max(1);
                if each * (heads + 2 * groups) != rows || rows == 0 {
                    return Err(format!(
                        "has {rows} rows, which are not heads of queries, keys and values"
                    ));
                }
                let (module, end) = found.name.rsplit_once('.').unwrap_or_default();
                let parts = [("q_proj", heads), ("k_proj", groups), ("v_proj", groups)];
                let parts = parts.map(|(part, heads)| {
                    let rest = tensor.shape.iter().skip(1).copied();
                    let shape = [heads * each].into_iter().chain(rest).collect();
                    (format!("{module}.{part}.{end}"), shape)
                });
                self.put_parts(parts.into(), tensor, shard, coding)
            }
            change => {
                let mut shape = tensor.shape.clone();
                if change == Change::OneRow && shape.len() == 1 {
                    shape.insert(0, 1);
                }
                let is_plain = order == same && offset == 0.0 && change != Change::Transposed;
                let dtype = plain_type(tensor.kind).filter(|_| is_plain);
                if dtype.is_none() {
                    self.coded.insert(found.name.clone(), coding(shape.clone()));
                }
                self.put(found.name, shape, tensor.range, shard, dtype.unwrap_or(Dtype::U8))
            }
        }
    }

    /// Adds consecutive slices of a tensor along its first dimension, with their shapes.
    fn put_parts(
        &mut self,
        parts: Vec<(String, Vec<usize>)>,
        tensor: &Tensor,
        shard: usize,
        coding: impl Fn(Vec<usize>) -> Coding,
    ) -> Result<(), String> {
        let (mut from, end) = tensor.range;
        let all: usize = tensor.shape.iter().product();
        let bytes = end - from;
        for (name, shape) in parts {
            let weights: usize = shape.iter().product();
            // Rows, and therefore slices, consist of whole blocks.
            let to = from + (bytes as u128 * weights as u128 / all.max(1) as u128) as usize;
            let dtype = plain_type(tensor.kind);
            if dtype.is_none() {
                self.coded.insert(name.clone(), coding(shape.clone()));
            }
            self.put(name, shape, (from, to), shard, dtype.unwrap_or(Dtype::U8))?;
            from = to;
        }
        Ok(())
    }

    fn put(
        &mut self,
        name: String,
        shape: Vec<usize>,
        data_offsets: (usize, usize),
        shard: usize,
        dtype: Dtype,
    ) -> Result<(), String> {
        let info = TensorInfo {
            dtype,
            shape,
            data_offsets,
        };
        match self.remaining.insert(name, (shard, info)) {
            None => Ok(()),
            Some(_) => Err("is there twice, under two names".into()),
        }
    }
}

/// Returns the safetensors type of a tensor that is read unchanged.
fn plain_type(kind: TensorType) -> Option<Dtype> {
    match kind {
        TensorType::F32 => Some(Dtype::F32),
        TensorType::F16 => Some(Dtype::F16),
        TensorType::Bf16 => Some(Dtype::BF16),
        _ => None,
    }
}
