//! The epochs that a worker has to keep: the newest one, and those with requests that may still be in flight.
//!
//! Every ingress publishes the oldest epoch of its requests in flight. A worker keeps the replicas of an epoch until every
//! ingress with a recent state has reported a newer one.

use std::collections::{BTreeMap, BTreeSet};

/// An ingress that was silent for so long is not waited for, microseconds: three of its periods.
pub(crate) const INGRESS_SILENCE_US: u64 = 3_000_000;

/// The epochs of one worker.
#[derive(Debug, Clone)]
pub struct Retention {
    max_budget_us: u64,
    ingresses: BTreeMap<String, Ingress>,
    /// The epochs whose replicas are in place here, and when they came to be.
    in_place: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Ingress {
    last_seen: u64,
    admits: u64,
    oldest: u64,
}

impl Retention {
    /// A worker without epochs. If it receives the state of no ingress, it keeps a past epoch for `max_budget_us`, the longest time that a request
    /// may take.
    pub fn new(max_budget_us: u64) -> Self {
        Self {
            max_budget_us,
            ingresses: BTreeMap::new(),
            in_place: BTreeMap::new(),
        }
    }

    /// Notes the state of an ingress: the epoch under which it admits, and the oldest of its requests in flight. One that is gone, or has no
    /// plan yet (`admits` is 0), needs nothing.
    pub fn record(&mut self, ingress: &str, admits: u64, oldest: u64, gone: bool, now: u64) {
        if gone || admits == 0 {
            self.ingresses.remove(ingress);
            return;
        }
        let state = Ingress {
            last_seen: now,
            admits,
            oldest: oldest.min(admits),
        };
        self.ingresses.insert(ingress.to_owned(), state);
    }

    /// Notes that every replica of an epoch that is placed here is loaded and subscribed, or has failed to load.
    pub fn placed(&mut self, epoch: u64, now: u64) {
        self.in_place.entry(epoch).or_insert(now);
    }

    /// The newest epoch in place; 0 before the first.
    pub fn in_place(&self) -> u64 {
        self.in_place.last_key_value().map_or(0, |(epoch, _)| *epoch)
    }

    /// The epochs whose replicas must stay at `now` (µs), of which `newest` is always one. Forgets the others.
    ///
    /// An epoch that was replaced before it was in place here was never reported, and is not kept.
    pub fn keeps(&mut self, newest: u64, now: u64) -> BTreeSet<u64> {
        self.ingresses
            .retain(|_, ingress| now.saturating_sub(ingress.last_seen) <= INGRESS_SILENCE_US);
        let oldest = self.ingresses.values().map(|ingress| ingress.oldest).min();
        let replaced: BTreeMap<u64, u64> = self
            .in_place
            .keys()
            .copied()
            .zip(self.in_place.values().copied().skip(1))
            .collect();
        let max_budget = self.max_budget_us;
        self.in_place.retain(|epoch, _| match oldest {
            _ if *epoch == newest => true,
            Some(oldest) => *epoch >= oldest,
            None => replaced
                .get(epoch)
                .is_none_or(|at| now.saturating_sub(*at) < max_budget),
        });
        let mut kept: BTreeSet<u64> = self.in_place.keys().copied().collect();
        kept.insert(newest);
        kept
    }

    /// Returns the newest epoch under which an ingress with a recent state admits; `None` if there is none.
    pub fn admitted(&self) -> Option<u64> {
        self.ingresses.values().map(|ingress| ingress.admits).max()
    }

    /// Returns the newest epoch that every ingress with a recent state has reached; `None` if there is none.
    pub fn admitted_everywhere(&self) -> Option<u64> {
        self.ingresses.values().map(|ingress| ingress.admits).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn kept(retention: &mut Retention, newest: u64, now: u64) -> Vec<u64> {
        retention.keeps(newest, now).into_iter().collect()
    }

    #[test]
    fn an_epoch_stays_until_every_ingress_has_drained_it() {
        let mut retention = Retention::new(2 * MINUTE);
        retention.placed(1, 0);
        retention.record("a", 1, 1, false, 0);
        retention.record("b", 1, 1, false, 0);
        assert_eq!(kept(&mut retention, 2, 1), [1, 2], "2 is still being loaded");
        retention.placed(2, 2);
        retention.record("a", 2, 2, false, 3);
        assert_eq!(kept(&mut retention, 2, 3), [1, 2], "b admits under 1");
        retention.record("b", 2, 1, false, 4);
        assert_eq!(kept(&mut retention, 2, 4), [1, 2], "b has requests of 1");
        assert_eq!(
            (retention.admitted(), retention.admitted_everywhere()),
            (Some(2), Some(2))
        );
        retention.record("b", 2, 2, false, 5);
        assert_eq!(kept(&mut retention, 2, 5), [2]);
        assert_eq!(retention.in_place(), 2);
    }

    #[test]
    fn a_silent_or_gone_ingress_is_not_waited_for() {
        let mut retention = Retention::new(2 * MINUTE);
        retention.placed(1, 0);
        retention.placed(2, 0);
        retention.record("a", 1, 1, false, 0);
        retention.record("b", 2, 2, false, INGRESS_SILENCE_US);
        assert_eq!(kept(&mut retention, 2, INGRESS_SILENCE_US), [1, 2]);
        assert_eq!(kept(&mut retention, 2, INGRESS_SILENCE_US + 1), [2]);
        retention.placed(3, 0);
        retention.record("b", 2, 2, true, INGRESS_SILENCE_US + 2);
        assert_eq!(
            kept(&mut retention, 3, INGRESS_SILENCE_US + 2),
            [2, 3],
            "no ingress: the budget counts"
        );
    }

    #[test]
    fn without_an_ingress_the_longest_budget_counts() {
        let mut retention = Retention::new(2 * MINUTE);
        retention.placed(1, 0);
        assert_eq!(kept(&mut retention, 2, 9 * MINUTE), [1, 2], "2 is not in place");
        retention.placed(2, 10 * MINUTE);
        assert_eq!(kept(&mut retention, 2, 12 * MINUTE - 1), [1, 2]);
        assert_eq!(kept(&mut retention, 2, 12 * MINUTE), [2]);
    }

    #[test]
    fn an_ingress_without_a_plan_needs_nothing() {
        let mut retention = Retention::new(MINUTE);
        retention.record("a", 0, 0, false, 0);
        assert_eq!(retention.admitted(), None);
    }

    proptest! {
        /// Whatever ingresses report, the newest epoch stays, and so does each epoch that was in place when an ingress with a recent state
        /// still had requests of it.
        #[test]
        fn what_is_needed_stays(steps in prop::collection::vec((0_u64..3, 1_u64..9, 1_u64..9, 0_u64..2_000_000), 1..60)) {
            let mut retention = Retention::new(MINUTE);
            let (mut now, mut newest) = (0, 1);
            let mut reported: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            let mut forgotten = BTreeSet::new();
            for (who, admits, oldest, pause) in steps {
                now += pause;
                newest = newest.max(admits);
                retention.placed(newest, now);
                let oldest = oldest.min(admits);
                retention.record(&who.to_string(), admits, oldest, false, now);
                reported.insert(who, (oldest, now));
                let before: BTreeSet<u64> = retention.in_place.keys().copied().collect();
                let kept = retention.keeps(newest, now);
                prop_assert!(kept.contains(&newest));
                let needed = reported.values().filter(|(_, at)| now - at <= INGRESS_SILENCE_US);
                let needed = needed.map(|(oldest, _)| *oldest).min().unwrap_or(newest);
                for epoch in before {
                    prop_assert!(kept.contains(&epoch) == (epoch >= needed || epoch == newest));
                    if !kept.contains(&epoch) { forgotten.insert(epoch); }
                }
                prop_assert!(kept.iter().all(|epoch| !forgotten.contains(epoch)));
            }
        }
    }
}
