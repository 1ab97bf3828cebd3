//! A record of a data set: its values by column, and the names of the classes that its numbers stand for.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

/// A record of a data set.
pub(super) struct Record {
    /// Line of the record in the file, from 1; in a Parquet file, its row.
    pub(super) line: usize,
    /// Values by column; texts in CSV.
    pub(super) values: Map<String, Value>,
    /// Embedded files by column; `values` has their paths.
    pub(super) files: Vec<(String, Bytes)>,
    /// Class names by column, for columns of class numbers, as stated in the file.
    pub(super) class_names: Arc<ClassNames>,
}

/// Class names, by the column with the class numbers.
pub(super) type ClassNames = BTreeMap<String, Vec<String>>;

impl Record {
    pub(super) fn from_values(line: usize, values: Map<String, Value>) -> Self {
        Self {
            line,
            values,
            files: Vec::new(),
            class_names: Arc::default(),
        }
    }

    /// Replaces class numbers in these columns, also in lists, by class names.
    pub(super) fn name_classes(&mut self, columns: &[String]) {
        for column in columns {
            if let (Some(value), Some(names)) = (self.values.get_mut(column), self.class_names.get(column)) {
                name_classes(value, names);
            }
        }
    }

    /// Returns the embedded file of a column.
    pub(super) fn file(&self, column: &str) -> Option<&Bytes> {
        let found = self.files.iter().find(|(name, _)| name == column);
        found.map(|(_, bytes)| bytes)
    }
}

/// Replaces class numbers by names; other numbers, such as -1, stay.
fn name_classes(value: &mut Value, names: &[String]) {
    match value {
        Value::Array(listed) => listed.iter_mut().for_each(|value| name_classes(value, names)),
        Value::Number(number) => {
            let class = number.as_u64().and_then(|class| usize::try_from(class).ok());
            if let Some(name) = class.and_then(|class| names.get(class)) {
                *value = Value::from(name.as_str());
            }
        }
        _ => {}
    }
}
