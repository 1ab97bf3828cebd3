//! The circuit breaker of a model that is called, on a clock of its own.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use kaskade_policy::remote::breaker::{Breaker, BreakerConfig, Permission};
use kaskade_policy::remote::hold::Hold;
use tokio::sync::Notify;

use crate::error::CallError;
use crate::lock;

/// The circuit breaker of one model. A judge has another one than the model that it judges: neither answers for the other.
pub(crate) struct Circuit {
    breaker: Mutex<Breaker>,
    hold: Mutex<Hold>,
    /// Notified when the breaker may have opened or closed.
    pub changed: Notify,
    started: Instant,
}

impl Circuit {
    pub(crate) fn new(config: BreakerConfig) -> Self {
        Self {
            breaker: Mutex::new(Breaker::new(config)),
            hold: Mutex::default(),
            changed: Notify::new(),
            started: Instant::now(),
        }
    }

    /// Takes a permission for a call.
    ///
    /// # Errors
    /// [`CallError::BreakerOpen`].
    pub(crate) fn admit(&self) -> Result<Outcome<'_>, CallError> {
        let now = self.now();
        let is_probe = match lock(&self.breaker).admit(now) {
            Permission::Send => false,
            Permission::Probe => true,
            Permission::Refused { until } => {
                return Err(CallError::BreakerOpen {
                    pause: Duration::from_micros(until.saturating_sub(now)),
                });
            }
        };
        Ok(Outcome {
            circuit: self,
            is_probe,
            reported: false,
        })
    }

    /// Returns how long no request is sent; `None` while requests are sent.
    pub(crate) fn until_probe(&self) -> Option<Duration> {
        let until = lock(&self.breaker).next_probe()?;
        Some(Duration::from_micros(until.saturating_sub(self.now())))
    }

    /// Holds the calls of all requests after a call that is not repeated, if the endpoint asked for a pause.
    pub(crate) fn hold(&self, error: &CallError) {
        if let Some(pause) = error.retry_after().filter(|_| error.retryable()) {
            let pause = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
            lock(&self.hold).begin(pause, self.now());
        }
    }

    /// Returns how long calls are held, microseconds; `None` while they are not.
    pub(crate) fn held_us(&self) -> Option<u64> {
        lock(&self.hold).remaining(self.now())
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }
}

/// Reports the outcome of a call to the circuit breaker, also if the call is cancelled.
pub(crate) struct Outcome<'a> {
    circuit: &'a Circuit,
    /// Whether the breaker waits for it.
    is_probe: bool,
    reported: bool,
}

impl Outcome<'_> {
    /// Leaves the probe to the next request.
    pub(crate) fn leave(mut self) {
        self.reported = true;
        lock(&self.circuit.breaker).cancelled();
    }

    /// Reports the outcome of a call that took `took_us`.
    pub(crate) fn ended<T>(mut self, outcome: &Result<T, CallError>, took_us: u64) {
        match outcome {
            // Nothing was sent.
            Err(CallError::SpendLimit(_)) => {}
            Err(error) if error.is_endpoint_failure() => self.failed_call(error),
            _ => {
                self.reported = true;
                let mut breaker = lock(&self.circuit.breaker);
                if !breaker.is_closed() {
                    self.circuit.changed.notify_one();
                }
                breaker.succeeded();
                if outcome.is_ok() {
                    breaker.answered_after(took_us);
                }
            }
        }
    }

    /// Reports a call that the budget of its request ended after `took_us`, before the endpoint's timeout. It is a failure of the
    /// endpoint if no part of the answer had arrived and the endpoint usually answers sooner.
    pub(crate) fn cut_off(self, took_us: u64, streamed: bool) {
        if !streamed && lock(&self.circuit.breaker).is_overdue(took_us) {
            let after = Duration::from_micros(took_us);
            self.failed_call(&CallError::Timeout { after });
        }
    }

    /// Reports a failure of the endpoint that a call has shown, also to what follows the endpoint's health.
    fn failed_call(self, error: &CallError) {
        let circuit = self.circuit;
        if self.failed(error) {
            circuit.changed.notify_one();
        }
    }

    /// Reports a failure of the endpoint. Returns whether the breaker is open from here on, or for another pause.
    pub(crate) fn failed(mut self, error: &CallError) -> bool {
        self.reported = true;
        let now = self.circuit.now();
        let mut breaker = lock(&self.circuit.breaker);
        let was_closed = breaker.is_closed();
        // While it is open, only the probe says something new.
        let counts = self.is_probe || was_closed;
        if counts {
            breaker.failed(now);
        }
        let is_open = !breaker.is_closed();
        if was_closed && is_open {
            tracing::warn!(%error, "the circuit breaker opened");
        }
        counts && is_open
    }
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if self.is_probe && !self.reported {
            lock(&self.circuit.breaker).cancelled();
            // What follows the endpoint's health may have waited for this outcome.
            self.circuit.changed.notify_one();
        }
    }
}
