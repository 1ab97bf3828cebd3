//! How far a new plan has come: which ingresses admit requests under it.

use std::collections::BTreeMap;

/// Silence after which an ingress no longer counts, microseconds. Ingresses report once per second.
const SILENT_US: u64 = 5_000_000;

/// Time to listen before the known ingresses count as all of them, microseconds.
const LISTEN_US: u64 = 1_500_000;

/// The ingresses of an app, and the epoch that each admits requests under. Times are microseconds since the listener began.
#[derive(Debug, Clone, Default)]
pub struct Rollout {
    ingresses: BTreeMap<String, ReceivedState>,
}

#[derive(Debug, Clone, Copy)]
struct ReceivedState {
    admits: u64,
    at_us: u64,
}

/// An ingress that does not admit requests under the new plan yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaggingIngress {
    /// The ingress.
    pub ingress: String,
    /// The epoch that it admits requests under; 0 before the first.
    pub admits: u64,
}

impl Rollout {
    /// Records the report of an ingress. One that is `gone` no longer counts.
    pub fn record(&mut self, ingress: &str, admits: u64, gone: bool, now_us: u64) {
        if gone {
            self.ingresses.remove(ingress);
            return;
        }
        let received = ReceivedState {
            admits,
            at_us: now_us,
        };
        self.ingresses.insert(ingress.to_owned(), received);
    }

    /// Returns the number of ingresses that report.
    pub fn ingresses(&self, now_us: u64) -> usize {
        self.reporting(now_us).count()
    }

    /// Returns the ingresses that admit requests under an older epoch.
    pub fn lagging(&self, epoch: u64, now_us: u64) -> Vec<LaggingIngress> {
        let behind = self
            .reporting(now_us)
            .filter(|(_, received)| received.admits < epoch);
        let behind = behind.map(|(ingress, received)| LaggingIngress {
            ingress: ingress.clone(),
            admits: received.admits,
        });
        behind.collect()
    }

    /// Returns whether every ingress admits requests under that epoch or a newer one. False before one has reported, and until every
    /// ingress has had the time to.
    pub fn is_admitted(&self, epoch: u64, now_us: u64) -> bool {
        now_us >= LISTEN_US && self.ingresses(now_us) > 0 && self.lagging(epoch, now_us).is_empty()
    }

    fn reporting(&self, now_us: u64) -> impl Iterator<Item = (&String, &ReceivedState)> {
        let fresh = move |received: &ReceivedState| now_us.saturating_sub(received.at_us) <= SILENT_US;
        self.ingresses.iter().filter(move |(_, received)| fresh(received))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn every_ingress_must_admit_the_epoch() {
        let mut rollout = Rollout::default();
        assert!(!rollout.is_admitted(3, 10 * SECOND), "no ingress runs");
        rollout.record("a", 3, false, SECOND);
        assert!(!rollout.is_admitted(3, SECOND), "another one may report yet");
        rollout.record("b", 2, false, 2 * SECOND);
        assert!(!rollout.is_admitted(3, 2 * SECOND));
        let behind = LaggingIngress {
            ingress: "b".to_owned(),
            admits: 2,
        };
        assert_eq!(rollout.lagging(3, 2 * SECOND), [behind]);
        rollout.record("b", 4, false, 3 * SECOND);
        assert!(rollout.is_admitted(3, 3 * SECOND), "a newer epoch replaced it");
        assert_eq!(rollout.ingresses(3 * SECOND), 2);
    }

    #[test]
    fn ingresses_that_left_or_fell_silent_do_not_count() {
        let mut rollout = Rollout::default();
        for ingress in ["gone", "silent", "alive"] {
            rollout.record(ingress, 1, false, 0);
        }
        rollout.record("gone", 1, true, SECOND);
        rollout.record("alive", 2, false, 6 * SECOND);
        assert!(rollout.is_admitted(2, 6 * SECOND));
        assert_eq!(rollout.ingresses(6 * SECOND), 1);
    }
}
