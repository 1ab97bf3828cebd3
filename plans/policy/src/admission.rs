//! Shedding early, so that goodput stays level under overload.
//!
//! A full queue sheds too late: by then every queued request waits longer than its budget, and the models compute results
//! that have already expired. Little's law predicts how long a request admitted now will take: the requests in flight over the
//! rate at which they are answered. What would take longer than its budget is refused while it has cost nothing.
//!
//! Few requests in flight do not reveal the rate that a service could reach, so up to [`AdmissionConfig::always`] the prediction does
//! not count. A slow service, such as a language model, misses budgets with fewer than that. So a second bound follows what happens, as
//! TCP's congestion window does (additive increase, multiplicative decrease): while requests expire that were among many in flight, it
//! shrinks; while it refuses and none expires, it grows until it is no bound any more. Only the latest outcomes count, and no expiry of a
//! budget that is shorter than every recent answer took: no load could keep it.

/// Parameters of [`Admission`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmissionConfig {
    /// Up to this many in flight nothing is shed while requests keep their budgets: fewer do not reveal the capacity.
    /// [`Admission::set_replicas`] raises it for plans that run more at once.
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
    /// Requests that the replicas of the plan run at once.
    at_once: usize,
    in_flight: usize,
    window: Option<Window>,
    rate: Option<f64>,
    /// Bound on the requests in flight since some expired.
    limit: Option<usize>,
    /// Answers and expiries since that bound last changed; older ones count less ([`Admission::age`]).
    answered: u32,
    expired: u32,
    /// When they are halved next.
    ages_at: u64,
    /// Shortest times to an answer among these outcomes and among those before them, microseconds.
    fastest: [Option<u64>; 2],
    /// When requests that were accepted under the bound before have all ended.
    settled_at: u64,
    /// When the bound is given up if it refuses nothing until then.
    forgotten_at: u64,
}

/// An interval during which the service was busy without interruption, or waited for nothing but the requests that were refused.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: u64,
    answered: u32,
    /// Whether a request was refused: few in flight are then no lack of requests.
    refused: bool,
}

impl Window {
    const fn new(since: u64) -> Self {
        Self {
            since,
            answered: 0,
            refused: false,
        }
    }
}

/// Minimum number of answers for a rate.
const MIN_ANSWERS: u32 = 16;

/// Share that is left of the bound when requests expire.
const DECREASE: f64 = 0.7;

/// Budgets after which outcomes count half.
const AGING_BUDGETS: u64 = 2;

/// Budgets without an expired or refused request after which the bound is given up.
const MEMORY_BUDGETS: u64 = 10;

impl Admission {
    /// Creates an admission that has measured nothing yet.
    pub fn new(config: AdmissionConfig) -> Self {
        Self {
            config,
            at_once: 0,
            in_flight: 0,
            window: None,
            rate: None,
            limit: None,
            answered: 0,
            expired: 0,
            ages_at: 0,
            fastest: [None; 2],
            settled_at: 0,
            forgotten_at: 0,
        }
    }

    /// Sets how many requests the replicas of the plan run at once, over the ingresses that share them.
    pub const fn set_replicas(&mut self, at_once: usize) {
        self.at_once = at_once;
    }

    /// Returns whether to accept a request with this budget, microseconds, while `in_flight` accepted ones have no reply.
    pub fn admit(&mut self, now: u64, in_flight: usize, budget_us: u64) -> bool {
        self.in_flight = in_flight;
        self.age(now, budget_us);
        if self.is_busy() && self.window.is_none() {
            self.window = Some(Window::new(now));
        }
        if self.limit.is_some() && self.forgotten_at <= now {
            self.limit = None;
        }
        let accepted = match self.limit {
            Some(limit) => in_flight < limit || self.grow(limit, now, budget_us),
            None if in_flight < self.always() => true,
            None => self
                .expected_us(in_flight + 1)
                .is_none_or(|expected| expected <= budget_us as f64 * self.config.share),
        };
        self.in_flight += usize::from(accepted);
        if let Some(window) = &mut self.window {
            window.refused |= !accepted;
        }
        accepted
    }

    /// Raises the bound, which would refuse a request, if hardly any has expired under it. Returns whether it is raised.
    fn grow(&mut self, limit: usize, now: u64, budget_us: u64) -> bool {
        self.forgotten_at = now.saturating_add(budget_us.saturating_mul(MEMORY_BUDGETS));
        let grows = now >= self.settled_at && self.expired * 20 <= self.answered;
        if grows {
            self.set_limit(limit + limit.div_ceil(8), now, budget_us);
        }
        grows
    }

    /// Notes that an accepted request with this budget, microseconds, expired at its first attempt. It counts as [`Admission::ended`] too.
    ///
    /// It lowers the bound if it was one of many in flight, of which a fifth expire: one that has too short a budget, or that a replica lost,
    /// says nothing about the load. With more in flight than [`AdmissionConfig::always`] the prediction is the bound.
    pub fn expired(&mut self, now: u64, budget_us: u64) {
        if self
            .fastest
            .iter()
            .flatten()
            .min()
            .is_some_and(|fastest| budget_us < *fastest)
        {
            self.ended();
            return;
        }
        self.expired = self.expired.saturating_add(1);
        let bound = self.limit.unwrap_or_else(|| self.always());
        let most = if self.limit.is_some() { usize::MAX } else { bound };
        let is_bounded_by_it = (bound.div_ceil(2)..=most).contains(&self.in_flight);
        if is_bounded_by_it && now >= self.settled_at && self.expired * 4 >= self.answered {
            let limit = self.in_flight.min(bound) as f64 * DECREASE;
            self.set_limit((limit as usize).max(1), now, budget_us);
            self.forgotten_at = now.saturating_add(budget_us.saturating_mul(MEMORY_BUDGETS));
        }
        self.ended();
    }

    /// Halves the counts of outcomes every [`AGING_BUDGETS`], so that a long good time does not hide an overload.
    fn age(&mut self, now: u64, budget_us: u64) {
        if self.ages_at <= now {
            (self.answered, self.expired) = (self.answered / 2, self.expired / 2);
            self.fastest = [None, self.fastest[0]];
            self.ages_at = now.saturating_add(budget_us.saturating_mul(AGING_BUDGETS));
        }
    }

    fn set_limit(&mut self, limit: usize, now: u64, budget_us: u64) {
        self.limit = (limit < self.always()).then_some(limit);
        (self.answered, self.expired) = (0, 0);
        self.settled_at = now.saturating_add(budget_us);
    }

    /// Records that an accepted request ended without an answer: a full queue refused it, it expired, or the client cancelled it. Such a request
    /// does not count towards the service rate.
    pub fn ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.forget_window_if_idle();
    }

    /// A service without enough requests answers at the rate of their arrivals, which tells nothing of its own.
    fn forget_window_if_idle(&mut self) {
        if !self.is_busy() {
            self.window = self.window.filter(|window| window.refused);
        }
    }

    /// Records that an accepted request got its answer, this many microseconds after it was accepted. Errors do not count:
    /// [`Admission::ended`].
    pub fn completed(&mut self, now: u64, took_us: u64) {
        self.answered = self.answered.saturating_add(1);
        let [fastest, _] = &mut self.fastest;
        *fastest = Some(fastest.map_or(took_us, |fastest| fastest.min(took_us)));
        self.in_flight = self.in_flight.saturating_sub(1);
        self.forget_window_if_idle();
        if self.is_busy() && self.window.is_none() {
            self.window = Some(Window::new(now));
        }
        let Some(window) = &mut self.window else {
            return;
        };
        window.answered += 1;
        let elapsed = now.saturating_sub(window.since);
        if elapsed >= self.config.window_us.max(1) && window.answered >= MIN_ANSWERS {
            let measured = f64::from(window.answered) / elapsed as f64;
            self.window = Some(Window::new(now));
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

    /// In flight up to this number, requests are accepted unconditionally while they keep their budgets.
    fn always(&self) -> usize {
        self.config.always.max(self.at_once).max(1)
    }

    /// Half of `always`, so that a service held at that mark by shedding keeps being measured.
    fn is_busy(&self) -> bool {
        self.in_flight >= self.always().div_ceil(2)
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
