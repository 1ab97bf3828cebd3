//! Fields of JSON bodies. Of a request, null is read like a missing field, and an error names the field that is wrong.

use kaskade_actors::{Code, Fault};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::http::failure::Failure;

/// Largest body in which the wrong field is searched, bytes: it is read once for each field.
const MAX_SEARCHED: usize = 64 << 10;

/// Most JSON values of a body. A value of two bytes, in a field that is unknown, takes a hundred bytes while the body is read.
const MAX_VALUES: usize = 4 << 20;

/// Most fields that are searched.
const MAX_FIELDS: usize = 64;

/// Sets a field of an object.
pub(crate) fn set_field(object: &mut Value, name: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}

/// Reads null like a missing field: many clients write every field that they know.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a JSON body.
///
/// # Errors
/// `KSK0002` for too many values, `KSK0001`, with the name of the field that is missing or has an invalid value, if one alone is wrong.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    if body.len() > MAX_VALUES && values(body) > MAX_VALUES {
        let message = format!("the body has more than {MAX_VALUES} JSON values; send several requests");
        return Err(Fault::new(Code::TooLarge, message).into());
    }
    serde_json::from_slice(body).map_err(|error| match wrong_field::<T>(body) {
        Some((field, reason)) => Failure::param(field.clone(), format!("the field `{field}` {reason}")),
        None if body.is_empty() => Failure::malformed("the body is empty; send a JSON object"),
        None => Failure::malformed(format!("the body is not valid: {}", in_words(&error.to_string()))),
    })
}

/// Returns the number of values and names of a JSON text, one by one more than its separators.
fn values(body: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in body {
        if in_text {
            in_text = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        in_text = *byte == b'"';
        count += usize::from(matches!(byte, b',' | b':' | b'[' | b'{'));
    }
    count
}

/// Returns the one field of an object that is wrong, and what is wrong with it. The structures that bodies are read into flatten
/// others, whose errors name no field: without the wrong field, the object can be read.
fn wrong_field<T: DeserializeOwned>(body: &[u8]) -> Option<(String, String)> {
    if body.len() > MAX_SEARCHED {
        return None;
    }
    let mut object: Value = serde_json::from_slice(body).ok()?;
    let reason = T::deserialize(&object).err()?.to_string();
    if let Some(name) = missing(&reason) {
        // It may be missing in a structure below; then the object does not know its name.
        let mut with = object.clone();
        with.as_object_mut()?.insert(name.to_owned(), Value::Null);
        if T::deserialize(&with)
            .err()
            .is_none_or(|error| error.to_string() != reason)
        {
            return Some((name.to_owned(), "is missing".to_owned()));
        }
    }
    let names: Vec<String> = object.as_object()?.keys().take(MAX_FIELDS).cloned().collect();
    let mut required = Vec::new();
    for name in names {
        let value = object.as_object_mut()?.remove(&name)?;
        match T::deserialize(&object) {
            Ok(_) => return Some((name, invalid(&reason))),
            Err(error) if missing(&error.to_string()) == Some(&name) => {
                required.push((name.clone(), value.clone()));
            }
            Err(_) => {}
        }
        object.as_object_mut()?.insert(name, value);
    }
    // A field that the object must have is wrong if the object with it alone is.
    let [(name, value)] = <[_; 1]>::try_from(required).ok()?;
    let alone = Value::Object([(name.clone(), value)].into_iter().collect());
    let fails = T::deserialize(&alone).err()?.to_string() == reason;
    fails.then(|| (name, invalid(&reason)))
}

fn invalid(reason: &str) -> String {
    format!("is not valid: {}", in_words(reason))
}

/// Returns a message of serde with the names of JSON's types in place of Rust's.
fn in_words(reason: &str) -> String {
    const WORDS: [(&str, &str); 16] = [
        ("expected f32", "expected a number"),
        ("expected f64", "expected a number"),
        ("expected u8", "expected a whole number"),
        ("expected u16", "expected a whole number"),
        ("expected u32", "expected a whole number of at least 0"),
        ("expected u64", "expected a whole number of at least 0"),
        ("expected usize", "expected a whole number of at least 0"),
        ("expected i32", "expected a whole number"),
        ("expected i64", "expected a whole number"),
        ("expected a nonzero usize", "expected a whole number above 0"),
        ("expected a nonzero u32", "expected a whole number above 0"),
        ("expected a nonzero u64", "expected a whole number above 0"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
        ("invalid type: sequence", "invalid type: list"),
        ("invalid type: map", "invalid type: object"),
    ];
    let replace = |text: String, (rust, word): (&str, &str)| text.replace(rust, word);
    let reason = without_struct_names(reason);
    WORDS.into_iter().fold(reason, replace)
}

/// Returns a message of serde without the names of structures.
fn without_struct_names(reason: &str) -> String {
    const STRUCT: &str = "expected struct ";
    let Some((before, behind)) = reason.split_once(STRUCT) else {
        return reason.to_owned();
    };
    let name = behind.find(|letter: char| !letter.is_alphanumeric());
    let rest = name.and_then(|end| behind.get(end..)).unwrap_or_default();
    format!("{before}expected an object{rest}")
}

/// Returns the field that serde's message says is missing.
fn missing(reason: &str) -> Option<&str> {
    reason.strip_prefix("missing field `")?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_too_many_values_are_refused_before_they_are_read() {
        let body = |count: usize| format!(r#"{{"x":[{}0]}}"#, "0,".repeat(count)).into_bytes();
        let refused = read::<Inner>(&body(MAX_VALUES)).unwrap_err();
        assert_eq!((refused.code, refused.status.as_u16()), ("KSK0002", 413));
        assert!(read::<Inner>(&body(1_000)).is_ok());
        assert_eq!(values(br#"{"a,:[{": [1, "\"]}"#), 5);
    }

    #[derive(Deserialize, Debug)]
    struct Inner {
        #[serde(default)]
        #[expect(dead_code, reason = "only reading it is tested")]
        heat: Option<f32>,
        #[serde(default, deserialize_with = "or_default")]
        names: Vec<String>,
        #[serde(default)]
        #[expect(dead_code, reason = "only reading it is tested")]
        places: Vec<Place>,
    }

    #[derive(Deserialize, Debug)]
    struct Place {
        #[expect(dead_code, reason = "only reading it is tested")]
        x: u32,
    }

    #[derive(Deserialize)]
    struct Outer {
        #[expect(dead_code, reason = "only reading it is tested")]
        text: String,
        #[serde(flatten)]
        inner: Inner,
    }

    #[test]
    fn the_wrong_field_is_named_also_in_a_flattened_structure() {
        let param = |body: &str| {
            read::<Outer>(body.as_bytes())
                .err()
                .and_then(|failure| failure.param)
        };
        for (body, field) in [
            (r#"{"text": "a", "heat": "hot", "other": 1}"#, Some("heat")),
            (r#"{"text": 5, "heat": 1}"#, Some("text")),
            (r#"{"heat": 1}"#, Some("text")),
            (r#"{"text": "a", "places": [{"x": 1}, {}]}"#, Some("places")),
            (r#"{"text": "a", "names": [1]}"#, Some("names")),
            // Two are wrong.
            (r#"{"text": "a", "heat": "hot", "names": [1]}"#, None),
            ("[]", None),
            (r#"{"text": "#, None),
        ] {
            assert_eq!(param(body).as_deref(), field, "{body}");
        }
        let failure = read::<Outer>(br#"{"text": "a", "heat": "hot"}"#).err().unwrap();
        assert!(
            failure.message.contains("`heat`") && failure.message.contains("hot"),
            "{failure}"
        );
    }

    #[test]
    fn errors_have_the_words_of_json() {
        #[derive(Deserialize, Debug)]
        struct Sized {
            #[serde(default)]
            #[expect(dead_code, reason = "only reading it is tested")]
            size: Option<std::num::NonZeroUsize>,
        }
        let message = read::<Outer>(br#"{"text": "a", "heat": "hot"}"#)
            .err()
            .unwrap()
            .message;
        assert!(
            message.ends_with("invalid type: string \"hot\", expected a number"),
            "{message}"
        );
        let message = read::<Sized>(br#"{"size": 0}"#).unwrap_err().message;
        assert!(message.contains("expected a whole number above 0"), "{message}");
        let message = read::<Outer>(br#"{"text": {}}"#).err().unwrap().message;
        assert!(message.contains("invalid type: object"), "{message}");
        assert!(read::<Sized>(b"").unwrap_err().message.contains("is empty"));
        let message = read::<Sized>(b"7").unwrap_err().message;
        assert!(message.contains("expected an object at line"), "{message}");
    }

    #[test]
    fn null_is_read_like_a_missing_field() {
        let read: Outer = serde_json::from_str(r#"{"text": "a", "heat": null, "names": null}"#).unwrap();
        assert!(read.inner.names.is_empty());
    }
}
