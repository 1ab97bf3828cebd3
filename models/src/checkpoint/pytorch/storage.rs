//! The storages that a pickle refers to.

use safetensors::Dtype;

use super::pickle::{Object, Pickle, Value};

/// A storage that a pickle refers to.
pub(super) struct Storage<'a> {
    /// Class of the storage, such as `torch.FloatStorage`.
    pub(super) kind: &'a str,
    pub(super) key: &'a str,
    /// Offset of the view that old files store instead of a storage, elements.
    pub(super) offset: i64,
}

impl Pickle {
    /// Returns the storages that the pickle refers to.
    pub(super) fn storages(&self) -> impl Iterator<Item = Storage<'_>> {
        (0..self.len()).filter_map(|index| self.storage(Value::Object(index)))
    }

    /// Returns the storage of an identifier: `("storage", class, key, location, elements)`, and in old files the view
    /// `(key, offset, elements)` or `None`.
    pub(super) fn storage(&self, value: Value) -> Option<Storage<'_>> {
        let Object::Persistent(identifier) = self.object(value)? else {
            return None;
        };
        let (kind, key, view) = match self.sequence(*identifier)? {
            [name, kind, key, _, _] if self.text(*name) == Some("storage") => (kind, key, None),
            [name, kind, key, _, _, view] if self.text(*name) == Some("storage") => (kind, key, Some(*view)),
            _ => return None,
        };
        let offset = match self.sequence(view.unwrap_or(Value::None)) {
            Some([_, Value::Int(offset), _]) => *offset,
            _ => 0,
        };
        Some(Storage {
            kind: self.global(*kind)?,
            key: self.text(*key)?,
            offset,
        })
    }
}

/// Returns the type of a storage's elements, by its class.
pub(super) fn storage_type(class: &str) -> Option<Dtype> {
    Some(match class.strip_prefix("torch.")?.strip_suffix("Storage")? {
        "Double" => Dtype::F64,
        "Float" => Dtype::F32,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::BOOL,
        _ => return None,
    })
}
