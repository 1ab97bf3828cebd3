//! The tensors of a pickled state dictionary.

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::container::Container;
use super::pickle::{Object, Pickle, Value};
use super::storage::storage_type;

/// A tensor of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) dtype: Dtype,
    /// Offset of the first element in the file, bytes.
    pub(super) start: usize,
    /// Size of all elements, bytes.
    pub(super) bytes: usize,
    pub(super) shape: Vec<usize>,
    /// Distances between neighbouring elements of each dimension, elements; `None` in row-major order.
    pub(super) strides: Option<Vec<usize>>,
}

/// Returns the tensors of a file, by name. Entries that are plain values, such as a count of epochs, are dropped.
///
/// # Errors
/// The reason why the file is no dictionary of tensors.
pub(super) fn tensors(container: &Container) -> Result<BTreeMap<String, Tensor>, String> {
    let pickle = Pickle::read(&container.pickle)?;
    let Some(items) = pickle.items(pickle.root) else {
        let what = match pickle.object(pickle.root) {
            Some(Object::Call { callable, .. }) => pickle.global(*callable),
            _ => None,
        };
        return Err(format!(
            "it holds {} in place of a dictionary of tensors: save `model.state_dict()`",
            what.map_or("a value".to_owned(), |class| format!("an object of `{class}`"))
        ));
    };
    let mut found = BTreeMap::new();
    for (key, value) in items {
        let name = pickle.text(*key).ok_or("a key of its dictionary is not a text")?;
        let is_plain = match pickle.object(*value) {
            None => true,
            Some(object) => matches!(object, Object::Text(_) | Object::Bytes),
        };
        if is_plain {
            continue;
        }
        let tensor = tensor(&pickle, *value, container).map_err(|reason| format!("`{name}` {reason}"))?;
        found.insert(name.to_owned(), tensor);
    }
    Ok(found)
}

/// Reads a tensor or a parameter.
fn tensor(pickle: &Pickle, value: Value, container: &Container) -> Result<Tensor, String> {
    let mut call = pickle.call(value);
    if let Some(("torch._utils._rebuild_parameter", [data, ..])) = call {
        call = pickle.call(*data);
    }
    let (storage, offset, shape, strides) = match call {
        Some((
            "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor",
            [storage, offset, shape, strides, ..],
        )) => (*storage, *offset, *shape, *strides),
        Some((function, _)) => {
            return Err(format!(
                "is made by `{function}`, which is not supported: save it as safetensors"
            ));
        }
        None if pickle.items(value).is_some() => {
            return Err("is a dictionary: save the one that holds the tensors, such as `torch.load(FILE)[\"state_dict\"]`".into());
        }
        None => return Err("is not a tensor".into()),
    };
    let storage = pickle.storage(storage).ok_or("has no storage")?;
    let dtype = storage_type(storage.kind)
        .ok_or_else(|| format!("has the type `{}`, which is not supported", storage.kind))?;
    let (from, to) = *container
        .storages
        .get(storage.key)
        .ok_or_else(|| format!("is in the storage `{}`, which the file lacks", storage.key))?;
    let sizes = |value: Value| -> Option<Vec<usize>> {
        let all = pickle.sequence(value)?.iter();
        all.map(|value| whole(*value)).collect()
    };
    let (shape, strides) = sizes(shape)
        .zip(sizes(strides))
        .filter(|(shape, strides)| shape.len() == strides.len())
        .ok_or("has no valid shape")?;
    let offset = whole(offset).zip(usize::try_from(storage.offset).ok());
    let offset = offset
        .and_then(|(offset, view)| offset.checked_add(view))
        .ok_or("has no valid offset")?;
    let size = dtype.bitsize() / 8;
    let elements = (to - from) / size as u64;
    let exceeds = || format!("of shape {shape:?} exceeds its storage of {elements} elements");
    let count = shape
        .iter()
        .try_fold(1_usize, |all, size| all.checked_mul(*size))
        .ok_or_else(exceeds)?;
    if count == 0 {
        return Ok(Tensor {
            dtype,
            start: 0,
            bytes: 0,
            shape,
            strides: None,
        });
    }
    let last = shape
        .iter()
        .zip(&strides)
        .try_fold(offset, |last, (size, stride)| {
            last.checked_add((size - 1).checked_mul(*stride)?)
        });
    // An expanded tensor has more elements than its storage.
    if last.is_none_or(|last| last as u64 >= elements) || count as u64 > elements {
        return Err(exceeds());
    }
    let start = usize::try_from(from)
        .ok()
        .and_then(|from| from.checked_add(offset * size))
        .ok_or_else(exceeds)?;
    let strides = (!is_row_major(&shape, &strides)).then_some(strides);
    Ok(Tensor {
        dtype,
        start,
        bytes: count * size,
        shape,
        strides,
    })
}

fn whole(value: Value) -> Option<usize> {
    match value {
        Value::Int(number) => usize::try_from(number).ok(),
        _ => None,
    }
}

/// Returns whether elements are in row-major order without gaps. The stride of a dimension of one element is arbitrary.
fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    for (size, stride) in shape.iter().zip(strides).rev() {
        if *size != 1 && *stride != expected {
            return false;
        }
        expected *= size;
    }
    true
}
