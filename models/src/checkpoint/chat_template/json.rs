//! The `tojson` filter of chat templates, which formats JSON like Python's `json.dumps`.

use std::io::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Options, in the order of transformers' filter.
const OPTIONS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
/// Maximum indentation per level, which bounds the size of the result.
const MAX_INDENT: usize = 16;

/// Formats a value as JSON, without HTML escapes. Options, positional or named: `ensure_ascii`, `indent`, `separators`
/// and `sort_keys`, as in transformers.
///
/// # Errors
/// [`Error`] for an unknown option, an option of the wrong type, and a value that JSON cannot represent.
#[expect(clippy::needless_pass_by_value, reason = "the form of a filter with options")]
pub(super) fn to_json(value: &Value, places: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    if places.len() > OPTIONS.len() {
        return Err(Error::new(
            ErrorKind::TooManyArguments,
            "`tojson` has four options",
        ));
    }
    let option = |place: usize, name: &str| match places.get(place) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let stated = |(place, name): (usize, &&str)| {
        let stated = option(place, name)?;
        Ok::<_, Error>(stated.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let stated = OPTIONS.iter().enumerate().map(stated);
    let stated: Vec<Option<Value>> = stated.collect::<Result<_, _>>()?;
    options.assert_all_used()?;
    let [ascii, indent, separators, sorted] = stated.as_slice() else {
        return Ok(String::new());
    };
    let is_true = |option: &Option<Value>| option.as_ref().is_some_and(Value::is_true);
    let indent = indent.as_ref().map(indentation).transpose()?;
    let python = PythonJson {
        separators: match separators {
            Some(separators) => pair(separators)?,
            // As in Python, where lines do not end with a space.
            None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
            None => [", ".to_owned(), ": ".to_owned()],
        },
        ascii: is_true(ascii),
        indent,
        depth: 0,
        has_value: false,
    };
    let mut json = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut json, python);
    let written = if is_true(sorted) {
        serde_json::to_value(value).and_then(|mut value| {
            value.sort_all_objects();
            value.serialize(&mut serializer)
        })
    } else {
        value.serialize(&mut serializer)
    };
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(json).map_err(|error| failed(error.to_string()))
}

/// Reads `indent`: a number of spaces, or a string.
fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.chars().take(MAX_INDENT).collect());
    }
    let spaces = i64::try_from(indent.clone())?;
    Ok(" ".repeat(usize::try_from(spaces).unwrap_or_default().min(MAX_INDENT)))
}

/// Reads `separators`: the text between items, and the text after a key.
fn pair(separators: &Value) -> Result<[String; 2], Error> {
    let wrong = || Error::new(ErrorKind::InvalidOperation, "`separators` must be two texts");
    if separators.kind() != ValueKind::Seq {
        return Err(wrong());
    }
    let texts: Option<Vec<String>> = separators
        .try_iter()?
        .map(|text| text.as_str().map(str::to_owned))
        .collect();
    texts.and_then(|texts| texts.try_into().ok()).ok_or_else(wrong)
}

/// Formatter that writes JSON like Python's `json.dumps`.
struct PythonJson {
    separators: [String; 2],
    /// Whether non-ASCII characters are escaped.
    ascii: bool,
    /// Indentation per level; `None` for a single line.
    indent: Option<String>,
    depth: usize,
    /// Whether the innermost list or object contains a value.
    has_value: bool,
}

impl PythonJson {
    fn new_line<W: ?Sized + Write>(&self, writer: &mut W) -> std::io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if self.has_value {
            self.new_line(writer)?;
        }
        writer.write_all(bracket)
    }
}

impl Formatter for PythonJson {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if !first {
            writer.write_all(self.separators[0].as_bytes())?;
        }
        self.new_line(writer)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> std::io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(self.separators[1].as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> std::io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> std::io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> std::io::Result<()> {
        if !self.ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for letter in fragment.chars() {
            if matches!(letter, ' '..='~') {
                write!(writer, "{letter}")?;
                continue;
            }
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// Formats a number like Python: in exponent notation with at least two digits below 1e-4 and from 1e16.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
