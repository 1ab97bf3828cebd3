//! Bounds resends to a share of recent admissions.
//!
//! A resend that follows a failure adds load exactly when there is too little capacity: if every request of an
//! overloaded service were sent again, its load would double. So resends may be at most a share of what was admitted in
//! the last second, plus a floor, without which a service of few requests could never retry. A resend beyond the budget
//! waits for the next one; its request keeps its deadline.

use std::collections::VecDeque;

/// Parameters of a [`RetryBudget`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryBudgetConfig {
    /// Resends per admission. Of a fifth, the load grows by at most a fifth, which planned capacity has to spare
    /// (Finagle's and gRPC's defaults are 20 % and 10 %).
    pub share: f64,
    /// Resends per window that are always allowed. About the queues of the replicas of one lost worker: a service with
    /// few requests recovers from its loss at once.
    pub floor: u32,
    /// Length of the window, microseconds.
    pub window_us: u64,
}

impl Default for RetryBudgetConfig {
    fn default() -> Self {
        Self {
            share: 0.2,
            floor: 256,
            window_us: 1_000_000,
        }
    }
}

/// Parts of a window. A part is forgotten as a whole.
const PARTS: u64 = 10;

/// Counts admissions and resends in a sliding window.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    config: RetryBudgetConfig,
    /// The parts of the window that hold anything, oldest first.
    parts: VecDeque<Part>,
    admitted: u64,
    resent: u64,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    number: u64,
    admitted: u64,
    resent: u64,
}

impl RetryBudget {
    /// Creates a budget that has seen nothing.
    pub fn new(config: RetryBudgetConfig) -> Self {
        Self {
            config,
            parts: VecDeque::new(),
            admitted: 0,
            resent: 0,
        }
    }

    /// Notes an admission at `now`, microseconds.
    pub fn admitted(&mut self, now: u64) {
        self.admitted += 1;
        if let Some(part) = self.part(now) {
            part.admitted += 1;
        }
    }

    /// Takes a resend out of the budget. Returns false if none is left at `now`, microseconds.
    pub fn take(&mut self, now: u64) -> bool {
        self.part(now);
        if self.resent as f64 >= f64::from(self.config.floor) + self.config.share * self.admitted as f64 {
            return false;
        }
        self.resent += 1;
        if let Some(part) = self.part(now) {
            part.resent += 1;
        }
        true
    }

    /// Returns the earliest time at which [`RetryBudget::take`] may succeed, microseconds: `now` if it does now.
    pub(crate) fn next_at(&mut self, now: u64) -> u64 {
        let left = {
            self.part(now);
            f64::from(self.config.floor) + self.config.share * self.admitted as f64 - self.resent as f64
        };
        if left > 0.0 {
            return now;
        }
        (self.number(now) + 1).saturating_mul(self.part_us())
    }

    fn part_us(&self) -> u64 {
        (self.config.window_us / PARTS).max(1)
    }

    fn number(&self, now: u64) -> u64 {
        now / self.part_us()
    }

    /// Returns the part of `now`, after the parts before the window are forgotten.
    fn part(&mut self, now: u64) -> Option<&mut Part> {
        let number = self.number(now);
        while let Some(oldest) = self.parts.front().filter(|part| part.number + PARTS <= number) {
            self.admitted -= oldest.admitted;
            self.resent -= oldest.resent;
            self.parts.pop_front();
        }
        if self.parts.back().is_none_or(|newest| newest.number < number) {
            self.parts.push_back(Part {
                number,
                admitted: 0,
                resent: 0,
            });
        }
        self.parts.back_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: RetryBudgetConfig = RetryBudgetConfig {
        share: 0.2,
        floor: 2,
        window_us: 1_000,
    };

    #[test]
    fn a_budget_is_a_floor_and_a_share_of_what_was_admitted() {
        let mut budget = RetryBudget::new(CONFIG);
        assert!(budget.take(0) && budget.take(0) && !budget.take(0));
        for _ in 0..10 {
            budget.admitted(50);
        }
        assert!(budget.take(60) && budget.take(60) && !budget.take(60));
        assert_eq!(budget.next_at(60), 100);
        assert!(!budget.take(999));
        assert_eq!(budget.next_at(1_000), 1_000, "the first part has left the window");
        assert!(budget.take(1_000));
    }

    proptest! {
        /// In no window of time is more sent again than the floor and the share of what that window admitted.
        #[test]
        fn no_window_holds_more_resends_than_its_budget(
            steps in prop::collection::vec((0_u64..400, any::<bool>()), 1..400),
        ) {
            let mut budget = RetryBudget::new(CONFIG);
            let (mut now, mut admitted, mut resent) = (0, Vec::new(), Vec::new());
            for (pause, admits) in steps {
                now += pause;
                if admits {
                    budget.admitted(now);
                    admitted.push(now);
                } else {
                    let expected = budget.next_at(now) == now;
                    let taken = budget.take(now);
                    prop_assert_eq!(taken, expected);
                    if taken {
                        resent.push(now);
                    }
                }
                // The parts of the window that ends now.
                let from = (now / 100).saturating_sub(9) * 100;
                let within = |times: &[u64]| times.iter().filter(|at| **at >= from).count() as f64;
                // Admissions leave the window together with resends that they allowed, or before them.
                let before = admitted.iter().filter(|at| **at >= from.saturating_sub(900)).count() as f64;
                prop_assert!(within(&resent) < 2.0 + 0.2 * before + 1.0);
            }
            let windows = (now / 1_000 + 1) as f64;
            prop_assert!(resent.len() as f64 <= 2.0 * (2.0 * windows + 0.2 * admitted.len() as f64) + windows);
        }

        /// A resend that has to wait is possible once the window has passed.
        #[test]
        fn waiting_ends(resends in 1_u64..50, start in any::<u32>()) {
            let mut budget = RetryBudget::new(CONFIG);
            let (mut now, mut taken) = (u64::from(start), 0);
            while taken < resends {
                let at = budget.next_at(now);
                prop_assert!(at >= now && at - now <= 100);
                now = at;
                taken += u64::from(budget.take(now));
            }
            prop_assert!(now - u64::from(start) <= resends * 1_000);
        }
    }
}
