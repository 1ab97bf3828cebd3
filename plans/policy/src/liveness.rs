//! Failure detector: which processes are alive, judged by heartbeats alone.
//!
//! A process that was killed is noticed by the broker at once (its subjects have no responders). One that hangs, or
//! is stopped, keeps its connection and its place in the queue groups; only its silence betrays it. A process that leaves in good
//! order announces it: it is avoided, finishes what it has accepted, and sends a last heartbeat without replicas.

use std::collections::BTreeMap;

/// How often actors beat, microseconds.
pub const BEAT_PERIOD_US: u64 = 100_000;

/// Beats that may be missed before an actor counts as lost. Three, so that one lost message and one late timer on a
/// busy machine are forgiven, and a death is still noticed in well under half a second.
pub const MISSED_BEATS: u64 = 3;

/// Which replicas are alive, leaving or lost, by name.
#[derive(Debug, Clone, Default)]
pub struct Liveness {
    seen: BTreeMap<String, Seen>,
    /// By process, the number of its newest beat.
    counts: BTreeMap<String, u64>,
    /// How many of [`Liveness::seen`] are lost or leaving.
    unavailable: usize,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Alive,
    /// It finishes what it has accepted and takes no more.
    Leaving,
    Lost,
}

impl Liveness {
    /// Notes a beat of `name` at `now` (µs). True if it was unknown or lost until now.
    pub fn beat(&mut self, name: &str, now: u64) -> bool {
        !matches!(
            self.note(name, now, State::Alive),
            Some(State::Alive | State::Leaving)
        )
    }

    /// Notes a beat of `name` at `now` (µs) that announces its leave. From here on it is not to be chosen, but what it has
    /// accepted stays there: it is lost only if it falls silent. True if it was not leaving until now.
    pub fn leaving(&mut self, name: &str, now: u64) -> bool {
        self.note(name, now, State::Leaving) != Some(State::Leaving)
    }

    /// Sets the state of `name` and returns the one before.
    fn note(&mut self, name: &str, now: u64, state: State) -> Option<State> {
        if let Some(seen) = self.seen.get_mut(name) {
            let before = std::mem::replace(&mut seen.state, state);
            seen.at = seen.at.max(now);
            self.unavailable -= usize::from(before != State::Alive);
            self.unavailable += usize::from(state != State::Alive);
            return Some(before);
        }
        self.seen.insert(name.to_owned(), Seen { at: now, state });
        self.unavailable += usize::from(state != State::Alive);
        None
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
            .filter(|(_, seen)| seen.state != State::Lost && seen.at < oldest);
        let names: Vec<String> = silent
            .map(|(name, seen)| {
                self.unavailable += usize::from(seen.state == State::Alive);
                seen.state = State::Lost;
                name.clone()
            })
            .collect();
        names
    }

    /// Takes `name` for lost now, for a reason other than silence. True if it was alive or leaving.
    pub fn declare_lost(&mut self, name: &str) -> bool {
        let Some(seen) = self.seen.get_mut(name) else {
            return false;
        };
        let before = std::mem::replace(&mut seen.state, State::Lost);
        self.unavailable += usize::from(before == State::Alive);
        before != State::Lost
    }

    /// Forgets `name`: it left in good order.
    pub fn forget(&mut self, name: &str) {
        let forgotten = self.seen.remove(name);
        self.unavailable -= usize::from(forgotten.is_some_and(|seen| seen.state != State::Alive));
    }

    /// Whether `name` beats and does not leave.
    pub fn alive(&self, name: &str) -> bool {
        self.is(name, State::Alive)
    }

    /// Whether any process is lost or leaving. Called first for every request, so it is fast.
    pub fn any_unavailable(&self) -> bool {
        self.unavailable > 0
    }

    /// Whether `name` is to be avoided: it used to beat and fell silent, or it leaves.
    pub fn unavailable(&self, name: &str) -> bool {
        self.lost(name) || self.is(name, State::Leaving)
    }

    /// Whether `name` used to beat and fell silent.
    pub fn lost(&self, name: &str) -> bool {
        self.is(name, State::Lost)
    }

    fn is(&self, name: &str, state: State) -> bool {
        self.seen.get(name).is_some_and(|seen| seen.state == state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

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
        assert!(!liveness.any_unavailable());
        assert!(liveness.declare_lost("a") && !liveness.declare_lost("a") && liveness.any_unavailable());
        liveness.beat("a", 1);
        assert!(!liveness.any_unavailable(), "it is back");
        assert_eq!(liveness.newly_lost(u64::MAX).len(), 2);
        liveness.forget("a");
        assert!(liveness.any_unavailable());
        liveness.forget("b");
        assert!(!liveness.any_unavailable(), "both have left in good order");
    }

    #[test]
    fn a_leaving_replica_is_avoided_and_lost_only_when_it_falls_silent() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 0);
        assert!(liveness.leaving("a", BEAT_PERIOD_US));
        assert!(!liveness.leaving("a", 2 * BEAT_PERIOD_US));
        assert!(!liveness.alive("a") && !liveness.lost("a") && liveness.unavailable("a"));
        assert!(liveness.any_unavailable());
        assert!(liveness.newly_lost(5 * BEAT_PERIOD_US).is_empty());
        assert_eq!(liveness.newly_lost(5 * BEAT_PERIOD_US + 1), ["a"]);
        assert!(liveness.lost("a") && liveness.unavailable("a"));
        liveness.forget("a");
        assert!(!liveness.unavailable("a") && !liveness.any_unavailable());
    }

    #[test]
    fn a_process_that_starts_again_after_its_leave_is_chosen_again() {
        let mut liveness = Liveness::default();
        liveness.leaving("a", 0);
        assert!(liveness.any_unavailable());
        assert!(!liveness.beat("a", 1), "it was heard all the time");
        assert!(liveness.alive("a") && !liveness.any_unavailable());
        liveness.leaving("a", 2);
        assert!(liveness.declare_lost("a") && !liveness.declare_lost("a"));
        liveness.beat("a", 3);
        assert!(!liveness.any_unavailable());
    }

    proptest! {
        /// The fast test agrees with the names, whatever happens in which order.
        #[test]
        fn any_unavailable_says_what_the_names_say(steps in vec((0_usize..3, 0_u8..5, 0_u64..5), 0..40)) {
            let names = ["a", "b", "c"];
            let mut liveness = Liveness::default();
            let mut now = 0;
            for (name, step, periods) in steps {
                now += periods * BEAT_PERIOD_US;
                match step {
                    0 => drop(liveness.beat(names[name], now)),
                    1 => drop(liveness.leaving(names[name], now)),
                    2 => drop(liveness.declare_lost(names[name])),
                    3 => liveness.forget(names[name]),
                    _ => drop(liveness.newly_lost(now)),
                }
                let unavailable = names.iter().any(|name| liveness.unavailable(name));
                prop_assert_eq!(liveness.any_unavailable(), unavailable);
                for name in names {
                    prop_assert!(!(liveness.alive(name) && liveness.unavailable(name)));
                }
            }
        }
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
