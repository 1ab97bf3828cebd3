//! When to stop, as an argument and not as a global.
//!
//! The first SIGTERM or SIGINT asks for a drain within the grace time; the second says that there is no time left.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far a shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Draining(Duration),
    Now,
}

/// Tells when to stop. Cheap to clone: every actor holds one.
#[derive(Debug, Clone)]
pub struct Shutdown {
    phase: watch::Receiver<Phase>,
}

/// Starts a shutdown by hand. Dropping it without a call never stops anything.
#[derive(Debug)]
pub struct Trigger {
    phase: watch::Sender<Phase>,
}

/// A shutdown that a [`Trigger`] starts.
pub fn manual() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(Phase::Running);
    (Trigger { phase: sender }, Shutdown { phase: receiver })
}

/// A shutdown that SIGTERM or SIGINT starts, with that much time to drain.
///
/// # Errors
/// When the handlers cannot be installed. Call it on a tokio runtime; the signals are watched for as long as it runs.
pub fn on_signals(grace: Duration) -> io::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (trigger, shutdown) = manual();
    tokio::spawn(async move {
        for last in [false, true] {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
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
    /// Asks for a drain within `grace`.
    pub fn drain(&self, grace: Duration) {
        self.phase.send_if_modified(|phase| {
            let first = *phase == Phase::Running;
            if first {
                *phase = Phase::Draining(grace);
            }
            first
        });
    }

    /// Says that there is no time left.
    pub fn now(&self) {
        self.phase.send_replace(Phase::Now);
    }
}

impl Shutdown {
    /// Whether it has been asked for.
    pub fn requested(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    /// Returns when it is asked for, with the grace time.
    pub async fn wait(&mut self) -> Duration {
        match self.reached(|phase| phase != Phase::Running).await {
            Phase::Draining(grace) => grace,
            Phase::Running | Phase::Now => Duration::ZERO,
        }
    }

    /// Returns when there is no time left. Race it against the drain.
    pub async fn hurry(&mut self) {
        self.reached(|phase| phase == Phase::Now).await;
    }

    async fn reached(&mut self, is: impl Fn(Phase) -> bool) -> Phase {
        match self.phase.wait_for(|phase| is(*phase)).await.map(|phase| *phase) {
            Ok(phase) => phase,
            // Whoever could have asked is gone, so nobody will.
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
        let (trigger, mut shutdown) = manual();
        assert!(!shutdown.requested());
        assert_eq!(shutdown.wait().now_or_never(), None);
        trigger.drain(Duration::from_secs(5));
        trigger.drain(Duration::from_secs(99));
        assert!(shutdown.requested());
        assert_eq!(shutdown.clone().wait().await, Duration::from_secs(5));
        assert_eq!(shutdown.hurry().now_or_never(), None);
        trigger.now();
        shutdown.hurry().await;
        assert_eq!(shutdown.wait().await, Duration::ZERO);
    }

    #[tokio::test]
    async fn a_trigger_that_is_gone_stops_nothing() {
        let (trigger, mut shutdown) = manual();
        drop(trigger);
        assert_eq!(shutdown.wait().now_or_never(), None);
        assert!(!shutdown.requested());
    }

    #[tokio::test]
    async fn signals_drain_and_then_hurry() {
        let mut shutdown = on_signals(Duration::from_secs(7)).unwrap();
        kill_process(getpid(), Signal::TERM).unwrap();
        assert_eq!(shutdown.wait().await, Duration::from_secs(7));
        kill_process(getpid(), Signal::INT).unwrap();
        shutdown.hurry().await;
    }
}
