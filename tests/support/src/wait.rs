//! Ports and polling for tests over processes, where there is no event to wait on.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);

/// A TCP port of the loopback that nobody listens on. Another process may take it before you do: where a server can
/// choose a port itself, let it.
///
/// # Panics
/// When the system has no free port.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("no free port on 127.0.0.1")
        .port()
}

/// Polls `condition` every few milliseconds until it holds. It blocks its thread; in asynchronous code use
/// [`eventually`].
///
/// # Panics
/// When `timeout` has passed; the message names `what` was waited for.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < timeout,
            "waited {timeout:?} in vain until {what}"
        );
        std::thread::sleep(PAUSE);
    }
}

/// [`wait_until`] for asynchronous conditions, on a tokio runtime.
///
/// # Panics
/// When `timeout` has passed; the message names `what` was waited for.
pub async fn eventually(what: &str, timeout: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(
            start.elapsed() < timeout,
            "waited {timeout:?} in vain until {what}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}
