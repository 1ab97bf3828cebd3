//! Ports, polling and mutual exclusion for tests that span processes.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);

/// Ports below those that systems give to outgoing connections: none of these takes the port of a server that restarts, and no
/// client connects to itself while its server is down.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A free TCP port of the loopback. Another process may take it first: a server that can choose a port itself should. No port
/// comes twice from one process, unless it takes thousands.
///
/// # Panics
/// When the system has no free port.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicUsize> = OnceLock::new();
    // Processes that run side by side begin at different places.
    let begin = || AtomicUsize::new(usize::from(RandomState::new().hash_one(0) as u16));
    let next = NEXT.get_or_init(begin);
    let ports = PORTS.len();
    (0..ports)
        .map(|_| PORTS.start + (next.fetch_add(1, Ordering::Relaxed) % ports) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port on 127.0.0.1")
}

/// Waits until no other test of this process holds the guard, which the test then keeps to its end. For tests that measure,
/// or that serve a load: each needs the cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
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
            "timed out after {timeout:?} waiting until {what}"
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
            "timed out after {timeout:?} waiting until {what}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}
