//! Reads information from an ONNX file that ONNX Runtime does not provide: number and size of the weights, values
//! computed by softmax nodes, and class names of classifiers. Reads the protocol buffers without the data of the
//! weights.
//!
//! Fields (onnx.proto): `ModelProto.graph` = 7; of a `GraphProto` `node` = 1, `initializer` = 5 and `input` = 11, a
//! `ValueInfoProto` with `name` = 1; of a `NodeProto`
//! `output` = 2, `op_type` = 4 and `attribute` = 5; of an `AttributeProto` `name` = 1, `ints` = 8 and `strings` = 9;
//! of a `TensorProto` `dims` = 1 and `data_type` = 2.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::checkpoint::{LoadError, WeightTotals};

const GRAPH: u64 = 7;
const NODE: u64 = 1;
const INITIALIZER: u64 = 5;
const INPUT: u64 = 11;
const INPUT_NAME: u64 = 1;
const OUTPUT: u64 = 2;
const OP_TYPE: u64 = 4;
const ATTRIBUTE: u64 = 5;
const ATTRIBUTE_NAME: u64 = 1;
const INTS: u64 = 8;
const STRINGS: u64 = 9;
const DIMS: u64 = 1;
const DATA_TYPE: u64 = 2;
/// Maximum length of a value or operator name, bytes; longer names are skipped.
const MAX_NAME_BYTES: u64 = 1 << 12;

/// Attributes of `ai.onnx.ml` operators that contain class names.
const CLASSES: [&str; 3] = ["classlabels_strings", "classlabels_int64s", "classlabels_ints"];
/// Maximum number of classes that are read.
const MAX_CLASSES: usize = 1 << 16;

/// Information about the graph of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Totals of the weights, including those in external data files.
    pub totals: WeightTotals,
    /// Names of the values computed by `Softmax` nodes.
    pub softmax: Vec<String>,
    /// Names of the inputs; in old files also those of the weights.
    pub inputs: Vec<String>,
    /// Class names, from the first classifier node that lists any.
    pub classes: Vec<String>,
}

/// Reads the information about the graph of a file.
///
/// # Errors
/// [`LoadError::Io`] if the file cannot be read, [`LoadError::BadOnnx`] if it is not a model.
pub(super) fn contents(file: &Path) -> Result<Contents, LoadError> {
    let unreadable = |source| LoadError::Io {
        path: file.to_owned(),
        source,
    };
    let opened = File::open(file).map_err(unreadable)?;
    let length = opened.metadata().map_err(unreadable)?.len();
    match read(BufReader::new(opened), length) {
        Ok(Some(contents)) => Ok(contents),
        Ok(None) => Err(LoadError::bad_onnx(file, "it has no graph")),
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
            Err(LoadError::bad_onnx(file, error.to_string()))
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// Reads a model of `length` bytes; `None` if it has no graph.
fn read(input: BufReader<impl Read + Seek>, length: u64) -> io::Result<Option<Contents>> {
    let mut fields = Fields { input, at: 0 };
    let mut contents = None;
    while let Some((number, value)) = fields.next(length)? {
        match value {
            Value::Nested(end) if number == GRAPH => contents = Some(fields.graph(end)?),
            value => fields.skip(value)?,
        }
    }
    Ok(contents)
}

/// Reader for the fields of a protocol buffer message.
struct Fields<R> {
    input: BufReader<R>,
    /// Position in the file, bytes.
    at: u64,
}

/// Value of a field.
#[derive(Clone, Copy)]
enum Value {
    Number(u64),
    /// Length-delimited bytes that end at this position.
    Nested(u64),
}

impl<R: Read + Seek> Fields<R> {
    /// Returns the next field of a message that ends at `end`; `None` at the end.
    fn next(&mut self, end: u64) -> io::Result<Option<(u64, Value)>> {
        if self.at >= end {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.bytes(8, end)?,
            2 => {
                let length = self.varint()?;
                self.bytes(length, end)?
            }
            5 => self.bytes(4, end)?,
            _ => return Err(invalid("a field has an unknown wire type")),
        };
        Ok(Some((key >> 3, value)))
    }

    fn bytes(&self, length: u64, end: u64) -> io::Result<Value> {
        let until = self.at.checked_add(length).filter(|until| *until <= end);
        until
            .map(Value::Nested)
            .ok_or_else(|| invalid("a field is longer than its message"))
    }

    fn skip(&mut self, value: Value) -> io::Result<()> {
        let Value::Nested(end) = value else { return Ok(()) };
        match i64::try_from(end - self.at) {
            Ok(distance) => self.input.seek_relative(distance)?,
            Err(_) => {
                self.input.seek(SeekFrom::Start(end))?;
            }
        }
        self.at = end;
        Ok(())
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.input.read_exact(&mut byte)?;
            self.at += 1;
            let [byte] = byte;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(invalid("a number has more than ten bytes"))
    }

    fn graph(&mut self, end: u64) -> io::Result<Contents> {
        let mut contents = Contents::default();
        while let Some((number, value)) = self.next(end)? {
            match value {
                Value::Nested(end) if number == INITIALIZER => {
                    let (elements, bits) = self.tensor(end)?;
                    let totals = &mut contents.totals;
                    totals.parameters = totals.parameters.saturating_add(elements);
                    totals.bytes = totals
                        .bytes
                        .saturating_add(elements.saturating_mul(bits).div_ceil(8));
                }
                Value::Nested(end) if number == INPUT => {
                    let name = self.input_name(end)?;
                    contents.inputs.extend(name);
                }
                Value::Nested(end) if number == NODE => {
                    let classes = self.node(end, &mut contents.softmax)?;
                    if contents.classes.is_empty() {
                        contents.classes = classes;
                    }
                }
                value => self.skip(value)?,
            }
        }
        Ok(contents)
    }

    /// Returns the name of an input.
    fn input_name(&mut self, end: u64) -> io::Result<Option<String>> {
        let mut name = None;
        while let Some((number, value)) = self.next(end)? {
            match value {
                Value::Nested(end) if number == INPUT_NAME => name = self.text(end)?,
                value => self.skip(value)?,
            }
        }
        Ok(name)
    }

    /// Returns the class names that a node lists; adds the name of its output to `softmax` if it is a softmax.
    fn node(&mut self, end: u64, softmax: &mut Vec<String>) -> io::Result<Vec<String>> {
        let (mut output, mut is_softmax, mut classes) = (None, false, Vec::new());
        while let Some((number, value)) = self.next(end)? {
            match value {
                Value::Nested(end) if number == OUTPUT && output.is_none() => output = self.text(end)?,
                Value::Nested(end) if number == OP_TYPE => {
                    is_softmax = self.text(end)?.is_some_and(|operator| operator == "Softmax");
                }
                Value::Nested(end) if number == ATTRIBUTE => {
                    let named = self.classes(end)?;
                    if !named.is_empty() {
                        classes = named;
                    }
                }
                value => self.skip(value)?,
            }
        }
        softmax.extend(output.filter(|_| is_softmax));
        Ok(classes)
    }

    /// Returns the values of an attribute with class names; empty for other attributes.
    fn classes(&mut self, end: u64) -> io::Result<Vec<String>> {
        let (mut name, mut values) = (None, Vec::new());
        while let Some((number, value)) = self.next(end)? {
            let is_full = values.len() >= MAX_CLASSES;
            match (number, value) {
                (ATTRIBUTE_NAME, Value::Nested(end)) => name = self.text(end)?,
                (STRINGS, Value::Nested(end)) if !is_full => values.extend(self.text(end)?),
                (INTS, Value::Number(class)) if !is_full => values.push(class.cast_signed().to_string()),
                (INTS, Value::Nested(end)) if !is_full => {
                    while self.at < end && values.len() < MAX_CLASSES {
                        values.push(self.varint()?.cast_signed().to_string());
                    }
                    self.skip(Value::Nested(end.max(self.at)))?;
                }
                (_, value) => self.skip(value)?,
            }
        }
        let names_classes = name.is_some_and(|name| CLASSES.contains(&name.as_str()));
        // Consecutive numbers from 0 are not names.
        let is_numbered = values
            .iter()
            .enumerate()
            .all(|(class, value)| *value == class.to_string());
        Ok(values
            .into_iter()
            .filter(|_| names_classes && !is_numbered)
            .collect())
    }

    /// Reads a string up to `end`; `None` if it is too long or not UTF-8.
    fn text(&mut self, end: u64) -> io::Result<Option<String>> {
        let length = end - self.at;
        if length > MAX_NAME_BYTES {
            self.skip(Value::Nested(end))?;
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        self.input.read_exact(&mut bytes)?;
        self.at = end;
        Ok(String::from_utf8(bytes).ok())
    }

    /// Returns the number of elements of a tensor, and their total size, bits.
    fn tensor(&mut self, end: u64) -> io::Result<(u64, u64)> {
        let (mut elements, mut bits) = (1_u64, 0);
        while let Some((number, value)) = self.next(end)? {
            match (number, value) {
                (DIMS, Value::Number(extent)) => elements = elements.saturating_mul(extent),
                (DIMS, Value::Nested(end)) => {
                    while self.at < end {
                        elements = elements.saturating_mul(self.varint()?);
                    }
                }
                (DATA_TYPE, Value::Number(datatype)) => bits = bits_of(datatype),
                (_, value) => self.skip(value)?,
            }
        }
        Ok((elements, bits))
    }
}

/// Returns the size of an element by `TensorProto.DataType`, bits; 0 for strings and unknown types.
fn bits_of(datatype: u64) -> u64 {
    match datatype {
        2 | 3 | 9 | 17..=20 => 8,
        4 | 5 | 10 | 16 => 16,
        1 | 6 | 12 => 32,
        7 | 11 | 13 | 14 => 64,
        15 => 128,
        21..=23 => 4,
        _ => 0,
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn contents(bytes: &[u8]) -> io::Result<Option<Contents>> {
        read(BufReader::new(Cursor::new(bytes)), bytes.len() as u64)
    }

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, length], content].concat()
    }

    #[test]
    fn weights_of_both_dimension_encodings_are_contents() {
        // FP32 [2, 3] with packed dimensions, INT8 [5] with single ones, and a name that is skipped.
        let packed = [field(1, &[2, 3]), vec![2 << 3, 1], field(9, &[0; 24])].concat();
        let single = [vec![1 << 3, 5], vec![2 << 3, 3], field(8, b"name")].concat();
        let graph = [field(2, b"graph"), field(5, &packed), field(5, &single)].concat();
        let model = [vec![1 << 3, 10], field(7, &graph)].concat();
        let totals = contents(&model).unwrap().unwrap().totals;
        assert_eq!((totals.parameters, totals.bytes), (11, 29));
    }

    #[test]
    fn inputs_are_named() {
        let input = |name: &[u8]| field(11, &[field(1, name), field(2, b"type")].concat());
        let graph = [field(2, b"graph"), input(b"input_ids"), input(b"attention_mask")].concat();
        let inputs = contents(&field(7, &graph)).unwrap().unwrap().inputs;
        assert_eq!(inputs, ["input_ids", "attention_mask"]);
    }

    #[test]
    fn values_of_softmax_nodes_are_named() {
        let node = |output: &[u8], operator: &[u8]| {
            field(
                1,
                &[field(1, b"x"), field(2, output), field(4, operator)].concat(),
            )
        };
        let graph = [
            node(b"scores", b"MatMul"),
            node(b"p", b"Softmax"),
            field(1, &field(4, b"Softmax")),
        ];
        let model = field(7, &graph.concat());
        assert_eq!(contents(&model).unwrap().unwrap().softmax, ["p"]);
    }

    #[test]
    fn classes_are_those_that_a_node_lists() {
        let listed = |attribute: Vec<u8>| {
            let model = field(7, &field(1, &[field(2, b"label"), field(5, &attribute)].concat()));
            contents(&model).unwrap().unwrap().classes
        };
        let strings = [
            field(1, b"classlabels_strings"),
            field(9, b"no"),
            field(9, b"yes"),
        ];
        assert_eq!(listed(strings.concat()), ["no", "yes"]);
        let packed = [field(1, b"classlabels_ints"), field(8, &[3, 7])];
        assert_eq!(listed(packed.concat()), ["3", "7"]);
        let single = [field(1, b"classlabels_int64s"), vec![8 << 3, 0, 8 << 3, 1]];
        assert_eq!(listed(single.concat()), [] as [&str; 0], "numbers are no names");
        assert_eq!(
            listed([field(1, b"axes"), vec![8 << 3, 5]].concat()),
            [] as [&str; 0]
        );
    }

    #[test]
    fn what_is_no_model_is_refused() {
        assert!(contents(b"").unwrap().is_none());
        let too_long = contents(&[7 << 3 | 2, 100, 1]).unwrap_err();
        assert_eq!(too_long.kind(), ErrorKind::InvalidData);
        assert!(contents(&[0xff; 12]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_contents_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(contents(&bytes));
        }
    }
}
