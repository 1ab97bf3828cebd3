//! Graceful shutdown, passed as an argument instead of a global.
//!
//! The first SIGTERM, SIGINT or SIGHUP requests a drain within the grace time; the second ends the grace time.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The phase of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Draining(Duration),
    Now,
}

/// Receiver of a shutdown request. Cheap to clone: every long-running task holds one.
#[derive(Debug, Clone)]
pub struct Shutdown {
    phase: watch::Receiver<Phase>,
}

/// Starts a shutdown. Dropping it without a call stops nothing.
#[derive(Debug)]
pub struct Trigger {
    phase: watch::Sender<Phase>,
}

/// Returns a trigger and the shutdown that it starts.
pub fn channel() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(Phase::Running);
    (Trigger { phase: sender }, Shutdown { phase: receiver })
}

/// Returns a shutdown that SIGTERM, SIGINT or SIGHUP starts, with `grace` for the drain. A terminal that closes sends SIGHUP.
///
/// # Errors
/// If the signal handlers cannot be installed. Call it on a tokio runtime, which then watches the signals.
pub fn on_signals(grace: Duration) -> io::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (trigger, shutdown) = channel();
    tokio::spawn(async move {
        for last in [false, true] {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = hangup.recv() => "SIGHUP",
            };
            if last {
                tracing::warn!(signal = name, "stopping now");
                trigger.now();
            } else {
                tracing::info!(signal = name, ?grace, "draining");
                trigger.drain(grace);
            }
        }
    });
    Ok(shutdown)
}

impl Trigger {
    /// Requests a drain within `grace`.
    pub fn drain(&self, grace: Duration) {
        self.phase.send_if_modified(|phase| {
            let first = *phase == Phase::Running;
            if first {
                *phase = Phase::Draining(grace);
            }
            first
        });
    }

    /// Ends the grace time.
    pub fn now(&self) {
        self.phase.send_replace(Phase::Now);
    }
}

impl Shutdown {
    /// Returns whether a shutdown was requested.
    pub fn requested(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Waits for a shutdown request and returns its grace time.
    pub async fn wait(&mut self) -> Duration {
        match self.reached(|phase| phase != Phase::Running).await {
            Phase::Draining(grace) => grace,
            Phase::Running | Phase::Now => Duration::ZERO,
        }
    }

    /// Waits for the end of the grace time. Race it against the drain.
    pub async fn grace_ended(&mut self) {
        self.reached(|phase| phase == Phase::Now).await;
    }

    async fn reached(&mut self, is: impl Fn(Phase) -> bool) -> Phase {
        match self.phase.wait_for(|phase| is(*phase)).await.map(|phase| *phase) {
            Ok(phase) => phase,
            // The trigger is dropped, so no request can come any more.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn the_first_call_drains_and_the_second_hurries() {
        let (trigger, mut shutdown) = channel();
        assert!(!shutdown.requested());
        assert_eq!(shutdown.wait().now_or_never(), None);
        trigger.drain(Duration::from_secs(5));
        trigger.drain(Duration::from_secs(99));
        assert!(shutdown.requested());
        assert_eq!(shutdown.clone().wait().await, Duration::from_secs(5));
        assert_eq!(shutdown.grace_ended().now_or_never(), None);
        trigger.now();
        shutdown.grace_ended().await;
        assert_eq!(shutdown.wait().await, Duration::ZERO);
    }

    #[tokio::test]
    async fn a_dropped_trigger_stops_nothing() {
        let (trigger, mut shutdown) = channel();
        drop(trigger);
        assert_eq!(shutdown.wait().now_or_never(), None);
        assert!(!shutdown.requested());
    }

    #[tokio::test]
    async fn signals_drain_and_then_hurry() {
        for [first, second] in [[Signal::TERM, Signal::INT], [Signal::HUP, Signal::TERM]] {
            let mut shutdown = on_signals(Duration::from_secs(7)).unwrap();
            kill_process(getpid(), first).unwrap();
            assert_eq!(shutdown.wait().await, Duration::from_secs(7));
            kill_process(getpid(), second).unwrap();
            shutdown.grace_ended().await;
        }
    }
}
