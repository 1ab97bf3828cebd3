//! Decides what happens to a durable request whose attempt failed: it is delivered again after a pause, or becomes a dead letter.
//!
//! At least once means that a queue redelivers a request until it is acknowledged. When it is acknowledged decides whether
//! an outage of an hour loses requests, and whether one request that breaks every model is retried forever. So failures are
//! classified by cause ([`FailureCause`]).

use std::collections::BTreeMap;

use crate::ledger::pause_us;

/// Requests whose failures are counted at a time. Of more, the oldest are counted from the start.
const MAX_COUNTED: usize = 65_536;

/// Limits after which a durable request is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedeliveryConfig {
    /// A request at which models have failed this often is put aside. Deliveries that fail for another reason do not count.
    pub max_deliver: u32,
    /// Pause before the second delivery, microseconds; it doubles with every further one.
    pub backoff_us: u64,
    /// Longest pause, microseconds.
    pub max_backoff_us: u64,
    /// A request that could not be served is given up at this age, microseconds.
    pub give_up_us: u64,
}

impl Default for RedeliveryConfig {
    fn default() -> Self {
        Self {
            max_deliver: 5,
            backoff_us: 1_000_000,
            max_backoff_us: 30_000_000,
            give_up_us: 3_600_000_000,
        }
    }
}

/// Party to which a failure is attributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// The sender's: it cannot be read, or is not what the model takes. It will be so the next time.
    Sender,
    /// The request's, perhaps: a model failed at it, or it was on every replica that was lost.
    Request,
    /// The service's: no replica, no room, no time. Independent of the request.
    Service,
}

/// Action for a failed delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The request is delivered again.
    Again {
        /// Pause before that, microseconds.
        after_us: u64,
    },
    /// The request becomes a dead letter, with the reason.
    Dead,
}

/// Counts of models' failures at requests that are delivered again, by the requests' numbers.
///
/// The queue's own count of deliveries includes those of an outage and those that a process handed back.
#[derive(Debug, Default)]
pub struct Failures(BTreeMap<u64, u32>);

impl Failures {
    /// Counts a failure of the request of that number if it is [the request's](FailureCause::Request). Returns its failures so far.
    pub fn record(&mut self, number: u64, blame: FailureCause) -> u32 {
        if blame != FailureCause::Request {
            return self.0.get(&number).copied().unwrap_or(0);
        }
        let failures = self.0.entry(number).or_default();
        *failures = failures.saturating_add(1);
        let failures = *failures;
        if self.0.len() > MAX_COUNTED {
            self.0.pop_first();
        }
        failures
    }

    /// Forgets the request of that number: it is settled.
    pub fn forget(&mut self, number: u64) {
        self.0.remove(&number);
    }
}

impl RedeliveryConfig {
    /// Returns the outcome for the request of that number, which has been `delivered` this many times, this one included, on which models
    /// have failed `failures` times ([`Failures`]), and which was submitted `age_us` ago.
    pub fn after_failure(
        &self,
        number: u64,
        blame: FailureCause,
        failures: u32,
        delivered: u32,
        age_us: u64,
    ) -> Disposition {
        let given_up = match blame {
            FailureCause::Sender => true,
            FailureCause::Request => failures >= self.max_deliver,
            FailureCause::Service => age_us >= self.give_up_us,
        };
        if given_up {
            return Disposition::Dead;
        }
        let after_us = pause_us(self.backoff_us, self.max_backoff_us, number, delivered);
        Disposition::Again { after_us }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: RedeliveryConfig = RedeliveryConfig {
        max_deliver: 3,
        backoff_us: 1_000,
        max_backoff_us: 10_000,
        give_up_us: 60_000_000,
    };

    #[test]
    fn what_its_sender_got_wrong_is_not_tried_again() {
        assert_eq!(
            CONFIG.after_failure(1, FailureCause::Sender, 0, 1, 0),
            Disposition::Dead
        );
    }

    #[test]
    fn an_outage_drops_no_request_however_often_it_was_tried() {
        let tried = |age_us| CONFIG.after_failure(1, FailureCause::Service, 0, 1_000, age_us);
        assert!(matches!(tried(59_999_999), Disposition::Again { after_us } if after_us <= 10_000));
        assert_eq!(tried(60_000_000), Disposition::Dead, "but not indefinitely");
    }

    #[test]
    fn at_the_last_failure_a_request_that_breaks_models_is_put_aside() {
        let tried = |failures| CONFIG.after_failure(1, FailureCause::Request, failures, failures, 0);
        assert!(matches!(tried(2), Disposition::Again { .. }));
        assert_eq!(tried(3), Disposition::Dead);
        assert_eq!(tried(u32::MAX), Disposition::Dead);
    }

    #[test]
    fn the_deliveries_of_an_outage_are_no_failures_of_a_request() {
        let mut failures = Failures::default();
        let mut after = |delivered, blame| {
            let failed = failures.record(7, blame);
            CONFIG.after_failure(7, blame, failed, delivered, 0)
        };
        for delivered in 1..=6 {
            assert!(matches!(
                after(delivered, FailureCause::Service),
                Disposition::Again { .. }
            ));
        }
        assert!(matches!(
            after(7, FailureCause::Request),
            Disposition::Again { .. }
        ));
        assert!(matches!(
            after(8, FailureCause::Service),
            Disposition::Again { .. }
        ));
        assert!(matches!(
            after(9, FailureCause::Request),
            Disposition::Again { .. }
        ));
        assert_eq!(after(10, FailureCause::Request), Disposition::Dead);
        failures.forget(7);
        assert_eq!(failures.record(7, FailureCause::Request), 1);
    }

    #[test]
    fn the_counts_of_failures_are_bounded() {
        let mut failures = Failures::default();
        for number in 0..2 * MAX_COUNTED as u64 {
            failures.record(number, FailureCause::Request);
        }
        assert_eq!(failures.0.len(), MAX_COUNTED);
        assert_eq!(
            failures.record(2 * MAX_COUNTED as u64 - 1, FailureCause::Request),
            2,
            "the newest stay"
        );
    }

    proptest! {
        #[test]
        fn every_request_ends(number: u64, step_us in 1_000_u64..30_000_000, blame in 0..2) {
            let blame = [FailureCause::Request, FailureCause::Service][blame as usize];
            let mut age_us = 0_u64;
            let ends = (1..100_000).any(|delivered| {
                match CONFIG.after_failure(number, blame, delivered, delivered, age_us) {
                    Disposition::Dead => true,
                    Disposition::Again { after_us } => {
                        age_us += after_us + step_us;
                        false
                    }
                }
            });
            prop_assert!(ends);
        }

        #[test]
        fn pauses_grow_to_their_bound_and_are_never_nothing(number: u64, delivered in 1_u32..1_000) {
            let Disposition::Again { after_us } = CONFIG.after_failure(number, FailureCause::Service, 0, delivered, 0) else {
                panic!("it was given up");
            };
            prop_assert!((500..=10_000).contains(&after_us));
        }
    }
}
