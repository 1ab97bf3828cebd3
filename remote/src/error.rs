//! Failures of calls to an endpoint.

use std::time::Duration;

use kaskade_models::ModelError;
use kaskade_policy::remote::price::LimitReached;
use thiserror::Error;

use crate::secret::SecretError;

/// Longest message of an endpoint that an error repeats, characters.
pub(crate) const MAX_MESSAGE: usize = 400;

/// What messages of OpenAI, vLLM, `SGLang`, llama.cpp and Anthropic have if a request is longer than the context of the model.
const TOO_LONG: [&str; 5] = [
    "context length",
    "context_length",
    "context size",
    "context window",
    "prompt is too long",
];

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
    #[error("HTTP {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// Its message, cut to a few lines.
        message: String,
        /// The pause that it asks for.
        retry_after: Option<Duration>,
    },
    /// The endpoint answered with a status of gRPC.
    #[error("gRPC {status}: {message}")]
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
    /// The limit of spending is reached.
    #[error("the limit of spending is reached: {0}")]
    SpendLimit(LimitReached),
}

impl CallError {
    /// Returns whether the same call may succeed later.
    pub const fn retryable(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Stalled { .. }
            | Self::Broken { .. }
            | Self::BreakerOpen { .. } => true,
            Self::Status { status, .. } | Self::Grpc { http: status, .. } => {
                matches!(*status, 408 | 409 | 425 | 429 | 500..)
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
            }
        )
    }

    /// Returns whether it says that the request is longer than the context of the model: by OpenAI's code or the words that OpenAI,
    /// vLLM and others use.
    fn is_too_long(&self) -> bool {
        let Self::Status {
            status: 400 | 413 | 422,
            message,
            ..
        } = self
        else {
            return false;
        };
        let said = message.to_lowercase();
        TOO_LONG.iter().any(|words| said.contains(words))
    }

    /// Returns whether it says that the endpoint itself is not in order, for the circuit breaker. An endpoint that asks for a pause
    /// or finds a request invalid is.
    pub(crate) const fn is_endpoint_failure(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Stalled { .. }
            | Self::Broken { .. }
            | Self::Malformed { .. } => true,
            Self::Status { status, .. } | Self::Grpc { http: status, .. } => {
                matches!(*status, 401 | 403 | 500..)
            }
            Self::UnsupportedOption { .. }
            | Self::Useless { .. }
            | Self::BreakerOpen { .. }
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
                message,
                retry_after,
            } => Self::Status {
                status,
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
                message: message.to_owned(),
                retry_after: None,
            })
        };
        for message in [
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
            "the request exceeds the available context size, try increasing it",
            "The input (300 tokens) is longer than the model's context length (256 tokens).",
        ] {
            assert!(
                matches!(of(400, message), ModelError::TooLong { .. }),
                "{message}"
            );
        }
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
}
