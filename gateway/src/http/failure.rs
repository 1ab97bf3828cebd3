//! Typed errors of requests.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use kaskade_actors::{Code, Fault, ids};

use crate::config::MIN_BYTES_PER_PAUSE;
use crate::http::other_paths::remedy;

/// Pauses that clients should make before they send a refused request again, if nothing states one, milliseconds: as drawn from these, so
/// that clients that were refused together do not come again together. Clients give up after a few tries, so a shorter pause would end
/// before an overload does.
const RETRY_AFTER_MS: std::ops::Range<u128> = 750..1_250;

/// Code of a request without a key that is known.
pub(super) const UNAUTHORISED: &str = "unauthorised";

/// Most characters of what a client sent that a message repeats.
const MAX_ECHO: usize = 100;

/// Inputs of models, and the fields of bodies that hold them.
const FIELDS: [(&str, &str); 20] = [
    ("messages", "messages"),
    ("response_format", "response_format"),
    ("tools", "tools"),
    ("tool_choice", "tool_choice"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("logit_bias", "logit_bias"),
    ("logit_bias_tokens", "logit_bias"),
    ("stop", "stop"),
    ("max_tokens", "max_tokens"),
    ("min_tokens", "min_tokens"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("num_beams", "num_beams"),
    ("chat_template_kwargs", "chat_template_kwargs"),
    ("prompt_logprobs", "prompt_logprobs"),
    ("top_logprobs", "top_logprobs"),
    ("prompt_name", "prompt_name"),
    ("passages", "documents"),
];

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub(crate) struct Failure {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable code: `KSK0001`, or a word where the gateway itself refuses.
    pub code: &'static str,
    /// The problem and its remedy, for people.
    pub message: String,
    /// Whether the same request may succeed after a moment.
    pub retryable: bool,
    /// Time after which it may, if that is known.
    pub retry_after: Option<Duration>,
    /// The field of the body that is wrong.
    pub param: Option<Cow<'static, str>>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let param = field_of(&fault).map(Cow::from);
        Self {
            status: StatusCode::from_u16(fault.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code: fault.code.id(),
            message: fault.message,
            retryable: fault.code.retryable(),
            retry_after: None,
            param,
        }
    }
}

/// Returns the field of a body that holds the input that a worker's message names. That of a text differs between paths.
fn field_of(fault: &Fault) -> Option<&'static str> {
    if !matches!(fault.code, Code::InvalidInput | Code::TooLong | Code::Malformed) {
        return None;
    }
    let (_, behind) = fault.message.split_once("input `")?;
    let (input, _) = behind.split_once('`')?;
    FIELDS
        .iter()
        .find_map(|(name, field)| (*name == input).then_some(*field))
}

impl From<kaskade_models::TensorError> for Failure {
    fn from(error: kaskade_models::TensorError) -> Self {
        Fault::from(error).into()
    }
}

impl Failure {
    /// The body cannot be read.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Fault::new(Code::Malformed, message).into()
    }

    /// A field of the body has an invalid value.
    pub(crate) fn param(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::malformed(message)
        }
    }

    /// The gateway serves no app of that name; `only` is the name of the only one that it serves.
    pub(crate) fn unknown_app(name: &str, only: Option<&str>) -> Self {
        let name = shortened(name);
        let message = match only {
            Some(only) => format!("this gateway serves no app `{name}`, but the app `{only}`: send its name"),
            None => format!("this gateway serves no app `{name}`; GET /v1/models lists its apps"),
        };
        Self {
            param: Some("model".into()),
            ..Fault::new(Code::UnknownApp, message).into()
        }
    }

    /// The gateway serves no app yet.
    pub(crate) fn starting() -> Self {
        let message = "the service is starting: its models are not loaded yet";
        Fault::new(Code::Unavailable, message).into()
    }

    /// The app's answers are of another kind than the endpoint gives.
    pub(crate) fn wrong_kind(message: impl Into<String>) -> Self {
        Self {
            param: Some("model".into()),
            ..Fault::new(Code::InvalidInput, message).into()
        }
    }

    /// The gateway has no such path.
    pub(crate) fn unknown_path(path: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: "unknown_path",
            message: format!(
                "this gateway has no path `{}`; {}",
                shortened(path),
                remedy(path).map_or("GET /openapi.json lists its paths", |remedy| remedy.say)
            ),
            retryable: false,
            retry_after: None,
            param: None,
        }
    }

    /// No ingress remembers the request that a label is for, or it is another tenant's.
    pub(crate) fn unknown_request(id: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: "unknown_request",
            message: format!(
                "no request `{}` waits for a label: send the id that the header x-kaskade-request-id of the answer had, once, and soon enough \
                 (`[ingress] recent_replies`); only requests under a certified plan take labels",
                shortened(id)
            ),
            retryable: false,
            retry_after: None,
            param: Some("request_id".into()),
        }
    }

    /// The gateway has no tokenizer of the app.
    pub(crate) fn no_tokenizer(app: &str, reason: &str) -> Self {
        Self {
            // No 5xx, which clients send again.
            status: StatusCode::NOT_FOUND,
            code: "no_tokenizer",
            message: format!(
                "this gateway has no tokenizer of the app `{}`: {reason}",
                shortened(app)
            ),
            retryable: false,
            retry_after: None,
            param: None,
        }
    }

    /// The path exists, but not for this method.
    pub(crate) fn wrong_method(method: &Method, path: &str) -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            code: "wrong_method",
            message: format!(
                "`{}` does not answer the method {}; the header `allow` has those that it does",
                shortened(path),
                shortened(method.as_str())
            ),
            retryable: false,
            retry_after: None,
            param: None,
        }
    }

    /// The client stopped sending its body, or sends it too slowly.
    pub(crate) fn stalled(after: Duration) -> Self {
        Self {
            status: StatusCode::REQUEST_TIMEOUT,
            code: "body_timeout",
            message: format!(
                "the body is not complete, and less than {} KiB of it arrived within {} ms",
                MIN_BYTES_PER_PAUSE >> 10,
                after.as_millis()
            ),
            retryable: true,
            retry_after: None,
            param: None,
        }
    }

    /// The request has no key, or one that is not known.
    pub(crate) fn unauthorised() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            code: UNAUTHORISED,
            message: "send a valid key as `Authorization: Bearer KEY`".to_owned(),
            retryable: false,
            retry_after: None,
            param: None,
        }
    }

    /// The body has a coding that the gateway cannot read.
    pub(crate) fn unknown_coding() -> Self {
        Self {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ..Self::malformed("content-encoding must be gzip, deflate or identity")
        }
    }

    /// The key is known, but not that of an operator.
    pub(crate) fn operators_only() -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            code: "operators_only",
            message: "this shows the errors and the load of all tenants; send the key of an operator, one with `operator = true` in \
                      `[gateway.keys]`"
                .to_owned(),
            retryable: false,
            retry_after: None,
            param: None,
        }
    }

    /// The tenant sends requests faster than its rate, which admits the next one after that time.
    pub(crate) fn too_fast(after: Duration) -> Self {
        Self {
            retry_after: Some(after),
            ..Self::full("the tenant's rate of requests is exceeded")
        }
    }

    /// Returns the pause that the client should make before it sends the request again; `None` if it should not.
    pub(crate) fn pause_ms(&self) -> Option<u32> {
        let drawn = || {
            let width = RETRY_AFTER_MS.end - RETRY_AFTER_MS.start;
            RETRY_AFTER_MS.start + u128::from(ids::unique()) % width
        };
        let pause = self.retry_after.map(|after| after.as_micros().div_ceil(1_000));
        self.retryable
            .then(|| u32::try_from(pause.unwrap_or_else(drawn)).unwrap_or(u32::MAX))
    }

    /// A limit of the gateway or of the tenant is reached.
    pub(crate) fn full(message: impl Into<String>) -> Self {
        Fault::new(Code::Overloaded, message).into()
    }
}

/// The beginning of what a client sent, for a message.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_ECHO) {
        None => text.into(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
    }
}
