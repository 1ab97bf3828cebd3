//! The replicas that a process may send to, and how a process without an ingress learns them.
//!
//! Only ingresses follow the heartbeats ([`crate::liveness`]). Each publishes the replicas to avoid, at every change and
//! once per second, so that liveness costs O(N) messages for N workers. A worker avoids what any live ingress lists.
//!
//! The broker reports "no responders" only to the connection that sends a request and subscribes to its reply: the
//! ingress's. So a worker sends a request on by itself only if the ingress that owns it has published which replicas live.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Period at which an ingress publishes its state without a change, microseconds.
pub const STATE_PERIOD_US: u64 = 1_000_000;

/// Age at which the state of an ingress is ignored, microseconds: three states were missed.
pub const STATE_VALID_US: u64 = 3 * STATE_PERIOD_US;

/// The replicas that a process may send to, at one moment. Each query takes constant time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reachability {
    /// The replicas that send heartbeats and do not leave; `None` where heartbeats are not followed.
    alive: Option<HashSet<Arc<str>>>,
    avoided: HashSet<Arc<str>>,
    /// The ingresses that published which replicas live.
    informed_by: HashSet<Arc<str>>,
}

impl Reachability {
    /// The view of a process that follows the heartbeats: it may send to those that send heartbeats. `avoided` are lost or
    /// leaving.
    pub fn record(alive: HashSet<Arc<str>>, avoided: HashSet<Arc<str>>) -> Self {
        Self {
            alive: Some(alive),
            avoided,
            informed_by: HashSet::new(),
        }
    }

    /// The view of a process that follows ingresses: it may send to every replica but the avoided ones. `informed_by`
    /// are the ingresses that published which replicas live.
    pub(crate) fn all_but(avoided: HashSet<Arc<str>>, informed_by: HashSet<Arc<str>>) -> Self {
        Self {
            alive: None,
            avoided,
            informed_by,
        }
    }

    /// Returns whether the view includes what this ingress knows of the replicas. If not, the ingress must send its requests
    /// itself: the broker reports a missing responder to no other process.
    pub fn is_informed_by(&self, ingress: &str) -> bool {
        self.alive.is_some() || self.informed_by.contains(ingress)
    }

    /// Returns whether the process may send to this replica.
    pub fn is_reachable(&self, replica: &str) -> bool {
        match &self.alive {
            Some(alive) => alive.contains(replica),
            None => !self.avoided.contains(replica),
        }
    }

    /// Returns whether this replica is lost or leaving, as opposed to unknown.
    pub fn is_avoided(&self, replica: &str) -> bool {
        self.avoided.contains(replica)
    }

    /// Returns whether any replica is to be avoided.
    pub fn avoids_any(&self) -> bool {
        !self.avoided.is_empty()
    }
}

impl Default for Reachability {
    /// The view of a process that has received no heartbeat: no replica is reachable, none is avoided.
    fn default() -> Self {
        Self::record(HashSet::new(), HashSet::new())
    }
}

/// The newest states of the ingresses of an app, as a worker receives them.
#[derive(Debug, Clone, Default)]
pub struct IngressStates {
    states: BTreeMap<String, ReceivedState>,
}

/// The state of an ingress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IngressView {
    /// Number of the message; the newest counts.
    pub sequence: u64,
    /// Whether the ingress started too recently to know which replicas live.
    pub starting: bool,
    /// The replicas to avoid.
    pub unavailable: BTreeSet<String>,
    /// Whether this is its last state.
    pub gone: bool,
}

#[derive(Debug, Clone)]
struct ReceivedState {
    at: u64,
    view: IngressView,
}

impl IngressStates {
    /// Notes the state of an ingress that arrived at `now` (µs). An older state than the newest, by its sequence number,
    /// is ignored. True if the view may have changed.
    pub fn record(&mut self, ingress: &str, view: IngressView, now: u64) -> bool {
        let Some(known) = self.states.get_mut(ingress) else {
            self.states
                .insert(ingress.to_owned(), ReceivedState { at: now, view });
            return true;
        };
        if known.view.sequence > view.sequence {
            return false;
        }
        known.view.sequence = view.sequence;
        let changed = known.view != view;
        *known = ReceivedState { at: now, view };
        changed
    }

    /// Drops the states that are too old at `now` (µs). True if the view may have changed.
    pub fn expire(&mut self, now: u64) -> bool {
        let before = self.states.len();
        self.states
            .retain(|_, received| now.saturating_sub(received.at) < STATE_VALID_US);
        self.states.len() != before
    }

    /// Returns what the worker may send to: every replica that no live ingress lists.
    pub fn reachability(&self) -> Reachability {
        let shared = |name: &String| Arc::from(name.as_str());
        let live = || self.states.iter().filter(|(_, received)| !received.view.gone);
        let avoided = live().flat_map(|(_, received)| &received.view.unavailable);
        let informed_by = live().filter(|(_, received)| !received.view.starting);
        Reachability::all_but(
            avoided.map(shared).collect(),
            informed_by.map(|(ingress, _)| shared(ingress)).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(sequence: u64, unavailable: &[&str]) -> IngressView {
        IngressView {
            sequence,
            unavailable: unavailable.iter().map(|name| (*name).to_owned()).collect(),
            ..IngressView::default()
        }
    }

    /// Returns those of `a`, `b` and `c` that a worker may send to.
    fn reached(states: &IngressStates) -> String {
        let view = states.reachability();
        ["a", "b", "c"]
            .into_iter()
            .filter(|name| view.is_reachable(name))
            .collect()
    }

    #[test]
    fn a_process_without_heartbeats_reaches_nothing_and_avoids_nothing() {
        let view = Reachability::default();
        assert!(!view.is_reachable("a") && !view.is_avoided("a") && !view.avoids_any());
    }

    #[test]
    fn a_worker_avoids_what_any_live_ingress_lists() {
        let mut states = IngressStates::default();
        assert_eq!(
            reached(&states),
            "abc",
            "before any state of an ingress has arrived"
        );
        assert!(states.record("i", view(0, &["a"]), 0));
        assert!(states.record("j", view(0, &["b"]), 1_000));
        assert_eq!(reached(&states), "c");
        assert!(states.reachability().is_avoided("b") && states.reachability().avoids_any());
        assert!(!states.record("j", view(1, &["b"]), 1_500), "the same again");
        assert!(states.record("j", view(2, &[]), 2_000));
        assert_eq!(reached(&states), "bc");
    }

    #[test]
    fn an_ingress_that_left_or_fell_silent_has_no_say() {
        let mut states = IngressStates::default();
        states.record("i", view(4, &["a"]), 0);
        states.record("j", view(0, &["b"]), 10);
        let last = IngressView {
            gone: true,
            ..view(5, &["a"])
        };
        assert!(states.record("i", last, 20));
        assert_eq!(reached(&states), "ac");
        assert!(!states.reachability().is_informed_by("i"));
        assert!(!states.record("i", view(3, &["a"]), 30), "an old message");
        assert_eq!(reached(&states), "ac");
        assert!(!states.expire(STATE_VALID_US + 9));
        assert!(states.expire(STATE_VALID_US + 10));
        assert_eq!(reached(&states), "abc");
    }

    #[test]
    fn an_ingress_sends_by_itself_until_it_has_told_which_replicas_live() {
        let mut states = IngressStates::default();
        assert!(!states.reachability().is_informed_by("i"));
        let first = IngressView {
            starting: true,
            ..view(0, &["a"])
        };
        states.record("i", first, 0);
        assert_eq!(reached(&states), "bc", "what it knows counts already");
        assert!(!states.reachability().is_informed_by("i"));
        assert!(states.record("i", view(1, &["a"]), 1));
        assert!(states.reachability().is_informed_by("i") && !states.reachability().is_informed_by("j"));
        states.expire(1 + STATE_VALID_US);
        assert!(!states.reachability().is_informed_by("i"));
        assert!(
            Reachability::default().is_informed_by("i"),
            "a process that hears heartbeats knows itself"
        );
    }

    proptest! {
        /// The view is what the definition says, and a worker that hears nothing new for long avoids nothing.
        #[test]
        fn the_view_is_the_union_of_the_newest_states(
            steps in prop::collection::vec(("[ij]", prop::collection::btree_set("[a-c]", 0..3), any::<bool>()), 0..20),
        ) {
            let mut states = IngressStates::default();
            let mut newest = BTreeMap::new();
            for ((ingress, unavailable, gone), sequence) in steps.into_iter().zip(0..) {
                let state = IngressView { sequence, starting: false, unavailable: unavailable.clone(), gone };
                states.record(&ingress, state, sequence);
                newest.insert(ingress, (unavailable, gone));
            }
            let listed = |name: &str| newest.values().any(|(listed, gone)| !gone && listed.contains(name));
            let view = states.reachability();
            for name in ["a", "b", "c"] {
                prop_assert_eq!(view.is_reachable(name), !listed(name));
                prop_assert_eq!(view.is_avoided(name), listed(name));
            }
            states.expire(20 + STATE_VALID_US);
            prop_assert!(!states.reachability().avoids_any());
        }
    }
}
