//! Failures of calls to an endpoint.

use std::time::Duration;

use kaskade_models::ModelError;
use kaskade_policy::remote::price::LimitReached;
use thiserror::Error;

use crate::secret::SecretError;

/// Longest message of an endpoint that an error repeats, characters.
pub(crate) const MAX_MESSAGE: usize = 400;

/// What messages have if a request is longer than the context of the model: of OpenAI, vLLM, `SGLang`, llama.cpp, Anthropic, then of
/// Text Generation Inference, Gemini, xAI and Bedrock.
const TOO_LONG: [&str; 9] = [
    "context length",
    "context_length",
    "context size",
    "context window",
    "prompt is too long",
    "`max_new_tokens` must be",
    "input token count",
    "maximum prompt length",
    "input is too long",
];

/// `code` of a request that is longer than the context of the model.
const TOO_LONG_CODE: &str = "context_length_exceeded";

/// `code` of a refusal because the account's money is spent.
const SPENT_CODE: &str = "insufficient_quota";

/// What the message of such a refusal has, without a code.
const SPENT: &str = "exceeded your current quota";

/// Why a call failed. No message contains the key.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no connection.
    #[error("no connection: {reason}")]
    Connect {
        /// The reason.
        reason: String,
    },
    /// There was no complete answer in time.
    #[error("no complete answer within {} ms", after.as_millis())]
    Timeout {
        /// The time.
        after: Duration,
    },
    /// A streamed answer did not begin, or paused for too long.
    #[error("the endpoint sent nothing for {} ms", after.as_millis())]
    Stalled {
        /// The time.
        after: Duration,
    },
    /// The endpoint answered with an error.
    #[error("HTTP {status}: {message}{}", asked_pause(*retry_after))]
    Status {
        /// The HTTP status.
        status: u16,
        /// The word that names the error, such as `context_length_exceeded`.
        code: Option<String>,
        /// Its message, cut to a few lines.
        message: String,
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    /// The endpoint answered with a status of gRPC.
    #[error("gRPC {status}: {message}{}", asked_pause(*retry_after))]
    Grpc {
        /// Name of the status.
        status: &'static str,
        /// The HTTP status that means the same.
        http: u16,
        /// Its message, cut to a few lines.
        message: String,
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    /// The endpoint does not support an option that a setting of the variant leaves out.
    #[error("{refusal}; {remedy}")]
    UnsupportedOption {
        /// What it answered with.
        refusal: Box<Self>,
        /// The setting.
        remedy: String,
    },
    /// The answer broke off.
    #[error("the answer broke off: {reason}")]
    Broken {
        /// The reason.
        reason: String,
    },
    /// The answer cannot be read.
    #[error("the answer cannot be read: {reason}")]
    Malformed {
        /// The reason.
        reason: String,
    },
    /// The answer is well-formed and of no use.
    #[error("{reason}")]
    Useless {
        /// The reason.
        reason: String,
    },
    /// The circuit breaker is open.
    #[error("its circuit breaker is open for another {} ms after repeated failures", pause.as_millis())]
    BreakerOpen {
        /// Until the next probe.
        pause: Duration,
    },
    /// The endpoint gets no calls, because it asked for a pause.
    #[error("it asked for a pause, which lasts another {} ms", pause.as_millis())]
    Held {
        /// Until the end of the pause.
        pause: Duration,
    },
    /// The limit of spending is reached.
    #[error("the limit of spending is reached: {0}")]
    SpendLimit(LimitReached),
}

impl CallError {
    /// Returns whether the same call may succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Stalled { .. }
            | Self::Broken { .. }
            | Self::BreakerOpen { .. }
            | Self::Held { .. } => true,
            Self::Status { status, .. } | Self::Grpc { http: status, .. } => {
                let may_pass = matches!(*status, 408 | 409 | 425 | 429 | 500..);
                // What is not implemented will not be a moment later.
                may_pass && !matches!(*status, 501 | 505) && !self.is_spent()
            }
            Self::UnsupportedOption { .. }
            | Self::Malformed { .. }
            | Self::Useless { .. }
            | Self::SpendLimit(_) => false,
        }
    }

    /// Returns whether it says that the request is invalid, so that every endpoint of this kind would refuse it.
    fn is_invalid_request(&self) -> bool {
        matches!(
            self,
            Self::Status {
                status: 400 | 413 | 422,
                ..
            } | Self::Grpc {
                status: "INVALID_ARGUMENT" | "OUT_OF_RANGE",
                ..
            } | Self::Grpc { http: 413, .. }
        )
    }

    /// Returns whether the request is longer than the context of the model: by OpenAI's code, or the words that servers use.
    fn is_too_long(&self) -> bool {
        if !self.is_invalid_request() {
            return false;
        }
        let (Self::Status { message, .. } | Self::Grpc { message, .. }) = self else {
            return false;
        };
        let said = message.to_lowercase();
        self.has_code(TOO_LONG_CODE) || TOO_LONG.iter().any(|words| said.contains(words))
    }

    /// Returns whether the endpoint refuses a call because the account's money is spent. It says so with the status for too many calls.
    fn is_spent(&self) -> bool {
        matches!(self, Self::Status { status: 429, message, .. }
            if self.has_code(SPENT_CODE) || message.to_lowercase().contains(SPENT))
    }

    /// Returns whether the endpoint does not have what is asked for.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Status {
                status: 404 | 405 | 501,
                ..
            } | Self::Grpc {
                status: "UNIMPLEMENTED",
                ..
            }
        )
    }

    fn has_code(&self, word: &str) -> bool {
        matches!(self, Self::Status { code: Some(code), .. } if code == word)
    }

    /// Returns true for failures that the circuit breaker counts: also of a key, a balance or a model that is gone. Rate limits (429)
    /// and invalid requests do not count.
    pub(crate) fn is_endpoint_failure(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Stalled { .. }
            | Self::Broken { .. }
            | Self::Malformed { .. } => true,
            Self::Status { status, .. } | Self::Grpc { http: status, .. } => {
                matches!(*status, 401..=404 | 500..) || self.is_spent()
            }
            Self::UnsupportedOption { .. }
            | Self::Useless { .. }
            | Self::BreakerOpen { .. }
            | Self::Held { .. }
            | Self::SpendLimit(_) => false,
        }
    }

    /// Returns whether it says that the endpoint did not take the call, so that it costs nothing.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Status { .. } | Self::Grpc { .. }
        )
    }

    /// Returns the error with what the endpoint said rewritten, so that it shows no key, and cut.
    pub(crate) fn redacted(self, redact: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Status {
                status,
                code,
                message,
                retry_after,
            } => Self::Status {
                status,
                code: code.map(|code| redact(&code)),
                message: redact(&message).chars().take(MAX_MESSAGE).collect(),
                retry_after,
            },
            Self::Malformed { reason } => Self::Malformed {
                reason: redact(&reason),
            },
            Self::Useless { reason } => Self::Useless {
                reason: redact(&reason),
            },
            other => other,
        }
    }

    /// The pause that the endpoint asks for.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } | Self::Grpc { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The pause that an endpoint asks for, in a message; empty below a second.
fn asked_pause(pause: Option<Duration>) -> String {
    match pause.map(|pause| pause.as_secs()) {
        None | Some(0) => String::new(),
        Some(seconds) => format!(" (it asks for a pause of {seconds} s)"),
    }
}

impl From<CallError> for ModelError {
    fn from(error: CallError) -> Self {
        let reason = error.to_string();
        match error {
            CallError::Malformed { .. } | CallError::Useless { .. } => Self::BadOutput { reason },
            CallError::SpendLimit(_) => Self::SpendLimit { reason },
            error if error.is_too_long() => Self::TooLong { reason },
            error if error.is_invalid_request() => Self::InvalidRequest { reason },
            error if error.retryable() => Self::Unavailable { reason },
            _ => Self::Refused { reason },
        }
    }
}

/// Why a remote variant cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The key cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The address is none.
    #[error("`{base_url}` is not an http, https, grpc or grpcs URL: {reason}")]
    Address {
        /// The address.
        base_url: String,
        /// The reason.
        reason: String,
    },
    /// The system's certificates cannot be read.
    #[error("the system's certificates cannot be read: {0}")]
    Certificates(std::io::Error),
    /// The file of certificates cannot be read.
    #[error("the certificates of `{path}` cannot be used: {reason}")]
    CertificateFile {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The proxy that the environment names cannot be used.
    #[error(
        "the proxy that the environment names for `{base_url}` is of the kind `{scheme}`; only http proxies are supported"
    )]
    Proxy {
        /// The address of the endpoint.
        base_url: String,
        /// The scheme of the proxy's address.
        scheme: String,
    },
    /// The system gives no thread.
    #[error("cannot start a thread for connections: {0}")]
    Thread(std::io::Error),
    /// The endpoint does not describe its model.
    #[error("`{base_url}` does not describe the model `{model}`: {source}")]
    Metadata {
        /// The address.
        base_url: String,
        /// The model.
        model: String,
        /// The reason.
        source: CallError,
    },
    /// The directory for answers cannot be used.
    #[error("`{path}` cannot be used for answers: {source}")]
    Cache {
        /// The directory.
        path: String,
        /// Message of the operating system.
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_invalid_or_longer_than_the_context_is_at_fault_itself() {
        let of = |status: u16, message: &str| {
            ModelError::from(CallError::Status {
                status,
                code: None,
                message: message.to_owned(),
                retry_after: None,
            })
        };
        for message in [
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
            "the request exceeds the available context size, try increasing it",
            "The input (300 tokens) is longer than the model's context length (256 tokens).",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
            "Input is too long for requested model.",
        ] {
            assert!(
                matches!(of(400, message), ModelError::TooLong { .. }),
                "{message}"
            );
        }
        let coded = CallError::Status {
            status: 400,
            code: Some(TOO_LONG_CODE.to_owned()),
            message: "Please shorten it.".to_owned(),
            retry_after: None,
        };
        assert!(matches!(ModelError::from(coded), ModelError::TooLong { .. }));
        for status in [400, 413, 422] {
            let error = of(status, "Invalid schema for response_format");
            assert!(
                matches!(error, ModelError::InvalidRequest { .. }),
                "{status}: {error}"
            );
        }
        for status in [401, 403, 404] {
            let error = of(status, "no such model");
            assert!(matches!(error, ModelError::Refused { .. }), "{status}: {error}");
        }
        assert!(matches!(
            of(500, "context length"),
            ModelError::Unavailable { .. }
        ));
    }

    #[test]
    fn a_spent_balance_and_a_model_that_is_gone_are_failures_of_the_endpoint() {
        let of = |status: u16, message: &str| CallError::Status {
            status,
            code: None,
            message: message.to_owned(),
            retry_after: None,
        };
        for status in [401, 402, 403, 404, 500, 501, 503, 529] {
            assert!(of(status, "no").is_endpoint_failure(), "{status}");
        }
        for status in [400, 408, 409, 413, 422, 429] {
            assert!(!of(status, "no").is_endpoint_failure(), "{status}");
        }
        for (status, retryable) in [
            (429, true),
            (500, true),
            (503, true),
            (529, true),
            (501, false),
            (505, false),
        ] {
            assert_eq!(of(status, "no").retryable(), retryable, "{status}");
        }
        let coded = CallError::Status {
            status: 429,
            code: Some(SPENT_CODE.to_owned()),
            message: "no".to_owned(),
            retry_after: None,
        };
        assert!(coded.is_endpoint_failure() && !coded.retryable());
        let spent = of(
            429,
            "You exceeded your current quota, please check your plan and billing details.",
        );
        assert!(spent.is_endpoint_failure() && !spent.retryable());
    }
}
