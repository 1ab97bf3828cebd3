//! Connections: the broker, and probes over HTTP.

use std::num::NonZeroU32;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::durable;
use super::scalar::{Address, ByteSize};

/// Connection to the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsConfig {
    /// URL of a nats-server, 2.10 or newer [default: the embedded broker, on the loopback].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A `.creds` file, relative to this file; `NATS_CREDS` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an nkey, as `kaskade auth init` writes it, relative to this file; `NATS_NKEY` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, for a nats-server reached by TLS (`tls://`), relative to this file;
    /// `NATS_CA` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The certificate of this client, for a nats-server that verifies clients by TLS, relative to this file; needs `key`; `NATS_CERT`
    /// overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The key of `certificate`, relative to this file; `NATS_KEY` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Maximum message size of the embedded broker, headers included; a nats-server has its own limit.
    pub max_payload: ByteSize,
    /// Replicas of the plan store and the streams in a cluster of nats-servers, 1 to 5, if they do not exist yet [default: 3 if the
    /// cluster has three or more servers, otherwise 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: Option<NonZeroU32>,
}

impl NatsConfig {
    /// Returns the problems of the connection: files that are missing, and contradictions.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let files = [
            ("credentials", &self.credentials),
            ("nkey", &self.nkey),
            ("ca", &self.ca),
            ("certificate", &self.certificate),
            ("key", &self.key),
        ];
        let both = (self.credentials.is_some() && self.nkey.is_some()).then(|| {
            "nats: has both `credentials` and `nkey`; a connection is one user, leave one out".to_owned()
        });
        let half = (self.certificate.is_some() != self.key.is_some())
            .then(|| "nats: has one of `certificate` and `key`; a client certificate needs both".to_owned());
        let absent = files.into_iter().filter_map(|(name, path)| {
            let path = path.as_ref().filter(|path| !path.is_file())?;
            Some(format!("nats.{name}: `{}` is not there", path.display()))
        });
        absent
            .chain(both)
            .chain(half)
            .chain(durable::too_many_replicas("nats.replicas", self.replicas))
    }
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            url: None,
            credentials: None,
            nkey: None,
            ca: None,
            certificate: None,
            key: None,
            max_payload: ByteSize::mebibytes(8),
            replicas: None,
        }
    }
}

/// Probes and metrics over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Listen address of every process that serves the app, such as `0.0.0.0:8080`; `KASKADE_HTTP` and `--http` override it.
    pub address: Address,
}
