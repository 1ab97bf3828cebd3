//! Values in chat templates as Python prints them, and methods of Python's strings that minijinja lacks.

use std::fmt::Write as _;

use minijinja::value::{Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use minijinja_contrib::pycompat;

/// Maximum nesting of a printed value.
const MAX_DEPTH: usize = 64;
/// Maximum width to which a text is padded.
const MAX_WIDTH: usize = 1 << 16;

/// Makes an environment print values, and convert them to texts, as Python does.
pub(super) fn imitate(environment: &mut Environment<'_>) {
    environment.set_formatter(print);
    environment.set_unknown_method_callback(method);
    environment.add_filter("string", |value: Value| text(&value));
    environment.add_filter("replace", replaced);
}

fn print(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable | ValueKind::Number => {
            out.write_str(&text(value)?).map_err(Error::from)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// Returns `str(value)`.
fn text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    write(&mut out, value, 0)?;
    Ok(out)
}

/// Writes `repr(value)`.
fn write(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value with more than {MAX_DEPTH} levels cannot be printed"),
        ));
    }
    match value.kind() {
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Map => {
            out.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                write(out, &key, depth + 1)?;
                out.push_str(": ");
                write(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (place, item) in value.try_iter()?.enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                write(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Writes a text in quotes: single ones, unless it has those and no double ones.
fn write_text(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter if letter == quote => out.extend(['\\', letter]),
            // A `String` takes all that is written.
            letter if letter.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push(quote);
}

/// Returns a float as Python prints it: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}

/// The filter `replace`, with the maximum number of replacements that Jinja's takes.
fn replaced(text: &Value, old: &str, new: &str, count: Option<usize>) -> Result<String, Error> {
    let text = self::text(text)?;
    Ok(match count {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

fn method(state: &State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, arguments);
    };
    match name {
        "center" | "ljust" | "rjust" | "zfill" => padded(text, name, arguments).map(Value::from),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// Returns a text padded to a width in characters.
fn padded(text: &str, name: &str, arguments: &[Value]) -> Result<String, Error> {
    let (width, rest): (usize, Rest<String>) = from_args(arguments)?;
    if width > MAX_WIDTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a text can be padded to at most {MAX_WIDTH} characters"),
        ));
    }
    let missing = width.saturating_sub(text.chars().count());
    if name == "zfill" {
        let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
        return Ok(format!("{sign}{}{digits}", "0".repeat(missing)));
    }
    let fill = rest.first().map_or(" ", String::as_str);
    if fill.chars().count() != 1 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the text that pads another one has exactly one character",
        ));
    }
    let before = match name {
        "ljust" => 0,
        "rjust" => missing,
        // As in CPython: the larger part is on the left if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(format!(
        "{}{text}{}",
        fill.repeat(before),
        fill.repeat(missing - before)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> Result<String, Error> {
        let mut environment = Environment::new();
        imitate(&mut environment);
        environment.render_str(template, ())
    }

    #[test]
    fn an_undefined_value_is_an_empty_text() {
        assert_eq!(
            rendered("[{{ nothing | string }}{{ nothing | replace('a', 'b') }}{{ nothing }}]").unwrap(),
            "[]"
        );
    }

    /// A long text that pads could take any amount of memory.
    #[test]
    fn padding_is_bounded() {
        assert_eq!(rendered("{{ 'a'.center(5, '-') }}").unwrap(), "--a--");
        for template in [
            "{{ 'a'.ljust(9, 'xy') }}",
            "{{ 'a'.rjust(9, '') }}",
            "{{ 'a'.ljust(99999999) }}",
        ] {
            assert!(rendered(template).is_err(), "{template}");
        }
    }
}
