//! How an endpoint's variant of the OpenAI API differs, as far as its refusals have shown it.
//!
//! OpenAI's models that think before they answer refuse `max_tokens` and want `max_completion_tokens`, and take no temperature but
//! their own. Which models do is not known beforehand, and other servers know only `max_tokens`: so a request is written in the older
//! form, and after a refusal that names the parameter it and all later ones are written in the newer form.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::endpoint::OMITTABLE;
use crate::error::CallError;
use crate::prepared::Prepared;

const OLD_LIMIT: &str = "max_tokens";
const NEW_LIMIT: &str = "max_completion_tokens";
const TEMPERATURE: &str = "temperature";

/// Form of requests that a model accepts, as its refusals have shown.
#[derive(Debug, Default)]
pub(crate) struct Dialect {
    /// It takes `max_completion_tokens` instead of `max_tokens`.
    newer_limit: AtomicBool,
    /// It takes no temperature.
    own_temperature: AtomicBool,
}

impl Dialect {
    /// Returns the body of a request as the model takes it.
    pub(crate) fn write(&self, request: &Prepared) -> Bytes {
        let newer_limit = self.newer_limit.load(Ordering::Relaxed);
        let own_temperature = self.own_temperature.load(Ordering::Relaxed) && request.free_temperature;
        if !newer_limit && !own_temperature {
            return request.body.clone();
        }
        let Ok(mut body) = serde_json::from_slice::<Map<String, Value>>(&request.body) else {
            return request.body.clone();
        };
        if newer_limit && let Some(limit) = body.remove(OLD_LIMIT) {
            body.insert(NEW_LIMIT.to_owned(), limit);
        }
        if own_temperature {
            body.remove(TEMPERATURE);
        }
        Value::Object(body).to_string().into()
    }

    /// Learns from a refusal. Returns the body to send instead of `sent`, if that is another one.
    pub(crate) fn learn(&self, request: &Prepared, sent: &Bytes, refusal: &CallError) -> Option<Bytes> {
        let said = unsupported(refusal)?;
        if said.contains(NEW_LIMIT) && said.contains(OLD_LIMIT) {
            self.newer_limit.store(true, Ordering::Relaxed);
        } else if said.contains(TEMPERATURE) && request.free_temperature {
            self.own_temperature.store(true, Ordering::Relaxed);
        }
        Some(self.write(request)).filter(|body| body != sent)
    }
}

/// Adds to a refusal of an option which setting leaves it out.
pub(crate) fn explained(refusal: CallError, sent: &Bytes) -> CallError {
    let Some(said) = unsupported(&refusal) else {
        return refusal;
    };
    let Ok(body) = serde_json::from_slice::<Map<String, Value>>(sent) else {
        return refusal;
    };
    let remedy = if said.contains("logprobs") && body.contains_key("logprobs") {
        "an endpoint without log probabilities needs another `confidence`, or `top_logprobs = 0` in the last stage of a cascade"
            .to_owned()
    } else {
        // The option that is named first: a message may name others as a remedy.
        let mut words = said.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let named = words.find(|word| OMITTABLE.contains(word) && body.contains_key(*word));
        let Some(option) = named else { return refusal };
        format!("`omit = [\"{option}\"]` leaves it out")
    };
    CallError::UnsupportedOption {
        refusal: Box::new(refusal),
        remedy,
    }
}

/// The message of a refusal, in lower case, if it says that something is not supported. OpenAI, vLLM and servers on Pydantic have words
/// of their own.
fn unsupported(refusal: &CallError) -> Option<String> {
    let CallError::Status {
        status: 400 | 403 | 422,
        message,
        ..
    } = refusal
    else {
        return None;
    };
    let said = message.to_lowercase();
    let refuses = [
        "support",
        "instead",
        "not allowed",
        "unrecognized",
        "unknown parameter",
        "not permitted",
    ];
    refuses.iter().any(|word| said.contains(word)).then_some(said)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMIT: &str = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
    const TEMPERATURE: &str = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.";

    fn request(free_temperature: bool) -> Prepared {
        Prepared {
            path: "chat/completions".to_owned(),
            content_type: "application/json",
            headers: Vec::new(),
            body: json!({"max_tokens": 8, "temperature": 0.0, "logprobs": true})
                .to_string()
                .into(),
            head: None,
            streamed: false,
            max_tokens: 8,
            top_logprobs: None,
            free_temperature,
        }
    }

    fn refusal(status: u16, message: &str) -> CallError {
        CallError::Status {
            status,
            code: None,
            message: message.to_owned(),
            retry_after: None,
        }
    }

    fn read(body: &Bytes) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    #[test]
    fn a_refusal_changes_this_request_and_later_ones() {
        let (dialect, request) = (Dialect::default(), request(true));
        let first = dialect.write(&request);
        assert_eq!(first, request.body);
        let second = dialect.learn(&request, &first, &refusal(400, LIMIT)).unwrap();
        assert_eq!(
            read(&second),
            json!({"max_completion_tokens": 8, "temperature": 0.0, "logprobs": true})
        );
        let third = dialect
            .learn(&request, &second, &refusal(400, TEMPERATURE))
            .unwrap();
        assert_eq!(
            read(&third),
            json!({"max_completion_tokens": 8, "logprobs": true})
        );
        assert_eq!(dialect.write(&request), third);
        assert_eq!(
            dialect.learn(&request, &third, &refusal(400, TEMPERATURE)),
            None,
            "no endless change"
        );
    }

    #[test]
    fn other_refusals_change_nothing() {
        let dialect = Dialect::default();
        for (status, message) in [
            (500, LIMIT),
            (400, "'max_tokens' or 'max_completion_tokens' is too large: 5000"),
            (400, "temperature must be at most 2"),
        ] {
            let (request, refused) = (request(true), refusal(status, message));
            assert_eq!(
                dialect.learn(&request, &request.body, &refused),
                None,
                "{message}"
            );
        }
        let stated = request(false);
        assert_eq!(
            dialect.learn(&stated, &stated.body, &refusal(400, TEMPERATURE)),
            None
        );
    }

    #[test]
    fn a_refusal_names_its_remedy() {
        let said = |message: &str| explained(refusal(400, message), &request(false).body).to_string();
        assert!(said(TEMPERATURE).ends_with("`omit = [\"temperature\"]` leaves it out"));
        let logprobs = said("Unsupported parameter: 'logprobs' is not supported with this model.");
        assert!(logprobs.contains("another `confidence`"), "{logprobs}");
        assert_eq!(said("the model is gone"), "HTTP 400: the model is gone");
        let sent = Bytes::from(json!({"top_k": 4, "min_p": 0.1, "min_tokens": 2, "stop": ["x"]}).to_string());
        for (message, option) in [
            ("Unrecognized request argument supplied: top_k", "top_k"),
            ("Unknown parameter: 'min_p'.", "min_p"),
            ("body.min_tokens: Extra inputs are not permitted", "min_tokens"),
            ("min_tokens is not supported; it does not stop", "min_tokens"),
        ] {
            let said = explained(refusal(422, message), &sent).to_string();
            assert!(
                said.ends_with(&format!("`omit = [\"{option}\"]` leaves it out")),
                "{said}"
            );
        }
    }
}
