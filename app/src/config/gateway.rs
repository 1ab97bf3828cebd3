//! The HTTP gateway.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteSize, HumanDuration, SubjectToken};

/// The HTTP gateway: limits, streaming, and the keys of tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// Rule for when the tokens of a language model are sent to a client that streams.
    pub streaming: Streaming,
    /// Maximum requests in progress, streams and each text or choice of a request included; more are refused.
    pub max_in_flight: NonZeroU32,
    /// Maximum size of a request's body, after decompression.
    pub max_body: ByteSize,
    /// Maximum size of the bodies of all requests in progress, as they arrive; more are refused.
    pub max_in_flight_bytes: ByteSize,
    /// Time after SIGTERM in which the gateway still serves, while `/ready` answers 503, so that balancers stop sending requests before
    /// it closes; `ingress.drain_timeout` begins after it [default: none].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_delay: Option<HumanDuration>,
    /// Certificate and key of the listener [default: connections are not encrypted].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Origins whose pages may send requests: `https://app.example`, or `*` for all [default: none].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cors: Vec<String>,
    /// Keys that requests must carry as `Authorization: Bearer KEY`, by tenant [default: no key is needed].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<SubjectToken, TenantConfig>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            streaming: Streaming::default(),
            max_in_flight: NonZeroU32::MIN.saturating_add(4_095),
            max_body: ByteSize::mebibytes(64),
            max_in_flight_bytes: ByteSize::mebibytes(1024),
            shutdown_delay: None,
            tls: None,
            cors: Vec::new(),
            keys: BTreeMap::new(),
        }
    }
}

impl GatewayConfig {
    /// Returns the settings that cannot be used.
    pub(super) fn problems(&self) -> Vec<String> {
        let is_origin = |origin: &str| {
            let host = origin
                .strip_prefix("https://")
                .or_else(|| origin.strip_prefix("http://"));
            origin == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains('/'))
        };
        let wrong = self.cors.iter().filter(|origin| !is_origin(origin));
        wrong
            .map(|origin| {
                format!(
                    "gateway.cors: `{origin}` is not an origin; write one like `https://app.example`, without a path"
                )
            })
            .collect()
    }
}

/// Certificate and key of the gateway, which HTTPS and gRPC with TLS need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsConfig {
    /// File with the certificate and its chain, PEM, relative to this file.
    pub certificate: PathBuf,
    /// File with its key, PEM, relative to this file.
    pub key: PathBuf,
}

/// Rule for when the tokens of a language model are sent to a client that streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Streaming {
    /// Sends tokens as they are generated, once the stage can no longer defer; an earlier stage sends its answer once its confidence
    /// suffices.
    #[default]
    AfterCertain,
    /// Sends tokens as any stage generates them; if a later stage replaces the answer, an event retracts what was sent.
    Optimistic,
    /// Sends one event, when the answer is complete.
    Buffered,
}

impl From<Streaming> for kaskade_gateway::Streaming {
    fn from(streaming: Streaming) -> Self {
        match streaming {
            Streaming::AfterCertain => Self::AfterCertain,
            Streaming::Optimistic => Self::Optimistic,
            Streaming::Buffered => Self::Buffered,
        }
    }
}

/// The key of a tenant, and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TenantConfig {
    /// File with the key, relative to this file.
    pub key_file: PathBuf,
    /// Maximum requests of the tenant in progress [default: the gateway's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<NonZeroU32>,
    /// Maximum requests of the tenant per second, each text or choice of a request included, with a burst of one second [default: unlimited].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u32>,
    /// Whether the key opens the events of the dashboard, which show the requests and errors of all tenants.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub operator: bool,
}
