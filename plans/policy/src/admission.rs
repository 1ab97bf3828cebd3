//! Shedding early, so that goodput stays level under overload.
//!
//! A full queue sheds too late: by then every queued request waits longer than its budget, and the models compute results
//! that have already expired. Little's law predicts how long a request admitted now will take: the requests in flight over the
//! rate at which they are answered. What would take longer than its budget is refused while it has cost nothing.

/// Parameters of [`Admission`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmissionConfig {
    /// Up to this many in flight nothing is shed. About as many as can run at once: the replicas of the entry stage times
    /// their largest batch. Fewer requests in flight do not reveal the capacity.
    pub always: usize,
    /// The share of a budget that the expected time may take; the rest is for its scatter. In (0, 1].
    pub share: f64,
    /// Shortest time over which a rate is taken, microseconds. Several batches long, since answers come batch by batch.
    pub window_us: u64,
    /// Time constant of the exponential decay with which old rates are forgotten, microseconds.
    pub decay_us: u64,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            always: 64,
            share: 0.8,
            window_us: 100_000,
            decay_us: 500_000,
        }
    }
}

/// Decides which requests to accept.
///
/// The service rate is measured only while the service is busy. An idle service answers at the rate of its arrivals, and with that
/// rate the first burst would be refused. Until the service was busy once, every request is accepted.
#[derive(Debug, Clone)]
pub struct Admission {
    config: AdmissionConfig,
    in_flight: usize,
    window: Option<Window>,
    rate: Option<f64>,
}

/// An interval during which the service was busy without interruption.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: u64,
    answered: u32,
}

/// Minimum number of answers for a rate.
const MIN_ANSWERS: u32 = 16;

impl Admission {
    /// Creates an admission that has measured nothing yet.
    pub fn new(config: AdmissionConfig) -> Self {
        Self {
            config,
            in_flight: 0,
            window: None,
            rate: None,
        }
    }

    /// Returns whether to accept a request with this budget, microseconds, while `in_flight` accepted ones have no reply.
    pub fn admit(&mut self, now: u64, in_flight: usize, budget_us: u64) -> bool {
        self.in_flight = in_flight;
        if self.is_busy() && self.window.is_none() {
            self.window = Some(Window {
                since: now,
                answered: 0,
            });
        }
        let accepted = in_flight < self.config.always.max(1)
            || self
                .expected_us(in_flight + 1)
                .is_none_or(|expected| expected <= budget_us as f64 * self.config.share);
        self.in_flight += usize::from(accepted);
        accepted
    }

    /// Notes that an accepted request ended without an answer: refused by a full queue, expired, cancelled. That cost no
    /// model's time, so it is no service.
    pub fn ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if !self.is_busy() {
            self.window = None;
        }
    }

    /// Notes that an accepted request got its answer. Errors do not count: [`Admission::ended`].
    pub fn completed(&mut self, now: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if !self.is_busy() {
            self.window = None;
            return;
        }
        let window = self.window.get_or_insert(Window {
            since: now,
            answered: 0,
        });
        window.answered += 1;
        let elapsed = now.saturating_sub(window.since);
        if elapsed >= self.config.window_us.max(1) && window.answered >= MIN_ANSWERS {
            let measured = f64::from(window.answered) / elapsed as f64;
            self.window = Some(Window {
                since: now,
                answered: 0,
            });
            self.learn(measured, elapsed);
        }
    }

    /// Notes that an accepted request got its answer after it was sent again. It waited for a replica that was missing or lost,
    /// not for its turn, so the interval tells nothing of the rate of those that are there.
    pub fn completed_after_resend(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.window = None;
    }

    /// Answers per second while busy, if that was measured.
    #[cfg(test)]
    pub(crate) fn rate_per_s(&self) -> Option<f64> {
        self.rate.map(|per_us| per_us * 1e6)
    }

    /// Expected time to answer the last of this many requests, microseconds (Little's law).
    pub(crate) fn expected_us(&self, in_flight: usize) -> Option<f64> {
        self.rate.map(|rate| in_flight as f64 / rate)
    }

    /// Half of `always`, so that a service held at that mark by shedding keeps being measured.
    fn is_busy(&self) -> bool {
        self.in_flight >= self.config.always.max(1).div_ceil(2)
    }

    fn learn(&mut self, measured: f64, elapsed_us: u64) {
        let weight = 1.0 - (-(elapsed_us as f64) / self.config.decay_us.max(1) as f64).exp();
        self.rate = Some(
            self.rate
                .map_or(measured, |rate| rate + weight * (measured - rate)),
        );
    }
}

#[cfg(test)]
mod tests;
