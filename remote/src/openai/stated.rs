//! Errors that an endpoint states in an answer with status 200: proxies and servers that have begun to stream do.

use serde_json::Value;

use crate::error::CallError;
use crate::http::message_of;

/// Status of an error that names none.
const UNKNOWN: u16 = 500;

/// Returns the error that a body states, if it states one: `error` of the OpenAI API, or a body that is one.
pub(super) fn error_in(body: &[u8]) -> Option<CallError> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let is_error = body.get("object").and_then(Value::as_str) == Some("error");
    let error = body.get("error").filter(|error| !error.is_null());
    error.or(is_error.then_some(&body)).map(error_of)
}

/// Returns the error of a stated one.
pub(super) fn error_of(stated: &Value) -> CallError {
    let code = ["code", "status", "status_code"]
        .into_iter()
        .find_map(|name| status(stated.get(name)?));
    CallError::Status {
        status: code.unwrap_or(UNKNOWN),
        message: message_of(stated).unwrap_or_else(|| stated.to_string()),
        retry_after: None,
    }
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
