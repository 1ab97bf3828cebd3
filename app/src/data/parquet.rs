//! Reads records of Parquet files as written by Hugging Face's `datasets`, pandas and polars.

use std::fs::File;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::data_type::AsBytes;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Number, Value};

use super::DataError;
use super::record::{ClassNames, Record};

/// Fields of an image in a file of `datasets`: its bytes, or its path.
const IMAGE_FIELDS: [&str; 2] = ["bytes", "path"];

/// Metadata key under which `datasets` describes the columns.
const DESCRIPTION: &str = "huggingface";

/// Calls `visit` with each row, until it breaks or the file ends.
///
/// # Errors
/// [`DataError::Parquet`] for a damaged file, [`DataError::ParquetCompression`] for an unsupported compression; errors
/// of `visit`.
pub(super) fn each(
    file: File,
    visit: &mut impl FnMut(Record) -> Result<ControlFlow<()>, DataError>,
) -> Result<ControlFlow<()>, DataError> {
    let reader = SerializedFileReader::new(file)?;
    check_compression(reader.metadata())?;
    let class_names = Arc::new(class_names(&reader));
    for (line, row) in (1..).zip(reader) {
        let mut record = Record {
            line,
            values: Map::new(),
            files: Vec::new(),
            class_names: Arc::clone(&class_names),
        };
        for (column, field) in row
            .map_err(|error| DataError::from(error).at(line))?
            .into_columns()
        {
            let value = match image(&field) {
                Some((path, bytes)) => {
                    record.files.extend(bytes.map(|bytes| (column.clone(), bytes)));
                    path
                }
                None => json(&field),
            };
            record.values.insert(column, value);
        }
        if visit(record)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Checks that the compression of a file is supported.
fn check_compression(metadata: &ParquetMetaData) -> Result<(), DataError> {
    let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let mut methods = columns.map(ColumnChunkMetaData::compression);
    let unread = methods.find(|method| matches!(method, Compression::BROTLI(_) | Compression::LZO));
    unread.map_or(Ok(()), |method| {
        Err(DataError::ParquetCompression {
            method: if method == Compression::LZO {
                "LZO"
            } else {
                "Brotli"
            },
        })
    })
}

/// Returns the class names by column, as stated by `datasets`; empty if the file states none.
fn class_names(reader: &SerializedFileReader<File>) -> ClassNames {
    let metadata = reader.metadata().file_metadata().key_value_metadata();
    let described = metadata
        .into_iter()
        .flatten()
        .find(|pair| pair.key == DESCRIPTION);
    let described = described.and_then(|pair| serde_json::from_str::<Value>(pair.value.as_deref()?).ok());
    let features = described
        .as_ref()
        .and_then(|value| value.get("info")?.get("features")?.as_object());
    let named = features.into_iter().flatten().filter_map(|(column, feature)| {
        let names = names_of(feature)?
            .iter()
            .map(|name| name.as_str().map(str::to_owned));
        Some((column.clone(), names.collect::<Option<Vec<_>>>()?))
    });
    named.collect()
}

/// Returns the names of a `ClassLabel`, also inside a list: `Sequence` or `List` with a `feature`, or a plain list in
/// older files.
fn names_of(feature: &Value) -> Option<&Vec<Value>> {
    match feature {
        Value::Array(of) => names_of(of.first()?),
        _ if feature.get("_type")? == "ClassLabel" => feature.get("names")?.as_array(),
        _ => names_of(feature.get("feature")?),
    }
}

/// Returns path and bytes of an image. Bytes without a path that are UTF-8 are also returned as a text, because some
/// programs write texts so.
fn image(field: &Field) -> Option<(Value, Option<Bytes>)> {
    let Field::Group(row) = field else {
        return match field {
            Field::Bytes(bytes) => {
                let bytes = Bytes::from(bytes.as_bytes().to_vec());
                let text = std::str::from_utf8(&bytes).map_or_else(|_| no_text(), Value::from);
                Some((text, Some(bytes)))
            }
            _ => None,
        };
    };
    let of = |name: &str| {
        let mut columns = row.get_column_iter();
        columns
            .find(|(column, _)| *column == name)
            .map(|(_, field)| field)
    };
    let [bytes, path] = IMAGE_FIELDS.map(of);
    let bytes = match bytes? {
        Field::Bytes(bytes) => Some(bytes.as_bytes().to_vec().into()),
        _ => None,
    };
    match path? {
        Field::Str(path) => Some((Value::from(path.as_str()), bytes)),
        _ => Some((no_text(), bytes)),
    }
}

/// Returns a value that is present, unlike `null`, but is neither a text nor a label.
fn no_text() -> Value {
    Value::Object(Map::new())
}

/// Converts a field to the value that JSON lines would contain.
fn json(field: &Field) -> Value {
    let float = |value: f64| Number::from_f64(value).map_or(Value::Null, Value::Number);
    match field {
        Field::Bool(value) => Value::from(*value),
        Field::Byte(value) => Value::from(*value),
        Field::Short(value) => Value::from(*value),
        Field::Int(value) => Value::from(*value),
        Field::Long(value) => Value::from(*value),
        Field::UByte(value) => Value::from(*value),
        Field::UShort(value) => Value::from(*value),
        Field::UInt(value) => Value::from(*value),
        Field::ULong(value) => Value::from(*value),
        Field::Float(value) => float(f64::from(*value)),
        Field::Double(value) => float(*value),
        Field::Str(text) => Value::from(text.as_str()),
        Field::Group(row) => object(row),
        Field::ListInternal(list) => list.elements().iter().map(json).collect(),
        Field::Null => Value::Null,
        other => Value::from(other.to_string()),
    }
}

fn object(row: &Row) -> Value {
    let fields = row.get_column_iter();
    Value::Object(fields.map(|(name, field)| (name.clone(), json(field))).collect())
}
