//! Finds the broker and connects to it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions};
use kaskade_broker::{BrokerConfig, BrokerError};
use percent_encoding::percent_decode_str;

use super::address::without_credentials;
use super::config::{BusConfig, OLDEST_SERVER};
use super::connection::ConnectionHealth;
use super::embedded::{Embedded, SharedBroker};
use super::error::BusError;
use super::nkey;

/// Longest pause between two attempts to reconnect, and thus the longest idle time of a restarted server.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Interval of pings. The client drops the connection of a frozen server after two of them.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the address to connect to, and the broker behind it if this process runs it.
pub(super) fn locate_broker(
    config: &BusConfig,
    shared: &SharedBroker,
) -> Result<(String, Option<Embedded>), BusError> {
    if let Some(url) = &config.url {
        return Ok((url.clone(), None));
    }
    if let Some(embedded) = &config.embedded {
        return Ok((embedded.url(), Some(embedded.clone())));
    }
    let broker = BrokerConfig {
        listen: config.listen,
        max_payload: config.max_payload,
        ..BrokerConfig::default()
    };
    match shared.join(broker) {
        Ok(embedded) => Ok((embedded.url(), Some(embedded))),
        // Another process listens there already: connect to it; the version check follows.
        Err(BrokerError::Listen { listen, source }) if source.kind() == std::io::ErrorKind::AddrInUse => {
            Ok((format!("nats://{listen}"), None))
        }
        Err(error) => Err(error.into()),
    }
}

/// Connects, within [`BusConfig::timeout`] for each address.
pub(super) async fn connect(
    config: &BusConfig,
    url: &str,
    health: &Arc<ConnectionHealth>,
) -> Result<Client, BusError> {
    let addresses = url
        .split(',')
        .map(|address| address.trim().parse::<async_nats::ServerAddr>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BusError::BadUrl {
            url: without_credentials(url),
            reason: error.to_string(),
        })?;
    // Each host may have several addresses, and each of them is tried for the whole timeout; together they get twice
    // that.
    let limit = config.timeout * 2 * u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let options = options(config, health).await?;
    let options = match addresses.iter().find(|address| address.has_user_pass()) {
        Some(address) => with_user_info(options, address),
        None => options,
    };
    let connecting = options.connect(addresses);
    let absent = |reason: String| BusError::Unreachable {
        url: without_credentials(url),
        reason,
    };
    match tokio::time::timeout(limit, connecting).await {
        Err(_) => Err(absent(format!("no answer in {limit:?}"))),
        Ok(Ok(client)) => Ok(client),
        Ok(Err(error)) => Err(match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                BusError::Refused {
                    url: without_credentials(url),
                    reason: error.to_string(),
                }
            }
            ConnectErrorKind::ServerParse => BusError::BadUrl {
                url: without_credentials(url),
                reason: error.to_string(),
            },
            // A server without TLS answers the handshake with text.
            _ if error.to_string().contains("InvalidContentType") => BusError::NoTls {
                url: without_credentials(url),
            },
            // The client reports it as a failed read.
            _ if error.to_string().contains("certificate") => BusError::Untrusted {
                url: without_credentials(url),
                reason: error.to_string(),
            },
            _ => absent(error.to_string()),
        }),
    }
}

async fn options(config: &BusConfig, health: &Arc<ConnectionHealth>) -> Result<ConnectOptions, BusError> {
    let observed = Arc::clone(health);
    let options = ConnectOptions::new()
        .name(format!("{}/{}", config.app, config.name))
        .connection_timeout(config.timeout)
        .subscription_capacity(config.subscription_capacity)
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(reconnect_pause)
        .event_callback(move |event| {
            let health = Arc::clone(&observed);
            async move { health.observe(&event) }
        });
    let options = match &config.ca {
        Some(path) => {
            check_authority(path)?;
            options.add_root_certificates(path.clone())
        }
        None => options,
    };
    let options = match &config.certificate {
        Some((certificate, key)) => {
            check_readable(certificate)?;
            check_readable(key)?;
            options.add_client_certificate(certificate.clone(), key.clone())
        }
        None => options,
    };
    let options = match &config.nkey {
        Some(path) => nkey::with_nkey(options, path)?,
        None => options,
    };
    let Some(path) = &config.credentials else {
        return Ok(options);
    };
    options
        .credentials_file(path)
        .await
        .map_err(|error| BusError::Credentials {
            path: path.display().to_string(),
            reason: error.to_string(),
        })
}

/// Checks that a file of credentials can be read. The client reports a missing one as a server that does not answer.
fn check_readable(path: &Path) -> Result<(), BusError> {
    let read = std::fs::File::open(path).map(drop);
    read.map_err(|error| BusError::Credentials {
        path: path.display().to_string(),
        reason: error.to_string(),
    })
}

/// Checks that a file has certificates. The client reports a missing file as a server that does not answer, and ignores a file without any.
fn check_authority(path: &Path) -> Result<(), BusError> {
    let bad = |reason: String| BusError::Authority {
        path: path.display().to_string(),
        reason,
    };
    let content = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
    if String::from_utf8_lossy(&content).contains("-----BEGIN CERTIFICATE-----") {
        Ok(())
    } else {
        Err(bad("it has no certificate in the form of PEM".to_owned()))
    }
}

/// Passes the user and password, or the token, of an address to the client, which does not read them itself.
fn with_user_info(options: ConnectOptions, address: &async_nats::ServerAddr) -> ConnectOptions {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = decoded(address.username().unwrap_or_default());
    match address.password() {
        Some(password) => options.user_and_password(user, decoded(password)),
        None => options.token(user),
    }
}

/// Returns no pause before the first attempt, then 10 ms, doubling up to [`RECONNECT_PAUSE`].
pub(super) fn reconnect_pause(attempts: usize) -> Duration {
    let Some(doublings) = attempts.checked_sub(2) else {
        return Duration::ZERO;
    };
    let factor = 1_u32 << doublings.min(16);
    (Duration::from_millis(10) * factor).min(RECONNECT_PAUSE)
}

/// Returns whether a server of that version is supported ([`OLDEST_SERVER`]).
pub(super) fn new_enough(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    matches!((next(), next()), (Some(major), Some(minor)) if (major, minor) >= OLDEST_SERVER)
}
