//! Reads records with named columns one by one: JSON lines, CSV, TSV, Parquet.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::ops::ControlFlow;
use std::path::Path;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::record::Record;
use super::{DataError, parquet};
use crate::config::records::Format;

/// Longest line of a JSON file, bytes. A longer line is not a record, and would be held in memory as a whole.
const MAX_LINE: u64 = 16 << 20;

/// Longest header of a CSV or TSV file in which the separator is searched, bytes.
const MAX_HEADER: u64 = 1 << 16;

/// First bytes of a file that is compressed by gzip.
pub(super) const GZIP: &[u8] = b"\x1f\x8b";

/// Separators tried if the header of a CSV file has no comma: spreadsheets write semicolons where the comma is the
/// decimal mark.
const OTHER_SEPARATORS: [u8; 3] = [b';', b'\t', b'|'];

/// Returns the column with this name, or the only one whose name differs from it only in case: `Text`.
pub(super) fn column<'a>(values: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    if let Some((exact, _)) = values.get_key_value(name) {
        return Some(exact);
    }
    let mut alike = values.keys().filter(|key| key.eq_ignore_ascii_case(name));
    match (alike.next(), alike.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// Calls `visit` with each record, until it breaks or the file ends.
///
/// # Errors
/// [`DataError`] of the file, with the line, or of `visit`.
pub(super) fn each(
    path: &Path,
    mut visit: impl FnMut(Record) -> Result<ControlFlow<()>, DataError>,
) -> Result<ControlFlow<()>, DataError> {
    let (format, compressed) = Format::of(path)?;
    let file = File::open(path)?;
    let separator = match format {
        Format::Parquet => return parquet::each(file, &mut visit),
        Format::JsonLines => None,
        Format::Separated(separator) => Some(separator),
    };
    let mut file = BufReader::new(file);
    match (file.fill_buf()?.starts_with(GZIP), compressed) {
        (true, false) => return Err(DataError::Gzip),
        (false, true) => return Err(DataError::NotGzip),
        _ => {}
    }
    let mut reader: Box<dyn Read> = if compressed {
        Box::new(flate2::read::MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    };
    let mut head = Vec::new();
    reader.by_ref().take(MAX_HEADER).read_to_end(&mut head)?;
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(DataError::Utf16);
    }
    match separator {
        None => json_lines(BufReader::new(Cursor::new(head).chain(reader)), &mut visit),
        Some(usual) => {
            let separator = separator_of(&head, usual);
            separated(Cursor::new(head).chain(reader), separator, &mut visit)
        }
    }
}

/// Returns the column separator: `usual`, or another one if the header contains that instead.
fn separator_of(head: &[u8], usual: u8) -> u8 {
    let end = head.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    let header = head.get(..end.unwrap_or(head.len())).unwrap_or_default();
    if usual != b',' || header.contains(&usual) {
        return usual;
    }
    let mut others = OTHER_SEPARATORS.into_iter();
    others.find(|other| header.contains(other)).unwrap_or(usual)
}

/// Converts an error of reading CSV or TSV.
fn malformed(error: csv::Error) -> DataError {
    match error.kind() {
        csv::ErrorKind::Utf8 { .. } => DataError::NotUtf8,
        _ => DataError::Csv(error),
    }
}

/// Converts an error of reading a CSV or TSV record, as far as the record was read.
fn malformed_record(error: csv::Error, record: &csv::StringRecord) -> DataError {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => DataError::UnequalColumns {
            found: *len,
            expected: *expected_len,
            lines: line_ends(record),
        },
        _ => malformed(error),
    }
}

/// Returns the number of line breaks in the texts of a record.
fn line_ends(record: &csv::StringRecord) -> usize {
    record.iter().map(|value| value.matches('\n').count()).sum()
}

fn json_lines(
    mut reader: impl BufRead,
    visit: &mut impl FnMut(Record) -> Result<ControlFlow<()>, DataError>,
) -> Result<ControlFlow<()>, DataError> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut text)?;
        if text.is_empty() {
            break;
        }
        if text.len() as u64 == MAX_LINE {
            return Err(DataError::LongLine.at(line));
        }
        let json = if line == 1 {
            text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text)
        } else {
            &text
        };
        if json.trim_ascii().is_empty() {
            continue;
        }
        let values = match serde_json::from_slice(json) {
            Ok(UniqueKeys(values)) => values,
            Err(error) => return Err(no_record(json, error, line == 1).at(line)),
        };
        if visit(Record::from_values(line, values))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Names what is wrong with a line that is not a record.
fn no_record(json: &[u8], error: serde_json::Error, is_first: bool) -> DataError {
    match serde_json::from_slice::<Value>(json) {
        // A key is repeated.
        Ok(Value::Object(_)) => DataError::Json(error),
        Ok(_) => DataError::NoObject,
        // The beginning of an array or of an object over several lines.
        Err(error) if error.is_eof() && is_first => DataError::NoObject,
        Err(_) if std::str::from_utf8(json).is_err() => DataError::NotUtf8,
        Err(error) => DataError::Json(error),
    }
}

/// A JSON object without repeated keys, of which one would silently replace the other.
struct UniqueKeys(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = UniqueKeys;

            fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
                text.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<UniqueKeys, A::Error> {
                let mut values = Map::new();
                while let Some((key, value)) = access.next_entry::<String, Value>()? {
                    if values.contains_key(&key) {
                        return Err(A::Error::custom(format!("the key `{key}` is repeated")));
                    }
                    values.insert(key, value);
                }
                Ok(UniqueKeys(values))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

fn separated(
    reader: impl Read,
    separator: u8,
    visit: &mut impl FnMut(Record) -> Result<ControlFlow<()>, DataError>,
) -> Result<ControlFlow<()>, DataError> {
    let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(reader);
    let header: Vec<String> = reader
        .headers()
        .map_err(|error| malformed(error).at(1))?
        .iter()
        .map(|name| name.trim_start_matches('\u{feff}').trim().to_owned())
        .collect();
    let mut record = csv::StringRecord::new();
    // With `\r\n`, the reader counts a line end only when it reads the next line.
    let late = u64::from(reader.position().line() == 1);
    let line_at = |line: u64| usize::try_from(line + late).unwrap_or(usize::MAX);
    loop {
        let before = line_at(reader.position().line());
        let read = reader.read_record(&mut record);
        if !read.map_err(|error| malformed_record(error, &record).at(before))? {
            return Ok(ControlFlow::Continue(()));
        }
        let line = record
            .position()
            .map_or(before, |position| line_at(position.line()));
        // Many TSV files do not quote: there, a quotation mark that begins a text is part of it, and the next one may
        // be lines away.
        let lines = line_ends(&record);
        if separator == b'\t' && lines > 0 {
            return Err(DataError::OpenQuote { lines }.at(line));
        }
        let values = header
            .iter()
            .cloned()
            .zip(record.iter().map(Value::from))
            .collect();
        if visit(Record::from_values(line, values))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::report::in_one_line;

    type Line = (usize, Map<String, Value>);

    fn read(name: &str, content: &[u8]) -> Result<Vec<Line>, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let mut records = Vec::new();
        let _ = each(&path, |record| {
            records.push((record.line, record.values));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(records)
    }

    #[test]
    fn quoted_columns_hold_separators_and_line_ends() {
        let csv = "\u{feff}text,label\r\n\"a, \"\"b\"\"\nc\",1\r\nd,2\r\n";
        let records = read("a.csv", csv.as_bytes()).unwrap();
        assert_eq!(records[0].1["text"], "a, \"b\"\nc");
        assert_eq!(records[1].1["text"], "d");
        assert_eq!((records[0].0, records[1].0), (2, 4));
        let tsv = read("a.TSV", b"text\tlabel\na, b\t0\n").unwrap();
        assert_eq!(tsv[0].1["text"], "a, b");
    }

    #[test]
    fn a_spreadsheet_separates_columns_as_its_country_does() {
        for separator in [";", "\t", "|"] {
            let csv =
                format!("text{separator}label\r\na, b{separator}0\r\n\"c{separator}\nd\"{separator}1\r\n");
            let csv = if separator == "\t" {
                csv.replace("\t\n", " ")
            } else {
                csv
            };
            let records = read("a.csv", csv.as_bytes()).unwrap();
            assert_eq!(
                (&records[0].1["text"], &records[0].1["label"]),
                (&"a, b".into(), &"0".into())
            );
            assert_eq!(records[1].1["label"], "1", "{separator}");
        }
        // A comma in the header decides, whatever else a name contains.
        let records = read("a.csv", b"text;long,label\na;b,0\n").unwrap();
        assert_eq!(records[0].1["text;long"], "a;b");
        // A header without records, and a file without a final line break.
        assert_eq!(read("a.csv", b"text;label").unwrap(), []);
    }

    #[test]
    fn another_encoding_is_named() {
        let utf16: Vec<u8> = "\u{feff}text,label\na,0\n"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        for (name, content, message) in [
            (
                "a.csv",
                &b"text,label\na,0\ncaf\xe9,1\n"[..],
                "line 3: it is not UTF-8",
            ),
            ("a.csv", b"t\xe9xt,label\na,0\n", "line 1: it is not UTF-8"),
            (
                "a.jsonl",
                b"{\"a\": 1}\n{\"a\": \"caf\xe9\"}\n",
                "line 2: it is not UTF-8",
            ),
            ("a.csv", &utf16, "UTF-16"),
            ("a.jsonl", &utf16, "UTF-16"),
        ] {
            let error = in_one_line(&read(name, content).unwrap_err());
            assert!(
                error.contains(message) && error.contains("iconv"),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn compressed_lines_are_read() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"{\"text\": \"a\"}\n\n{\"text\": \"b\"}").unwrap();
        let records = read("a.jsonl.gz", &gzip.finish().unwrap()).unwrap();
        assert_eq!(records.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (name, content, message) in [
            ("a.jsonl", &b"{\"a\": 1}\n{\"a\": }\n"[..], "line 2"),
            (
                "a.jsonl",
                b"{\"a\": 1}\n{\"a\": }\n",
                "line 2: it is not valid JSON: expected value at column 7",
            ),
            (
                "a.jsonl",
                b"{\"a\": \"b\n",
                "found while parsing a string at its end",
            ),
            ("a.json", b"[\n{\"a\": 1}]", "one JSON object per line"),
            (
                "a.jsonl",
                b"{\"a\": 1}\n{\"a\": 1, \"b\": {}, \"a\": 2}\n",
                "line 2: it is not valid JSON: the key `a` is repeated",
            ),
            ("a.csv", b"\x1f\x8b\x08", "add `.gz` to its name"),
            ("a.jsonl.gz", b"{\"a\": 1}\n", "although its name ends in `.gz`"),
            ("a.jsonl", b"{\n\"a\": 1}", "one JSON object per line"),
            (
                "a.csv",
                b"a,b\n1,2\n3\n",
                "line 3: the number of its columns is 1, that of the header 2",
            ),
            (
                "a.csv",
                b"text,label\n\"good,1\nbad,0\n",
                "goes on for 3 lines, because a quotation mark begins it",
            ),
            ("a.csv", b"a,b\n1,\xff\n", "line 2"),
            // Regression: three samples of a file without quoting were read as one.
            (
                "a.tsv",
                b"text\tlabel\n\"good\t1\nbad\t0\n\"nice one\t1\n",
                "line 2: a text begins with a quotation mark that ends 2 lines later",
            ),
            // A header was added as the error for a missing one says, with a comma.
            (
                "a.tsv",
                b"text,label\na nice film\tpositive\n",
                "the header names one column; separate its names as the values are",
            ),
            ("a.parquet", b"PAR1", "not a valid Parquet file"),
            ("a.arrow", b"ARROW1", "to_parquet"),
            ("a.xlsx", b"", ".jsonl"),
        ] {
            let error = in_one_line(&read(name, content).unwrap_err());
            assert!(error.contains(message), "{name}: {error}");
        }
    }

    #[test]
    fn reading_ends_when_the_visitor_has_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, "{\"a\": 1}\n{\"a\": 2}\nnot read\n").unwrap();
        let mut seen = 0;
        let ended = each(&path, |_| {
            seen += 1;
            Ok(if seen == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        });
        assert!(ended.unwrap().is_break());
    }
}
