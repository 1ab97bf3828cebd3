//! Failure detector: which processes are alive, judged by heartbeats alone.
//!
//! A process that was killed is noticed by the broker at once (its subjects have no responders). One that hangs, or
//! is stopped, keeps its connection and its place in the queue groups; only its silence betrays it.

use std::collections::BTreeMap;

/// How often actors beat, microseconds.
pub const BEAT_PERIOD_US: u64 = 100_000;

/// Beats that may be missed before an actor counts as lost. Three, so that one lost message and one late timer on a
/// busy machine are forgiven, and a death is still noticed in well under half a second.
pub const MISSED_BEATS: u64 = 3;

/// The living and the lost, by name.
#[derive(Debug, Clone, Default)]
pub struct Liveness {
    seen: BTreeMap<String, Seen>,
    /// By process, the number of its newest beat.
    counts: BTreeMap<String, u64>,
    /// How many of [`Liveness::seen`] are lost.
    lost: usize,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: u64,
    lost: bool,
}

impl Liveness {
    /// Notes a beat of `name` at `now` (µs). True if it was unknown or lost until now.
    pub fn beat(&mut self, name: &str, now: u64) -> bool {
        if let Some(seen) = self.seen.get_mut(name) {
            let returned = seen.lost;
            self.lost -= usize::from(returned);
            *seen = Seen {
                at: seen.at.max(now),
                lost: false,
            };
            return returned;
        }
        self.seen.insert(name.to_owned(), Seen { at: now, lost: false });
        true
    }

    /// Notes the number of a process's beat, which counts from its start. True if the process has started again since its last
    /// one: whatever it had is lost, although it was never silent for long.
    ///
    /// A late beat of the process before it is taken for another start; that costs a resend and loses nothing.
    pub fn restarted(&mut self, process: &str, number: u64) -> bool {
        if let Some(last) = self.counts.get_mut(process) {
            return number < std::mem::replace(last, number);
        }
        self.counts.insert(process.to_owned(), number);
        false
    }

    /// Names that fell silent since the last call: their newest beat is over [`MISSED_BEATS`] periods old at `now` (µs).
    pub fn newly_lost(&mut self, now: u64) -> Vec<String> {
        let oldest = now.saturating_sub(BEAT_PERIOD_US * MISSED_BEATS);
        let silent = self
            .seen
            .iter_mut()
            .filter(|(_, seen)| !seen.lost && seen.at < oldest);
        let names: Vec<String> = silent
            .map(|(name, seen)| {
                seen.lost = true;
                name.clone()
            })
            .collect();
        self.lost += names.len();
        names
    }

    /// Takes `name` for lost now, for a reason other than silence. True if it was alive.
    pub fn declare_lost(&mut self, name: &str) -> bool {
        let alive = self
            .seen
            .get_mut(name)
            .is_some_and(|seen| !std::mem::replace(&mut seen.lost, true));
        self.lost += usize::from(alive);
        alive
    }

    /// Forgets `name`: it left in good order.
    pub fn forget(&mut self, name: &str) {
        let forgotten = self.seen.remove(name);
        self.lost -= usize::from(forgotten.is_some_and(|seen| seen.lost));
    }

    /// Whether `name` beats.
    pub fn alive(&self, name: &str) -> bool {
        self.seen.get(name).is_some_and(|seen| !seen.lost)
    }

    /// Whether any process is silent. Called first for every request, so it is fast.
    pub fn any_lost(&self) -> bool {
        self.lost > 0
    }

    /// Whether `name` used to beat and fell silent.
    pub fn lost(&self, name: &str) -> bool {
        self.seen.get(name).is_some_and(|seen| seen.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_starts_again_between_two_beats_has_lost_what_it_had() {
        let mut liveness = Liveness::default();
        assert!(!liveness.restarted("w1", 7), "no earlier heartbeat");
        assert!(!liveness.restarted("w1", 8));
        assert!(liveness.restarted("w1", 0));
        assert!(!liveness.restarted("w1", 1));
        assert!(!liveness.restarted("w2", 0));
        assert!(
            !liveness.restarted("w2", 0),
            "an uncounted process never restarts"
        );
    }

    #[test]
    fn that_somebody_is_lost_is_known_without_looking() {
        let mut liveness = Liveness::default();
        for name in ["a", "b"] {
            liveness.beat(name, 0);
        }
        assert!(!liveness.any_lost());
        assert!(liveness.declare_lost("a") && !liveness.declare_lost("a") && liveness.any_lost());
        liveness.beat("a", 1);
        assert!(!liveness.any_lost(), "it is back");
        assert_eq!(liveness.newly_lost(u64::MAX).len(), 2);
        liveness.forget("a");
        assert!(liveness.any_lost());
        liveness.forget("b");
        assert!(!liveness.any_lost(), "both have left in good order");
    }

    #[test]
    fn silence_is_noticed_once_and_a_return_too() {
        let mut liveness = Liveness::default();
        assert!(liveness.beat("a", 0));
        assert!(!liveness.beat("a", BEAT_PERIOD_US));
        assert!(liveness.newly_lost(4 * BEAT_PERIOD_US).is_empty());
        assert_eq!(liveness.newly_lost(4 * BEAT_PERIOD_US + 1), ["a"]);
        assert!(liveness.newly_lost(9 * BEAT_PERIOD_US).is_empty());
        assert!(liveness.lost("a") && !liveness.alive("a"));
        assert!(liveness.beat("a", 9 * BEAT_PERIOD_US));
        assert!(liveness.alive("a"));
    }

    #[test]
    fn a_beat_that_arrives_late_does_not_turn_back_the_clock() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 10 * BEAT_PERIOD_US);
        liveness.beat("a", 2 * BEAT_PERIOD_US);
        assert!(liveness.newly_lost(12 * BEAT_PERIOD_US).is_empty());
    }

    #[test]
    fn who_left_is_not_mourned() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 0);
        liveness.forget("a");
        assert!(liveness.newly_lost(u64::MAX).is_empty());
        assert!(!liveness.alive("a") && !liveness.lost("a"));
    }
}
