//! Connections as the system gives them. A process without free descriptors accepts again once it has some, and says so.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

/// Pause after a failure: the system has no room for a connection until another one ends.
const PAUSE: Duration = Duration::from_millis(100);

/// Time in which failures for one reason are logged once.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Failures to accept connections, since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct AcceptFailures {
    count: AtomicU64,
    /// When each error of the system was logged last.
    logged: Mutex<BTreeMap<Option<i32>, Instant>>,
}

impl AcceptFailures {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Counts a failure. Returns whether it is to be logged.
    fn add(&self, error: &io::Error, now: Instant) -> bool {
        self.count.fetch_add(1, Relaxed);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let last = logged.get(&error.raw_os_error());
        let is_due = last.is_none_or(|last| now.saturating_duration_since(*last) >= LOG_INTERVAL);
        if is_due {
            logged.insert(error.raw_os_error(), now);
        }
        is_due
    }
}

/// A listener of plain connections that send small packets at once.
pub(crate) struct TcpAcceptor {
    listener: TcpListener,
    failures: Arc<AcceptFailures>,
}

impl TcpAcceptor {
    pub(crate) const fn new(listener: TcpListener, failures: Arc<AcceptFailures>) -> Self {
        Self { listener, failures }
    }
}

impl Listener for TcpAcceptor {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((connection, from)) => {
                    if let Err(error) = connection.set_nodelay(true) {
                        tracing::debug!(%error, "TCP_NODELAY could not be set");
                    }
                    return (connection, from);
                }
                Err(error) if is_of_client(&error) => {
                    tracing::debug!(%error, "a connection ended before it was accepted");
                }
                Err(error) => {
                    if self.failures.add(&error, Instant::now()) {
                        tracing::error!(
                            %error,
                            failures = self.failures.count(),
                            "connections cannot be accepted; if files are too many, raise the limit of open files (`ulimit -n`)"
                        );
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Returns whether a client ended its connection before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_logged_once_in_an_interval() {
        let (failures, start) = (AcceptFailures::default(), Instant::now());
        let add = |code, after| failures.add(&io::Error::from_raw_os_error(code), start + after);
        let almost = LOG_INTERVAL.saturating_sub(PAUSE);
        assert!(add(24, Duration::ZERO));
        assert!(!add(24, almost));
        assert!(add(23, almost), "another reason");
        assert!(add(24, LOG_INTERVAL));
        assert_eq!(failures.count(), 4);
    }
}
