//! Periods of planning: each is planned for the load of the one before (Cocktail+'s autoscaling without its exact forecast).

/// Minimum load to plan for, requests/s, so that the first request finds a replica.
const FLOOR_QPS: f64 = 1.0;

/// Length of what a load is counted over, microseconds.
const SECOND_US: u64 = 1_000_000;

/// Detects the end of a period and measures the load of its busiest second. Times in microseconds.
#[derive(Debug, Clone)]
pub struct Periods {
    length: u64,
    began: u64,
    second: u64,
    arrived: u64,
    peak_qps: f64,
}

impl Periods {
    /// Creates periods of this length; the first starts at `now`.
    pub fn new(length: u64, now: u64) -> Self {
        Self {
            length,
            began: now,
            second: now,
            arrived: 0,
            peak_qps: 0.0,
        }
    }

    /// Takes the arrivals since the last call. At the end of a period, returns the load to plan for, requests/s: the load of its
    /// busiest second, and no less than one request/s.
    pub fn observe(&mut self, arrivals: u64, now: u64) -> Option<f64> {
        self.arrived += arrivals;
        let elapsed = now.saturating_sub(self.second);
        let over = now.saturating_sub(self.began) >= self.length;
        // A fraction of a second counts if the period is no longer than a second.
        if elapsed >= SECOND_US || over {
            let seconds = elapsed.max(1) as f64 / SECOND_US as f64;
            self.peak_qps = self.peak_qps.max(self.arrived as f64 / seconds);
            (self.second, self.arrived) = (now, 0);
        }
        if !over {
            return None;
        }
        self.began = now;
        Some(std::mem::take(&mut self.peak_qps).max(FLOOR_QPS))
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

    #[test]
    fn a_period_without_load_still_keeps_room_for_a_first_request() {
        assert_eq!(asked(2, &[400, 0, 0, 0]), [400.0, 1.0]);
    }
}
