//! Typed errors of requests and commands, each with a code and a remedy.
//!
//! A [`Fault`] is an error on the bus: a stable code and a message for people. Inside a module, errors have that
//! module's own types; one `From` at the boundary converts each into a fault.

use kaskade_models::{ModelError, TensorError};
use serde::{Deserialize, Serialize};

use crate::subjects::SubjectError;

/// Generates the enum and its tables from one list, so that every code has an id, an HTTP status and an explanation.
macro_rules! codes {
    ($($name:ident $id:literal $status:literal $retry:literal $title:literal $explanation:literal)+) => {
        /// Code of a fault. The `KSK` numbers are stable and never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $title] $name,)+
        }

        impl Code {
            /// Every code, in the order of the `KSK` numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the stable id on the wire and in the documentation.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)+ }
            }

            /// Returns the NATS service error code (ADR-32), which is an HTTP status code.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// Returns whether a retry of the same request after a moment may succeed.
            pub const fn retryable(self) -> bool {
                match self { $(Self::$name => $retry,)+ }
            }

            /// Returns whether the same request may be retried: `yes`, `no`, or a condition.
            pub const fn retry(self) -> &'static str {
                match self {
                    Self::UnknownApp => "after a reconnect",
                    _ if self.retryable() => "yes",
                    _ => "no",
                }
            }

            /// Returns a short description.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// Returns the cause and the remedy as printed by `kaskade explain`.
            pub const fn explain(self) -> &'static str {
                match self { $(Self::$name => $explanation,)+ }
            }
        }
    };
}

codes! {
    Malformed "KSK0001" 400 false "The message cannot be decoded."
        "The body is not valid MessagePack or JSON for its subject, a header has an invalid value, or a length, depth or \
count exceeds its limit. The message names the field or the byte.\n\
Send MessagePack maps with field names (or JSON with `content-type: application/json`) as the page \"Wire protocol\" of the \
documentation describes (docs/reference/wire.md in the repository)."
    TooLarge "KSK0002" 413 false "The message is too large."
        "Either the broker's `max_payload` (headers included; by default 8 MiB of the embedded broker and 1 MiB of a nats-server) or the \
codec's limit is exceeded. The message states both sizes.\n\
Send a smaller input, split the batch, or raise `max_payload`: of the embedded broker under `[nats]` in app.toml, of a nats-server in its \
configuration."
    InvalidInput "KSK0003" 422 false "The inputs do not match the model's signature."
        "An input is missing, unknown or repeated, has another type or shape, or contains NaN or an infinity; or the endpoint behind a \
remote variant finds the request invalid (HTTP 400, 413 or 422).\n\
Compare the named input with the model's signature, or the request with what the endpoint's message says."
    UnknownApp "KSK0004" 404 false "No process serves that app or stage."
        "The app's subject has no subscriber: the app is not running, has another name, or runs on another \
server. For a moment after a server or a connection has restarted, the server may not know the app yet. The clients of \
Kaskade therefore send the request again if the app has answered them before, or if their connection was lost since they \
started.\n\
Check `nats micro ls`, start the app with `kaskade serve`, or correct the name or the `--nats` URL."
    Expired "KSK0005" 504 false "The time budget ran out."
        "The request's remaining budget reached zero before an answer was ready: in a queue, in a model, or in transit.\n\
Give a larger budget (`Kaskade-Budget-Us`), lower the load, or plan with a looser latency objective."
    Overloaded "KSK0006" 429 true "No capacity for another request."
        "All permits of the ingress, or a replica's queue, are in use, or so many requests wait that this one would miss its budget; \
it was refused immediately, so that accepted requests meet their objective.\n\
Try again with increasing pauses, add replicas, or let the planner use a faster gear."
    Unavailable "KSK0007" 503 true "No replica can run this stage now."
        "The replicas of the stage are gone or unreachable, and none returned within the budget.\n\
Check the workers' logs and heartbeats; start a worker that hosts the stage's variant."
    ModelFailed "KSK0008" 500 false "The model failed on this request."
        "The model returned an error or panicked, or a later stage does not take the inputs that the first one took, such as a text without \
a tokenizer; the message contains the reason. Other requests of the batch are answered normally.\n\
Reproduce it with `kaskade infer` and the same input; look at the replica's log. `kaskade validate` names variants without a tokenizer."
    BadOutput "KSK0009" 500 false "The model's output is invalid."
        "An output contains NaN or an infinity, is empty, does not match its shape, or its confidence is not \
in [0, 1]. Such an output is never returned as an answer.\n\
Check the weights and the numeric type; a model that overflows in FP16 often does not in BF16."
    Draining "KSK0010" 503 true "This process is shutting down."
        "It accepts no new requests and finishes those in flight.\n\
Try again: another process of the queue group serves the request."
    NotCalibrated "KSK0011" 503 false "A stage exits by confidence, but its variant has no calibration."
        "Thresholds compare calibrated confidences; without a fitted temperature the plan's accuracy is \
undefined, so the app refuses to start.\n\
Run `kaskade profile` and `kaskade plan cascade` again, or give the variant a `calibration` in the plan."
    BrokerUnavailable "KSK0012" 503 true "No NATS server answers at that address."
        "The connection was refused or timed out, or the server refused the credentials.\n\
Start nats-server or correct `--nats` (`NATS_URL`); without a URL Kaskade starts its embedded broker on the loopback interface."
    BrokerTooOld "KSK0013" 503 false "The NATS server is older than 2.10."
        "The client cannot create key-value buckets on older servers; Debian 12's package is 2.9.\n\
Install nats-server 2.10 or newer: the official image, or Debian 13's or Ubuntu 24.04's package."
    NeedsJetStream "KSK0014" 503 false "The operation requires JetStream, which this broker does not have, or JetStream has too little storage."
        "Durable requests (`submit`) and a plan store shared by several hosts require JetStream. The embedded \
broker supports core NATS only, and a nats-server has JetStream only if it is started with `-js`. The streams of durable requests reserve `[durable] max_size` each.\n\
Start `nats-server -js` and give its URL with `--nats`; if its storage is too small, lower `[durable] max_size` or raise the server's \
`max_file_store`."
    PlanRefused "KSK0015" 422 false "The plan is invalid."
        "It has another version, names a stage, variant or replica that it does not define, or cannot be parsed. \
The running plan stays.\n\
Run `kaskade validate` on the file; it names the position of the error."
    StaleEpoch "KSK0016" 503 true "Another writer stored a newer epoch first."
        "Plans are written by compare-and-set; the epoch that this writer read is no longer the newest, so its plan \
was refused.\n\
Read the newest plan, redo the change on it, and write with its epoch."
    Internal "KSK0017" 500 false "Internal error."
        "A defect in Kaskade, or a code of a newer peer that this version does not know; the message then starts with \
that code.\n\
Please report it with the message and the log of that time."
    Dropped "KSK0018" 504 false "The request was dropped early because it would have been late."
        "A task of a pipeline took longer for this request than its latency budget, and the remaining tasks could not make up for it; \
dropping it frees capacity for requests that can still be answered in time (Loki's early dropping).\n\
Send it again when the load is lower, add workers, or plan with a looser latency objective; `dropping` in the plan chooses the mechanism."
    Cancelled "KSK0019" 499 false "The client cancelled the request."
        "A client published the request's id (`Kaskade-Request-Id`) to the app's `cancel` subject before an answer was ready. A language \
model stops at its next token; other models finish their batch, and the result is discarded.\n\
No action is needed; use unique request ids if another client's cancellation affected this request."
    ReplicasLost "KSK0020" 503 true "Every replica that had the request was lost."
        "Each attempt went to a replica that was lost before it answered, until no attempt was left. This can happen while replicas \
are killed or moved; otherwise the request itself may be the cause, for instance an input that makes a process run out of memory.\n\
Check the workers' logs of that time; try the input alone with `kaskade infer`."
    NotDurable "KSK0021" 501 false "This app accepts no durable requests."
        "A client published to the app's `submit` subject, but the app is not configured for durable requests.\n\
Add a table `[durable]` to the app's file and serve it on a nats-server with JetStream, or use `infer`."
    NoReply "KSK0022" 504 true "The client received no reply in time."
        "No reply arrived within the budget and half a second more, or a durable request has no result yet. The request or its reply may \
have been lost with a process or a connection; a service that runs answers with KSK0005 when the budget runs out.\n\
Send the request again; wait longer for the result of a durable request (`kaskade result --wait`)."
    Unreadable "KSK0023" 503 true "A message between two parts of the service could not be read."
        "A stage received a request, or an ingress a part of a result, whose bytes are not a valid message: the programs have \
incompatible versions, or a message was damaged. The client's request is not the cause; it is sent to a replica again within its budget.\n\
Check that all programs of the app have compatible versions; look at the log of the stage."
    EndpointUnavailable "KSK0024" 503 true "The endpoint behind a remote variant does not answer."
        "It refused the connection, did not answer in time, broke off its answer, failed (HTTP 500 to 599) or asked for a pause that \
the request's budget does not allow (429). After several failures in a row the circuit breaker refuses requests at once, until a probe \
succeeds; a cascade then answers with what its smaller variants have.\n\
Check the endpoint at the variant's `base_url`, its limits and `timeout`; raise the request's budget if its answers take longer."
    EndpointRefused "KSK0025" 503 false "The endpoint behind a remote variant refused the request."
        "It does not accept the key (HTTP 401 or 403), has no such model or path (404), does not support an option that a setting of the \
variant leaves out, or answers with another 4xx that is not the request's fault. The message contains the endpoint's, without the key.\n\
Check the variant's `api_key`, `model` and `base_url`; send the same request to the endpoint with curl."
    TooLong "KSK0026" 400 false "The request is longer than the model's context."
        "Prompt and answer together have more tokens than the model takes, or than its cache holds; the message states the numbers. A stage \
of a cascade whose model is too small for a request sends it on to the next stage.\n\
Shorten the prompt, ask for fewer tokens (`max_tokens`), or serve a variant with a longer context as the last stage."
    NotPermitted "KSK0027" 403 false "The broker does not permit the client to send this, or to receive the reply."
        "The NATS user of the client has no permission for a subject; the message contains the server's text, which names it.\n\
Connect as a user of this app (`kaskade auth init`), or give the user the permission that the page \"Security\" of the documentation \
lists (docs/concepts/security.md in the repository)."
}

impl Code {
    /// Returns the code with a `KSK` id; `None` for an unknown id.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.id() == id)
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id())
    }
}

/// An error as sent over the bus.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Fault {
    /// Code of the fault.
    pub code: Code,
    /// The problem, its place and the remedy, for people.
    pub message: String,
}

impl Fault {
    /// Creates a fault with that code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Borrowed form of a fault, for encoding as a map.
#[derive(Serialize)]
struct Written<'a> {
    code: &'static str,
    message: &'a str,
}

/// Received form of a fault: a map, or a plain text from a minimal worker.
#[derive(Deserialize)]
#[serde(untagged)]
enum Received {
    Text(String),
    Map {
        #[serde(default)]
        code: Option<String>,
        #[serde(default)]
        message: String,
    },
}

impl Serialize for Fault {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written {
            code: self.code.id(),
            message: &self.message,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Received::deserialize(deserializer)? {
            Received::Text(message) | Received::Map { code: None, message } => {
                Self::new(Code::ModelFailed, message)
            }
            Received::Map {
                code: Some(id),
                message,
            } => match Code::from_id(&id) {
                Some(code) => Self::new(code, message),
                None => Self::new(Code::Internal, format!("{id}: {message}")),
            },
        })
    }
}

impl Fault {
    /// Returns the fault of inputs that the signature of a stage refuses. If a later stage lacks a tokenizer for a text
    /// that the first stage accepted, the app is at fault. In all other cases the sender can correct the request, for
    /// instance an input that only some variants accept.
    pub(crate) fn of_inputs(error: ModelError, stage: &str, is_first: bool) -> Self {
        // Signatures return this error only for texts.
        let is_of_app = !is_first && matches!(error, ModelError::BadInput { .. });
        if !is_of_app {
            return error.into();
        }
        Self::new(
            Code::ModelFailed,
            format!(
                "stage `{stage}` does not take the inputs that earlier stages took, which is a fault of the app and not of the request: {error}"
            ),
        )
    }
}

impl From<SubjectError> for Fault {
    fn from(error: SubjectError) -> Self {
        Self::new(Code::Malformed, error.to_string())
    }
}

impl From<TensorError> for Fault {
    fn from(error: TensorError) -> Self {
        Self::new(Code::InvalidInput, error.to_string())
    }
}

impl From<ModelError> for Fault {
    fn from(error: ModelError) -> Self {
        let code = match error {
            ModelError::Failed { .. } => Code::ModelFailed,
            // Inputs were checked when they were decoded, so it is an output that the model made.
            ModelError::BadOutput { .. } | ModelError::Tensor(TensorError::WrongLength { .. }) => {
                Code::BadOutput
            }
            ModelError::Unavailable { .. } => Code::EndpointUnavailable,
            ModelError::Refused { .. } | ModelError::SpendLimit { .. } => Code::EndpointRefused,
            ModelError::Late { .. } => Code::Expired,
            ModelError::TooLong { .. } => Code::TooLong,
            // `InvalidRequest` comes from an endpoint that rejects the input.
            _ => Code::InvalidInput,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn numbers_are_unique_ascending_and_found_again() {
        let ids = Code::ALL.iter().map(|code| code.id()).collect::<Vec<_>>();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert!(ids.is_sorted());
        for code in Code::ALL {
            assert_eq!(Code::from_id(code.id()), Some(*code));
            assert!([400, 403, 404, 413, 422, 429, 499, 500, 501, 503, 504].contains(&code.status()));
            assert!(code.explain().contains('\n'), "{code} says no cause and remedy");
        }
    }

    #[test]
    fn a_fault_survives_both_formats() {
        for code in Code::ALL {
            let fault = Fault::new(*code, "why");
            let packed = rmp_serde::to_vec_named(&fault).unwrap();
            assert_eq!(rmp_serde::from_slice::<Fault>(&packed).unwrap(), fault);
            let json = serde_json::to_vec(&fault).unwrap();
            assert_eq!(serde_json::from_slice::<Fault>(&json).unwrap(), fault);
        }
    }

    #[test]
    fn a_newer_peers_code_becomes_internal_and_keeps_its_text() {
        let fault: Fault =
            serde_json::from_str(r#"{"code":"KSK9999","message":"warp core","hint":1}"#).unwrap();
        assert_eq!(fault, Fault::new(Code::Internal, "KSK9999: warp core"));
    }

    #[test]
    fn a_plain_text_or_a_map_without_code_is_the_models_failure() {
        let text: Fault = serde_json::from_str(r#""out of cheese""#).unwrap();
        assert_eq!(text, Fault::new(Code::ModelFailed, "out of cheese"));
        let map: Fault = serde_json::from_str(r#"{"message":"no"}"#).unwrap();
        assert_eq!(map, Fault::new(Code::ModelFailed, "no"));
    }

    /// Regression: requests escalated to a large variant without a tokenizer were refused as the sender's fault.
    #[test]
    fn inputs_that_only_a_later_stage_refuses_are_a_fault_of_the_app() {
        let missing = || ModelError::BadInput {
            name: "text".to_owned(),
            reason: "no tokenizer".into(),
        };
        assert_eq!(
            Fault::of_inputs(missing(), "small", true).code,
            Code::InvalidInput
        );
        let later = Fault::of_inputs(missing(), "large", false);
        assert_eq!((later.code, later.code.status()), (Code::ModelFailed, 500));
        assert!(
            later.message.contains("stage `large`") && later.message.contains("no tokenizer"),
            "{later:?}"
        );
        let long = ModelError::TooLong {
            reason: "long".to_owned(),
        };
        assert_eq!(Fault::of_inputs(long, "large", false).code, Code::TooLong);
    }

    /// Regression: an option that only the smaller variants accept was answered with 500 when the request was
    /// escalated.
    #[test]
    fn inputs_that_a_later_stage_does_not_know_are_the_senders() {
        // A custom model states a shape that its values do not fill; it was the client's error.
        let unfilled = kaskade_models::Tensor::from_f32("odd", &[2], &[1.0]).unwrap_err();
        assert_eq!(Fault::from(ModelError::Tensor(unfilled)).code, Code::BadOutput);
        let unknown = ModelError::UnknownInput {
            name: "num_beams".to_owned(),
            expected: vec!["messages".to_owned()],
        };
        let fault = Fault::of_inputs(unknown, "large", false);
        assert_eq!((fault.code, fault.code.status()), (Code::InvalidInput, 422));
        assert!(
            fault.message.starts_with("input `num_beams` is unknown"),
            "{fault}"
        );
    }

    /// Returns the page of all codes, as committed in `docs/reference/errors.md`.
    fn errors_page() -> String {
        let entries = Code::ALL.iter().map(|code| {
            format!(
                "\n## {} {code:?}\n\n**{}** HTTP status {}. Retry: {}.\n\n{}\n",
                code.id(),
                code.title(),
                code.status(),
                code.retry(),
                code.explain().replace('\n', "\n\n"),
            )
        });
        std::iter::once(ERRORS_HEAD.to_owned()).chain(entries).collect()
    }

    const ERRORS_HEAD: &str = "# Error codes\n\nGenerated from `actors/src/error.rs`; `kaskade explain KSK0001` prints one. The HTTP \
status is that of the gateway's answer, and over NATS the header `Nats-Service-Error-Code`. \"Retry\" says whether the same request, sent again after \
a moment, may succeed.\n";

    #[test]
    fn the_error_page_is_current() {
        let path = Path::new(kaskade_testkit::ROOT).join("docs/reference/errors.md");
        if std::env::var_os("KASKADE_BLESS").is_some() {
            std::fs::write(&path, errors_page()).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            written,
            errors_page(),
            "docs/reference/errors.md is stale: KASKADE_BLESS=1 cargo test -p kaskade-actors-unit-tests error_page"
        );
    }
}
