//! Periods of planning: each is planned for the load of the one before (Cocktail+'s autoscaling without its exact forecast).

/// Minimum load to plan for, requests/s, so that the first request finds a replica.
const FLOOR_QPS: f64 = 1.0;

/// Length of what a load is counted over, microseconds.
const SECOND_US: u64 = 1_000_000;

/// Measures the load of the busiest second. Times in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct BusiestSecond {
    began: u64,
    arrived: u64,
    qps: f64,
}

impl BusiestSecond {
    /// Begins the first second at `now`.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            began: now,
            arrived: 0,
            qps: 0.0,
        }
    }

    /// Takes the arrivals since the last call. A second ends with the first call at least a second after its begin; its load is the mean
    /// over that time.
    pub(crate) fn observe(&mut self, arrivals: u64, now: u64) {
        self.arrived = self.arrived.saturating_add(arrivals);
        if now.saturating_sub(self.began) >= SECOND_US {
            self.end(now);
        }
    }

    /// Ends the current second early.
    fn end(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.began);
        if elapsed == 0 {
            return;
        }
        let seconds = elapsed as f64 / SECOND_US as f64;
        self.qps = self.qps.max(self.arrived as f64 / seconds);
        (self.began, self.arrived) = (now, 0);
    }

    /// Returns the load of the busiest second that has ended since the last [`BusiestSecond::take`], requests/s.
    pub(crate) fn qps(&self) -> f64 {
        self.qps
    }

    /// Returns [`BusiestSecond::qps`] and forgets it.
    pub(crate) fn take(&mut self) -> f64 {
        std::mem::take(&mut self.qps)
    }
}

/// Detects the end of a period and measures the load of its busiest second. Times in microseconds.
#[derive(Debug, Clone)]
pub struct Periods {
    length: u64,
    began: u64,
    busiest: BusiestSecond,
}

impl Periods {
    /// Creates periods of this length; the first starts at `now`.
    pub fn new(length: u64, now: u64) -> Self {
        Self {
            length,
            began: now,
            busiest: BusiestSecond::new(now),
        }
    }

    /// Takes the arrivals since the last call. At the end of a period, returns the load to plan for, requests/s: the load of its
    /// busiest second, and no less than one request/s.
    pub fn observe(&mut self, arrivals: u64, now: u64) -> Option<f64> {
        self.busiest.observe(arrivals, now);
        if now.saturating_sub(self.began) < self.length {
            return None;
        }
        // A fraction of a second counts only if the period is shorter than a second: that of a longer one is part of the next.
        if self.length < SECOND_US {
            self.busiest.end(now);
        }
        self.began = now;
        Some(self.busiest.take().max(FLOOR_QPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(length_s: u64, arrivals: &[u64]) -> Vec<f64> {
        let mut periods = Periods::new(length_s * SECOND_US, 0);
        let seconds = (1..).zip(arrivals);
        seconds
            .filter_map(|(second, arrivals)| periods.observe(*arrivals, second * SECOND_US))
            .collect()
    }

    #[test]
    fn a_period_asks_for_its_busiest_second() {
        assert_eq!(asked(3, &[10, 50, 20, 5, 5, 5]), [50.0, 5.0]);
    }

    /// The fraction of a second at the end of a period counted as a second, and ten requests at once as fifty per second.
    #[test]
    fn a_burst_at_the_end_of_a_period_counts_over_a_second() {
        const LOOK: u64 = SECOND_US / 5;
        let mut periods = Periods::new(6 * LOOK, 0);
        let asked: Vec<f64> = (1..=12)
            .filter_map(|look| periods.observe(if look == 6 { 10 } else { 1 }, look * LOOK))
            .collect();
        assert_eq!(asked, [5.0, 14.0]);
        let mut short = Periods::new(LOOK, 0);
        assert_eq!(short.observe(10, LOOK), Some(50.0));
    }

    #[test]
    fn a_period_without_load_still_keeps_room_for_a_first_request() {
        assert_eq!(asked(2, &[400, 0, 0, 0]), [400.0, 1.0]);
    }
}
