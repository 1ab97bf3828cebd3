//! Detects whether a broker has JetStream.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::{ErrorCode, context::AccountErrorKind};

use super::connection::ConnectionHealth;

/// Returns whether JetStream is available to the client's account.
///
/// Queries the account instead of the server's greeting: in a cluster the connected server need not have JetStream
/// itself, and an account may lack it on a server that does. A cluster that has just started does not answer, or
/// answers "not available", until its servers have elected a leader; this function waits for that. Returns false if the
/// user may not query.
pub(super) async fn has_jetstream(client: &Client, health: &ConnectionHealth, timeout: Duration) -> bool {
    tokio::select! {
        found = ask(client, timeout) => found,
        () = health.jetstream_is_denied() => false,
    }
}

async fn ask(client: &Client, timeout: Duration) -> bool {
    let mut jetstream = async_nats::jetstream::new(client.clone());
    jetstream.set_timeout(timeout);
    let begun = tokio::time::Instant::now();
    loop {
        let Err(error) = jetstream.query_account().await else {
            return true;
        };
        if !may_become_available(&error.kind()) || begun.elapsed() >= JETSTREAM_WAIT {
            return false;
        }
        tracing::warn!(%error, "JetStream is not available yet; retrying");
        tokio::time::sleep(JETSTREAM_RETRY_PAUSE).await;
    }
}

/// Longest wait for the JetStream of a starting cluster.
const JETSTREAM_WAIT: Duration = Duration::from_secs(30);

/// Pause between two queries.
const JETSTREAM_RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Returns whether a JetStream that answers with this error may become available later.
pub(super) fn may_become_available(error: &AccountErrorKind) -> bool {
    match error {
        AccountErrorKind::TimedOut => true,
        AccountErrorKind::JetStream(error) => error.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE,
        AccountErrorKind::JetStreamUnavailable | AccountErrorKind::Other => false,
    }
}
