//! The load of an app, counted by several ingresses that may start and stop.
//!
//! Every ingress publishes its total of arrivals and not its last count, so the next message replaces a lost one. The live
//! ingress with the smallest id leads: only it acts on the sum, so that two shifters never change the gear at once.

use std::collections::BTreeMap;

/// An ingress that was silent for this long does not lead, microseconds: five of its ticks.
const SILENCE_US: u64 = 500_000;

/// Time for which the total of a silent ingress is kept, microseconds: longer than any message takes.
const MEMORY_US: u64 = 10_000_000;

/// Arrivals that the ingresses of an app have counted.
#[derive(Debug, Clone)]
pub struct ArrivalCounter {
    since: u64,
    ingresses: BTreeMap<String, Counted>,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    total: u64,
    taken: u64,
    last_seen: u64,
    /// Whether it was silent when arrivals were last taken.
    silent: bool,
}

impl ArrivalCounter {
    /// Creates an empty count that starts at `now` (microseconds).
    pub fn new(now: u64) -> Self {
        Self {
            since: now,
            ingresses: BTreeMap::new(),
        }
    }

    /// Notes that `ingress` has counted `total` arrivals since its start, at `now` (microseconds).
    ///
    /// Arrivals from before the first message of an ingress are not part of the present load. A total below an earlier one
    /// belongs to a late message and is ignored: treated as a restart, it would count the arrivals since then twice. An ingress that
    /// restarted under the same id is counted once its predecessor is forgotten.
    pub fn record(&mut self, ingress: &str, total: u64, now: u64) {
        match self.ingresses.get_mut(ingress) {
            Some(counted) if total < counted.total => {}
            Some(counted) => {
                if counted.silent {
                    // What it counted while it was silent is not part of the present load either.
                    counted.taken += total - counted.total;
                }
                counted.total = total;
                counted.last_seen = now;
                counted.silent = false;
            }
            None => {
                let counted = Counted {
                    total,
                    taken: total,
                    last_seen: now,
                    silent: false,
                };
                self.ingresses.insert(ingress.to_owned(), counted);
            }
        }
    }

    /// Takes the arrivals since the last call, over all ingresses, and forgets ingresses that were silent for long.
    pub fn take(&mut self, now: u64) -> u64 {
        let mut arrivals = 0_u64;
        self.ingresses.retain(|_, counted| {
            arrivals = arrivals.saturating_add(counted.total - counted.taken);
            counted.taken = counted.total;
            let silence = now.saturating_sub(counted.last_seen);
            counted.silent = silence >= SILENCE_US;
            silence < MEMORY_US
        });
        arrivals
    }

    /// Returns whether `ingress` has the smallest id of the live ingresses. An ingress does not lead before it has listened for as
    /// long as detecting silence takes: until then it cannot know that it is alone.
    pub fn leads(&self, ingress: &str, now: u64) -> bool {
        let listened = now.saturating_sub(self.since) >= SILENCE_US;
        let mut living = self.ingresses.iter().filter(|(_, counted)| !counted.silent);
        listened && living.next().is_none_or(|(first, _)| ingress <= first.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_summed_and_a_lost_message_is_made_good() {
        let mut counter = ArrivalCounter::new(0);
        counter.record("a", 0, 0);
        counter.record("b", 100, 0);
        assert_eq!(
            counter.take(0),
            0,
            "what came before its first message is not load of now"
        );
        counter.record("a", 10, 100_000);
        counter.record("b", 130, 100_000);
        assert_eq!(counter.take(100_000), 40);
        counter.record("b", 190, 300_000);
        assert_eq!(counter.take(300_000), 60);
    }

    #[test]
    fn totals_of_any_size_are_summed() {
        let mut counter = ArrivalCounter::new(0);
        for ingress in ["a", "b"] {
            counter.record(ingress, 0, 0);
            counter.record(ingress, u64::MAX, 100_000);
        }
        assert_eq!(counter.take(100_000), u64::MAX);
    }

    #[test]
    fn a_new_start_counts_from_nothing_once_the_old_one_is_forgotten() {
        let mut counter = ArrivalCounter::new(0);
        counter.record("a", 1000, 0);
        for tick in 1..=100 {
            counter.record("a", tick, tick * 100_000);
            assert_eq!(counter.take(tick * 100_000), 0);
        }
        counter.record("a", 108, 10_100_000);
        counter.record("a", 113, 10_200_000);
        assert_eq!(counter.take(10_200_000), 5);
    }

    #[test]
    fn a_total_that_comes_late_is_not_a_new_start() {
        let mut counter = ArrivalCounter::new(0);
        counter.record("a", 100, 0);
        counter.record("a", 110, 100_000);
        counter.record("a", 105, 100_000);
        assert_eq!(counter.take(100_000), 10);
        counter.record("a", 0, 150_000);
        counter.record("a", 120, 200_000);
        assert_eq!(counter.take(200_000), 10, "none is counted twice");
        counter.take(900_000);
        counter.record("a", 115, 900_000);
        counter.record("a", 130, 1_000_000);
        assert_eq!(
            counter.take(1_000_000),
            0,
            "nor is what it counted in a silence load of now"
        );
        counter.record("a", 135, 1_100_000);
        assert_eq!(counter.take(1_100_000), 5);
    }

    #[test]
    fn the_living_one_of_the_smallest_id_leads() {
        let mut counter = ArrivalCounter::new(0);
        assert!(!counter.leads("b", SILENCE_US - 1), "it may not be alone");
        assert!(counter.leads("b", SILENCE_US));
        counter.record("a", 0, SILENCE_US);
        counter.record("b", 0, SILENCE_US);
        assert!(counter.leads("a", SILENCE_US) && !counter.leads("b", SILENCE_US));
        counter.record("b", 0, 2 * SILENCE_US);
        counter.take(2 * SILENCE_US);
        assert!(counter.leads("b", 2 * SILENCE_US), "the silent one leads no more");
    }
}
