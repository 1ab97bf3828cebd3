//! The circuit breaker of an endpoint.
//!
//! An endpoint that hangs costs each request its whole timeout before a cascade can do anything else. After some
//! failures in a row the breaker therefore refuses requests at once. When its pause is over it lets one through, as a
//! probe: its success closes the breaker, its failure doubles the pause.
//!
//! A call that the budget of its request ends says less, because the budget may be too short for any answer. It is a failure only if
//! it lasted longer than the endpoint usually takes.

/// A call is overdue when it lasts this many times longer than the endpoint usually takes.
const OVERDUE: u64 = 2;

/// Time after which a call is overdue while no answer has been measured, microseconds.
const OVERDUE_AT_FIRST_US: u64 = 1_000_000;

/// Part of the distance by which the usual time falls with an answer that takes less: it follows slow answers at once, and forgets them
/// over some ten others.
const FALL: u64 = 8;

/// Parameters of a [`Breaker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures in a row that open it, at least 1.
    pub failures: u32,
    /// First pause, microseconds.
    pub pause_us: u64,
    /// Longest pause, microseconds.
    pub max_pause_us: u64,
}

impl Default for BreakerConfig {
    /// Five failures; one second, doubled up to thirty.
    fn default() -> Self {
        Self {
            failures: 5,
            pause_us: 1_000_000,
            max_pause_us: 30_000_000,
        }
    }
}

/// State of a circuit breaker. Times are microseconds on the caller's clock.
#[derive(Debug, Clone)]
pub struct Breaker {
    config: BreakerConfig,
    /// Failures in a row.
    failed: u32,
    /// Usual duration of an answer: a maximum that decays, microseconds. `None` before the first.
    usual_us: Option<u64>,
    /// Set while it is open: when the next probe may go, and the pause after its failure.
    open: Option<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    until: u64,
    pause_us: u64,
    probing: bool,
}

/// Permission to send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Yes.
    Send,
    /// Yes, as the probe; others wait for its outcome, which must be reported.
    Probe,
    /// No, before this time, microseconds; a probe that is under way may end it earlier.
    Refused {
        /// When the next probe may be sent.
        until: u64,
    },
}

impl Breaker {
    /// Creates a closed breaker.
    pub const fn new(config: BreakerConfig) -> Self {
        Self {
            config,
            failed: 0,
            usual_us: None,
            open: None,
        }
    }

    /// Decides whether a request may be sent now.
    pub fn admit(&mut self, now: u64) -> Permission {
        match &mut self.open {
            None => Permission::Send,
            Some(open) if now >= open.until && !open.probing => {
                open.probing = true;
                Permission::Probe
            }
            Some(open) => Permission::Refused {
                until: open.until.max(now),
            },
        }
    }

    /// Returns whether requests are sent: false from the failure that opened it until a request succeeds.
    pub const fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// Returns when the next probe may go, microseconds; `None` while requests are sent.
    pub fn next_probe(&self) -> Option<u64> {
        self.open.map(|open| open.until)
    }

    /// Notes that the endpoint answered: with a result, or with an error that is not its failure.
    pub fn succeeded(&mut self) {
        self.failed = 0;
        self.open = None;
    }

    /// Notes how long an answer took, microseconds.
    pub fn answered_after(&mut self, took_us: u64) {
        let usual = self.usual_us.unwrap_or(took_us);
        let decayed = usual - usual.saturating_sub(took_us) / FALL;
        self.usual_us = Some(decayed.max(took_us));
    }

    /// Returns whether a call that was given up after `took_us` lasted longer than the endpoint usually takes.
    pub fn is_overdue(&self, took_us: u64) -> bool {
        let due = self
            .usual_us
            .map_or(OVERDUE_AT_FIRST_US, |usual| usual.saturating_mul(OVERDUE));
        took_us >= due
    }

    /// Notes that the endpoint failed: no connection, no answer in time, an error of the server, a refused key.
    pub fn failed(&mut self, now: u64) {
        self.failed = self.failed.saturating_add(1);
        let pause_us = match self.open {
            // A request that was sent before it opened says nothing new.
            Some(open) if !open.probing => return,
            Some(open) => open.pause_us.saturating_mul(2).min(self.config.max_pause_us),
            None if self.failed < self.config.failures => return,
            None => self.config.pause_us,
        };
        self.open = Some(Open {
            until: now.saturating_add(pause_us),
            pause_us,
            probing: false,
        });
    }

    /// Notes that a probe ended without an outcome, because its client cancelled it.
    pub fn cancelled(&mut self) {
        if let Some(open) = &mut self.open {
            open.probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: BreakerConfig = BreakerConfig {
        failures: 2,
        pause_us: 100,
        max_pause_us: 300,
    };

    #[test]
    fn it_opens_probes_and_closes() {
        let mut breaker = Breaker::new(CONFIG);
        breaker.failed(0);
        assert_eq!(breaker.admit(0), Permission::Send);
        breaker.succeeded();
        breaker.failed(1);
        assert!(breaker.is_closed(), "a success starts the count again");
        breaker.failed(10);
        assert_eq!(breaker.admit(109), Permission::Refused { until: 110 });
        assert_eq!(breaker.next_probe(), Some(110));
        // The failure of a request that was under way changes nothing.
        breaker.failed(50);
        assert_eq!(breaker.admit(110), Permission::Probe);
        assert!(matches!(breaker.admit(110), Permission::Refused { .. }));
        breaker.failed(120);
        assert_eq!(breaker.admit(319), Permission::Refused { until: 320 });
        assert_eq!(breaker.admit(320), Permission::Probe);
        breaker.cancelled();
        assert_eq!(breaker.admit(321), Permission::Probe);
        breaker.succeeded();
        assert_eq!(breaker.next_probe(), None);
        assert_eq!(breaker.admit(322), Permission::Send);
    }

    #[test]
    fn a_call_is_overdue_after_twice_the_usual_time() {
        let mut breaker = Breaker::new(CONFIG);
        assert!(!breaker.is_overdue(999_999) && breaker.is_overdue(1_000_000));
        breaker.answered_after(100);
        assert!(!breaker.is_overdue(199) && breaker.is_overdue(200));
        breaker.answered_after(10_000);
        assert!(!breaker.is_overdue(19_999), "it follows a slow answer at once");
        breaker.answered_after(100);
        assert!(!breaker.is_overdue(17_000), "and forgets it slowly");
        for _ in 0..100 {
            breaker.answered_after(100);
        }
        assert!(breaker.is_overdue(300));
    }

    proptest! {
        /// The endpoint gets at most one request per pause while it fails, and the pauses never exceed the longest.
        #[test]
        fn a_failing_endpoint_is_probed_ever_more_rarely(steps in prop::collection::vec(0_u64..200, 1..300)) {
            let mut breaker = Breaker::new(CONFIG);
            let (mut now, mut sent) = (0, Vec::new());
            for step in steps {
                now += step;
                match breaker.admit(now) {
                    Permission::Send | Permission::Probe => {
                        sent.push(now);
                        breaker.failed(now);
                    }
                    Permission::Refused { until } => prop_assert!(until > now && until <= now + 300),
                }
            }
            for pair in sent.windows(2).skip(2) {
                prop_assert!(pair[1] - pair[0] >= 200, "{sent:?}");
            }
        }
    }
}
