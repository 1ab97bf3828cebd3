//! Errors as endpoints state them in bodies: of answers with a status of an error, of answers with status 200 of proxies, and of
//! servers that have begun to stream.

use serde_json::Value;

use crate::error::CallError;

/// Status of an error that names none.
const UNKNOWN: u16 = 500;

/// Most entries of a list of errors that a message repeats.
const MAX_ENTRIES: usize = 3;

/// Statuses that the words of `code`, `type` and `error_type` mean: OpenAI, Anthropic, Text Generation Inference.
const STATUSES: [(&str, u16); 13] = [
    ("validation", 400),
    ("invalid_request", 400),
    ("context_length_exceeded", 400),
    ("string_above_max_length", 400),
    ("authentication", 401),
    ("invalid_api_key", 401),
    ("permission", 403),
    ("not_found", 404),
    ("model_not_found", 404),
    ("request_too_large", 413),
    ("overloaded", 429),
    ("rate_limit", 429),
    ("insufficient_quota", 429),
];

/// Returns the error that a body states, if it states one: `error` of the OpenAI API, or a body that is one.
pub(crate) fn error_in(body: &[u8]) -> Option<CallError> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let is_error = body.get("object").and_then(Value::as_str) == Some("error");
    let error = body.get("error").filter(|error| !error.is_null());
    let stated = error.or(is_error.then_some(&body))?;
    let number = ["code", "status", "status_code"]
        .into_iter()
        .find_map(|name| status(stated.get(name)?));
    let meant = || words_of(&body).find_map(status_of_word);
    Some(CallError::Status {
        status: number.or_else(meant).unwrap_or(UNKNOWN),
        code: code_of(&body),
        message: message_of(stated).unwrap_or_else(|| stated.to_string()),
        retry_after: None,
    })
}

/// Returns the message of a stated error: `error.message` of the OpenAI API, `error` of the Open Inference Protocol, `message`,
/// `detail` of `FastAPI` with the names of the fields, or the text itself.
pub(crate) fn message_of(error: &Value) -> Option<String> {
    match error {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let messages = list.iter().take(MAX_ENTRIES).filter_map(message_of);
            let messages: Vec<String> = messages.collect();
            (!messages.is_empty()).then(|| messages.join("; "))
        }
        Value::Object(fields) => {
            let message = ["error", "message", "detail", "msg"]
                .into_iter()
                .find_map(|name| message_of(fields.get(name)?))?;
            Some(match fields.get("loc").and_then(Value::as_array) {
                Some(path) => format!("{}: {message}", field_path(path)),
                None => message,
            })
        }
        _ => None,
    }
}

/// Returns the word that names a stated error, such as `context_length_exceeded`: the first that `code`, `type` and `error_type` have.
pub(crate) fn code_of(body: &Value) -> Option<String> {
    words_of(body).next().map(str::to_owned)
}

/// The path of a field, as `FastAPI` lists it.
fn field_path(path: &[Value]) -> String {
    let parts = path.iter().map(|part| match part {
        Value::String(name) => name.clone(),
        other => other.to_string(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The words that name a stated error, those of its `error` first.
fn words_of(body: &Value) -> impl Iterator<Item = &str> {
    let names = ["code", "type", "error_type"];
    let objects = [body.get("error"), Some(body)].into_iter().flatten();
    let texts = objects.flat_map(move |object| names.map(|name| object.get(name).and_then(Value::as_str)));
    texts
        .flatten()
        .filter(|text| !text.is_empty() && text.parse::<u64>().is_err())
}

fn status_of_word(word: &str) -> Option<u16> {
    let word = word.to_lowercase();
    let found = STATUSES.into_iter().find(|(begin, _)| word.starts_with(begin));
    found.map(|(_, status)| status)
}

/// A number or text that is an HTTP status of an error.
fn status(code: &Value) -> Option<u16> {
    let code = code.as_u64().or_else(|| code.as_str()?.parse().ok())?;
    u16::try_from(code).ok().filter(|code| (400..600).contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_kind_of_server_are_read() {
        for (body, status, message) in [
            (
                r#"{"error": {"message": "slow down", "code": 429}}"#,
                429,
                "slow down",
            ),
            (
                r#"{"error": {"message": "no", "code": "server_error"}}"#,
                500,
                "no",
            ),
            (r#"{"error": "out of memory"}"#, 500, "out of memory"),
            (
                r#"{"object": "error", "message": "too long", "code": 400}"#,
                400,
                "too long",
            ),
            (r#"{"error": {"message": "gone", "code": "503"}}"#, 503, "gone"),
            (r#"{"error": {"why": 1}}"#, 500, "{\"why\":1}"),
            (
                r#"{"error": "Input validation error: too long", "error_type": "validation"}"#,
                400,
                "Input validation error: too long",
            ),
            (
                r#"{"error": "Model is overloaded", "error_type": "overloaded"}"#,
                429,
                "Model is overloaded",
            ),
            (
                r#"{"error": {"message": "long", "type": "invalid_request_error", "code": "context_length_exceeded"}}"#,
                400,
                "long",
            ),
            (
                r#"{"error": {"message": "slow", "type": "requests", "code": "rate_limit_exceeded"}}"#,
                429,
                "slow",
            ),
            (
                r#"{"error": {"message": "money", "code": "insufficient_quota"}}"#,
                429,
                "money",
            ),
            (
                r#"{"error": {"message": "key", "type": "authentication_error", "code": null}}"#,
                401,
                "key",
            ),
        ] {
            let found = error_in(body.as_bytes());
            assert!(
                matches!(&found, Some(CallError::Status { status: found, message: said, .. }) if *found == status && said == message),
                "{body}: {found:?}"
            );
        }
        for body in ["", "[]", "{}", r#"{"error": null}"#, r#"{"object": "list"}"#] {
            assert_eq!(error_in(body.as_bytes()), None, "{body}");
        }
    }
}
