//! Failure detector: which processes are alive, judged by heartbeats alone.
//!
//! A process that was killed is noticed by the broker at once (its subjects have no responders). One that hangs, or
//! is stopped, keeps its connection and its place in the queue groups; only its silence betrays it.
//!
//! The silence of others is measured in the time in which the observer itself runs. A process that was stalled has
//! not read the heartbeats that arrived meanwhile, so the stall is no evidence against their senders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::reachability::Reachability;

/// How often actors beat, microseconds.
pub const BEAT_PERIOD_US: u64 = 100_000;

/// Beats that may be missed before an actor counts as lost. Three, so that one lost message and one late timer on a
/// busy machine are forgiven, and a death is still noticed in well under half a second.
pub const MISSED_BEATS: u64 = 3;

/// Silence after which an actor counts as lost, microseconds.
pub const DETECTION_US: u64 = MISSED_BEATS * BEAT_PERIOD_US;

/// Silence after which a lost actor that no plan names is forgotten, microseconds. Its name may never return: every start of a
/// stage may have a new one.
pub const FORGOTTEN_US: u64 = 60_000_000;

/// How often a process looks for silent actors, microseconds: half a heartbeat period.
pub const LOOK_PERIOD_US: u64 = BEAT_PERIOD_US / 2;

/// Beats of the process before that show that it is still alive: fewer may be late.
const BEATS_BESIDE: u32 = 10;

/// Time between two looks beyond which the observer counts as stalled, microseconds.
const LATE_LOOK_US: u64 = 2 * LOOK_PERIOD_US;

/// The living and the lost, by name.
#[derive(Debug, Clone, Default)]
pub struct Liveness {
    seen: BTreeMap<Arc<str>, Seen>,
    /// The newest beat of each process.
    processes: BTreeMap<String, Process>,
    /// The replicas that could not be loaded where the admitted plan places them.
    unloadable: BTreeSet<Arc<str>>,
    /// Counts the changes of what [`Liveness::reachability`] returns.
    revision: u64,
    looks: Option<Looks>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// When its newest beat arrived, in the time in which the observer runs.
    at: u64,
    lost: bool,
    leaving: bool,
}

#[derive(Debug, Clone, Copy)]
struct Process {
    instance: u64,
    /// Number of its newest beat.
    number: u64,
    /// When that arrived, in the time in which the observer runs.
    at: u64,
    /// The instance before it.
    before: Option<u64>,
    /// Beats of the instance before it since its own start.
    beside: u32,
}

/// What a process's beat shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The process goes on.
    Same,
    /// It has started again since its last beat.
    Again,
    /// Another process with its name beats beside it. Told once.
    Beside,
}

/// When the observer looked for silence.
#[derive(Debug, Clone, Copy)]
struct Looks {
    first: u64,
    last: u64,
    /// Whether the last look was late.
    late: bool,
    /// Time during which the observer was stalled, microseconds.
    stalled: u64,
}

impl Liveness {
    /// Notes a beat of `name` at `now` (µs). True if it was unknown, lost or leaving until now.
    pub fn beat(&mut self, name: &str, now: u64) -> bool {
        self.heard(name, now, false)
    }

    /// Notes a beat of `name` at `now` (µs) that says that it is shutting down: it is alive and must not be chosen.
    pub fn beat_leaving(&mut self, name: &str, now: u64) {
        self.heard(name, now, true);
    }

    fn heard(&mut self, name: &str, now: u64, leaving: bool) -> bool {
        let at = self.running(now);
        let changed = if let Some(seen) = self.seen.get_mut(name) {
            let changed = seen.lost || seen.leaving != leaving;
            let at = seen.at.max(at);
            *seen = Seen {
                at,
                lost: false,
                leaving,
            };
            changed
        } else {
            let lost = false;
            self.seen.insert(name.into(), Seen { at, lost, leaving });
            true
        };
        self.revision += u64::from(changed);
        changed
    }

    /// Notes the number of a process's beat at `now` (µs), which counts from its start, and the instance that sent it. If the process has
    /// [started again](Start::Again) since its last one, whatever it had is lost, although it was never silent for long. The number
    /// alone does not show it if the process died before it had sent more beats than the one after it.
    ///
    /// Beats of the process before it are late, or that process still runs: [`Start::Beside`].
    pub fn started(&mut self, process: &str, instance: u64, number: u64, now: u64) -> Start {
        let at = self.running(now);
        let Some(last) = self.processes.get_mut(process) else {
            let first = Process {
                instance,
                number,
                at,
                before: None,
                beside: 0,
            };
            self.processes.insert(process.to_owned(), first);
            return Start::Same;
        };
        last.at = at;
        if last.before == Some(instance) && instance != last.instance {
            last.beside = last.beside.saturating_add(1);
            return if last.beside == BEATS_BESIDE {
                Start::Beside
            } else {
                Start::Same
            };
        }
        let again = instance != last.instance || number < last.number;
        if instance != last.instance {
            last.before = Some(last.instance);
            last.beside = 0;
        }
        (last.instance, last.number) = (instance, number);
        if again { Start::Again } else { Start::Same }
    }

    /// Looks for silence: names whose newest beat is over [`DETECTION_US`] old at `now` (µs) and that were not lost at
    /// the last call. Call it every [`LOOK_PERIOD_US`], after reading the beats that have arrived.
    ///
    /// If the last call was much longer ago, the observer was stalled. Then the stall does not count as silence, and
    /// this look finds nothing: beats may still be on their way through the observer's own queues. A second late look
    /// in a row counts again, so that a process that is always late still finds the lost.
    pub fn newly_lost(&mut self, now: u64) -> Vec<String> {
        if self.is_late(now) {
            return Vec::new();
        }
        let oldest = self.running(now).saturating_sub(DETECTION_US);
        let silent = self
            .seen
            .iter_mut()
            .filter(|(_, seen)| !seen.lost && seen.at < oldest);
        let names: Vec<String> = silent
            .map(|(name, seen)| {
                seen.lost = true;
                name.to_string()
            })
            .collect();
        self.revision += u64::from(!names.is_empty());
        names
    }

    /// Notes a look. True if it is the first late one after a look in time.
    fn is_late(&mut self, now: u64) -> bool {
        let looks = self.looks.get_or_insert(Looks {
            first: now,
            last: now,
            late: false,
            stalled: 0,
        });
        let gap = now.saturating_sub(std::mem::replace(&mut looks.last, now));
        let late = gap > LATE_LOOK_US;
        let before = std::mem::replace(&mut looks.late, late);
        if late {
            looks.stalled += gap - LOOK_PERIOD_US;
            let running = self.running(now);
            // Beats that were read between the stall and this look.
            for seen in self.seen.values_mut() {
                seen.at = seen.at.min(running);
            }
        }
        late && !before
    }

    /// `now` without the time during which this process was stalled.
    fn running(&self, now: u64) -> u64 {
        now.saturating_sub(self.looks.map_or(0, |looks| looks.stalled))
    }

    /// Takes `name` for lost now, for a reason other than silence. True if it was alive.
    pub fn declare_lost(&mut self, name: &str) -> bool {
        let alive = self
            .seen
            .get_mut(name)
            .is_some_and(|seen| !std::mem::replace(&mut seen.lost, true));
        self.revision += u64::from(alive);
        alive
    }

    /// Replaces the replicas that could not be loaded where the admitted plan places them: they are avoided, although
    /// another worker may still list a replica of that name.
    pub fn set_unloadable(&mut self, names: &BTreeSet<String>) {
        let same = names.len() == self.unloadable.len()
            && names.iter().all(|name| self.unloadable.contains(name.as_str()));
        if !same {
            self.unloadable = names.iter().map(|name| Arc::from(name.as_str())).collect();
            self.revision += 1;
        }
    }

    /// Forgets `name`: it left in good order.
    pub fn forget(&mut self, name: &str) {
        self.revision += u64::from(self.seen.remove(name).is_some());
    }

    /// Forgets the lost that have been silent for [`FORGOTTEN_US`] at `now` (µs) and that no plan places, and processes that
    /// have been silent as long.
    pub fn forget_lost(&mut self, now: u64, is_placed: impl Fn(&str) -> bool) {
        let oldest = self.running(now).saturating_sub(FORGOTTEN_US);
        let known = self.seen.len();
        self.seen
            .retain(|name, seen| !seen.lost || seen.at >= oldest || is_placed(name));
        self.revision += u64::from(self.seen.len() != known);
        self.processes.retain(|_, process| process.at >= oldest);
    }

    /// Whether a beat of the process was noted, and it is not forgotten.
    pub fn knows_process(&self, process: &str) -> bool {
        self.processes.contains_key(process)
    }

    /// Whether `name` beats.
    pub fn alive(&self, name: &str) -> bool {
        self.seen.get(name).is_some_and(|seen| !seen.lost)
    }

    /// Whether `name` used to beat and fell silent.
    pub fn lost(&self, name: &str) -> bool {
        self.seen.get(name).is_some_and(|seen| seen.lost)
    }

    /// The names of those that beat, in order.
    pub fn living(&self) -> impl Iterator<Item = &str> {
        let living = self.seen.iter().filter(|(_, seen)| !seen.lost);
        living.map(|(name, _)| &**name)
    }

    /// A number that changes whenever [`Liveness::reachability`] does.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Where a process that hears the beats itself may send: to those that beat, do not leave and could be loaded.
    pub fn reachability(&self) -> Reachability {
        let all = self.seen.iter();
        let is_avoided =
            |name: &Arc<str>, seen: &Seen| seen.lost || seen.leaving || self.unloadable.contains(name);
        let (avoided, heard) = all.partition::<Vec<_>, _>(|(name, seen)| is_avoided(name, seen));
        let heard = heard.into_iter().map(|(name, _)| Arc::clone(name));
        let avoided = avoided.into_iter().map(|(name, _)| Arc::clone(name));
        let avoided = avoided.chain(self.unloadable.iter().cloned());
        Reachability::heard(heard.collect(), avoided.collect())
    }

    /// Whether this process has looked for no longer than [`DETECTION_US`] at `now` (µs): it may not have heard all yet.
    pub fn is_starting(&self, now: u64) -> bool {
        let first = self.looks.map(|looks| looks.first);
        first.is_none_or(|first| self.running(now).saturating_sub(first) <= DETECTION_US)
    }

    /// The replicas that others should avoid: the lost, the leaving, those that could not be loaded, and those of `placed` that were never heard although
    /// this process no longer [is starting](Liveness::is_starting) at `now` (µs).
    pub fn unavailable<'a>(&self, placed: impl IntoIterator<Item = &'a str>, now: u64) -> BTreeSet<String> {
        let avoided = self.seen.iter().filter(|(_, seen)| seen.lost || seen.leaving);
        let mut names: BTreeSet<String> = avoided.map(|(name, _)| name.to_string()).collect();
        names.extend(self.unloadable.iter().map(ToString::to_string));
        if !self.is_starting(now) {
            let unheard = placed.into_iter().filter(|name| !self.seen.contains_key(*name));
            names.extend(unheard.map(ToOwned::to_owned));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn who_starts_again_between_two_beats_has_lost_what_it_had() {
        let mut liveness = Liveness::default();
        assert_eq!(
            liveness.started("w1", 1, 7, 0),
            Start::Same,
            "no earlier heartbeat"
        );
        assert_eq!(liveness.started("w1", 1, 8, 0), Start::Same);
        assert_eq!(
            liveness.started("w1", 1, 0, 0),
            Start::Again,
            "it lost its connection"
        );
        assert_eq!(liveness.started("w1", 1, 1, 0), Start::Same);
        assert_eq!(
            liveness.started("w1", 2, 1, 0),
            Start::Again,
            "it died before it had sent more beats than the next"
        );
        assert_eq!(liveness.started("w1", 2, 2, 0), Start::Same);
        assert_eq!(liveness.started("w2", 0, 0, 0), Start::Same);
        assert_eq!(
            liveness.started("w2", 0, 0, 0),
            Start::Same,
            "an uncounted process never restarts"
        );
    }

    #[test]
    fn two_processes_of_one_name_are_told_once() {
        let mut liveness = Liveness::default();
        assert_eq!(liveness.started("w", 1, 100, 0), Start::Same);
        assert_eq!(liveness.started("w", 2, 0, 0), Start::Again);
        let found: Vec<Start> = (1..=60)
            .map(|number| liveness.started("w", 1 + number % 2, 100 + number, 0))
            .collect();
        assert!(
            found.iter().all(|start| *start != Start::Again),
            "neither has started again"
        );
        assert_eq!(found.iter().filter(|start| **start == Start::Beside).count(), 1);
        assert_eq!(liveness.started("w", 3, 0, 0), Start::Again);
    }

    #[test]
    fn a_replica_that_could_not_be_loaded_is_avoided_although_another_worker_lists_its_name() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 0);
        liveness.set_unloadable(&BTreeSet::from(["a".to_owned()]));
        liveness.beat("a", 1);
        let view = liveness.reachability();
        assert!(!view.is_reachable("a") && view.is_avoided("a"));
        assert!(liveness.unavailable(["a"], 1).contains("a"));
        liveness.set_unloadable(&BTreeSet::new());
        assert!(liveness.reachability().is_reachable("a"));
    }

    /// Looks in time from one point to another; returns what was found.
    fn looks(liveness: &mut Liveness, from: u64, until: u64) -> Vec<String> {
        let times = (from..=until).step_by(LOOK_PERIOD_US as usize);
        times.flat_map(|now| liveness.newly_lost(now)).collect()
    }

    #[test]
    fn every_change_of_reachability_changes_the_revision() {
        let mut liveness = Liveness::default();
        let mut changed = |change: &mut dyn FnMut(&mut Liveness)| {
            let before = (liveness.revision(), liveness.reachability());
            change(&mut liveness);
            let changed = before.0 != liveness.revision();
            assert_eq!(changed, before.1 != liveness.reachability());
            changed
        };
        assert!(changed(&mut |liveness| assert!(liveness.beat("a", 0))));
        let failed = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        assert!(changed(&mut |liveness| liveness.set_unloadable(&failed)));
        assert!(!changed(&mut |liveness| liveness.set_unloadable(&failed)));
        assert!(changed(&mut |liveness| liveness.set_unloadable(&BTreeSet::new())));
        assert!(!changed(&mut |liveness| assert!(!liveness.beat("a", 1))));
        assert!(changed(&mut |liveness| assert!(liveness.declare_lost("a"))));
        assert!(!changed(&mut |liveness| assert!(!liveness.declare_lost("a"))));
        assert!(
            changed(&mut |liveness| assert!(liveness.beat("a", 2))),
            "it is back"
        );
        assert!(changed(&mut |liveness| liveness.beat_leaving("a", 3)));
        assert!(!changed(&mut |liveness| liveness.beat_leaving("a", 4)));
        assert!(changed(&mut |liveness| liveness.forget("a")));
        assert!(!changed(&mut |liveness| liveness.forget("a")));
    }

    /// Stages that start under new names again and again must not fill the memory of every process.
    #[test]
    fn the_lost_are_forgotten_unless_a_plan_places_them() {
        let mut liveness = Liveness::default();
        for name in ["placed", "killed", "alive"] {
            liveness.beat(name, 0);
            assert_eq!(liveness.started(name, 1, 1, 0), Start::Same);
        }
        looks(&mut liveness, 0, FORGOTTEN_US - LOOK_PERIOD_US);
        liveness.beat("alive", FORGOTTEN_US);
        liveness.started("alive", 1, 2, FORGOTTEN_US);
        let forget = |liveness: &mut Liveness, now| {
            liveness.forget_lost(now, |name| name == "placed");
            let known = ["placed", "killed", "alive"].map(|name| liveness.alive(name) || liveness.lost(name));
            (known, liveness.revision())
        };
        let (known, before) = forget(&mut liveness, FORGOTTEN_US);
        assert_eq!(known, [true; 3], "a minute has not passed");
        let (known, after) = forget(&mut liveness, FORGOTTEN_US + 1);
        assert_eq!(known, [true, false, true]);
        assert_eq!(after, before + 1);
        assert_eq!(forget(&mut liveness, FORGOTTEN_US + 1).1, after);
        assert!(liveness.reachability().is_avoided("placed"));
        assert!(!liveness.unavailable([], FORGOTTEN_US + 1).contains("killed"));
        assert!(liveness.knows_process("alive") && !liveness.knows_process("killed"));
        assert_eq!(
            liveness.started("killed", 2, 0, FORGOTTEN_US + 2),
            Start::Same,
            "it is new"
        );
    }

    /// A stall of the observer is no silence.
    #[test]
    fn a_long_stall_forgets_nobody() {
        let mut liveness = Liveness::default();
        looks(&mut liveness, 0, SECOND);
        liveness.beat("a", SECOND);
        liveness.started("w", 1, 1, SECOND);
        liveness.declare_lost("a");
        liveness.newly_lost(100 * SECOND);
        liveness.forget_lost(100 * SECOND, |_| false);
        assert!(liveness.lost("a") && liveness.knows_process("w"));
    }

    #[test]
    fn a_leaving_replica_is_avoided_and_still_lost_when_silent() {
        let mut liveness = Liveness::default();
        liveness.beat_leaving("a", 0);
        assert!(liveness.alive("a") && !liveness.reachability().is_reachable("a"));
        assert!(liveness.reachability().is_avoided("a"));
        assert_eq!(looks(&mut liveness, 0, DETECTION_US + LOOK_PERIOD_US), ["a"]);
    }

    #[test]
    fn a_stall_of_the_observer_is_no_evidence() {
        let mut liveness = Liveness::default();
        assert!(looks(&mut liveness, 0, 1_000_000).is_empty());
        for name in ["a", "b"] {
            liveness.beat(name, 1_000_000);
        }
        // The process does not run for 500 ms. Then it looks before it reads a beat, and one tick later again.
        assert!(liveness.newly_lost(1_500_000).is_empty());
        assert!(liveness.newly_lost(1_550_000).is_empty());
        liveness.beat("a", 1_560_000);
        // From here the time counts again: b fell silent, a goes on.
        let mut found = Vec::new();
        for now in (1_600_000..=2_500_000).step_by(LOOK_PERIOD_US as usize) {
            liveness.beat("a", now);
            found.extend(liveness.newly_lost(now));
        }
        assert_eq!(found, ["b"]);
    }

    #[test]
    fn a_beat_read_after_a_stall_does_not_hide_a_death() {
        let mut liveness = Liveness::default();
        assert!(liveness.newly_lost(0).is_empty());
        liveness.beat("a", 5_000_000);
        assert!(liveness.newly_lost(5_000_000).is_empty());
        let until = 5_000_000 + DETECTION_US + LOOK_PERIOD_US;
        assert_eq!(looks(&mut liveness, 5_050_000, until), ["a"]);
    }

    #[test]
    fn a_process_whose_looks_are_always_late_finds_the_lost() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 0);
        let mut times = (0..20).map(|look| look * 3 * LOOK_PERIOD_US);
        assert!(times.any(|now| liveness.newly_lost(now) == ["a"]));
    }

    #[test]
    fn placed_replicas_that_were_never_heard_are_unavailable_after_the_detection_time() {
        let mut liveness = Liveness::default();
        let placed = ["a", "b", "c"];
        let told = |liveness: &Liveness, now| Vec::from_iter(liveness.unavailable(placed, now));
        assert!(looks(&mut liveness, 0, DETECTION_US).is_empty());
        liveness.beat("a", DETECTION_US);
        assert!(
            told(&liveness, DETECTION_US).is_empty(),
            "it may be too early to tell"
        );
        assert_eq!(told(&liveness, DETECTION_US + 1), ["b", "c"]);
        liveness.declare_lost("a");
        liveness.beat("b", DETECTION_US);
        liveness.beat_leaving("elsewhere", DETECTION_US);
        assert_eq!(told(&liveness, DETECTION_US + 1), ["a", "c", "elsewhere"]);
    }

    proptest! {
        /// However the process is stalled, it never loses a replica whose beats it reads before it looks again in time.
        #[test]
        fn stalls_never_accuse_a_replica_that_beats(stalls in prop::collection::vec(0_u64..3_000_000, 1..40)) {
            let mut liveness = Liveness::default();
            let mut now = 0;
            for stall in stalls {
                liveness.beat("a", now);
                for _ in 0..2 {
                    now += LOOK_PERIOD_US;
                    prop_assert!(liveness.newly_lost(now).is_empty());
                }
                now += stall;
                // The look comes first, and the beats that waited right after it.
                prop_assert!(liveness.newly_lost(now).is_empty());
            }
        }

        /// A replica that is silent is found, and in time if the looks are.
        #[test]
        fn silence_is_found_in_time(heard in 0_u64..1_000_000) {
            let mut liveness = Liveness::default();
            let late = heard + DETECTION_US + LOOK_PERIOD_US + 1;
            liveness.newly_lost(0);
            let found = (0..=late)
                .step_by(LOOK_PERIOD_US as usize)
                .find(|now| {
                    if *now >= heard && !liveness.alive("a") && !liveness.lost("a") {
                        liveness.beat("a", heard);
                    }
                    !liveness.newly_lost(*now).is_empty()
                });
            prop_assert!(found.is_some_and(|found| found > heard + DETECTION_US));
        }
    }

    #[test]
    fn silence_is_noticed_once_and_a_return_too() {
        let mut liveness = Liveness::default();
        assert!(liveness.beat("a", 0));
        assert!(!liveness.beat("a", BEAT_PERIOD_US));
        assert!(looks(&mut liveness, 0, 4 * BEAT_PERIOD_US).is_empty());
        assert_eq!(liveness.newly_lost(4 * BEAT_PERIOD_US + 1), ["a"]);
        assert!(looks(&mut liveness, 4 * BEAT_PERIOD_US + 2, 9 * BEAT_PERIOD_US).is_empty());
        assert!(liveness.lost("a") && !liveness.alive("a"));
        assert!(liveness.beat("a", 9 * BEAT_PERIOD_US));
        assert!(liveness.alive("a"));
    }

    #[test]
    fn a_beat_that_arrives_late_does_not_turn_back_the_clock() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 10 * BEAT_PERIOD_US);
        liveness.beat("a", 2 * BEAT_PERIOD_US);
        assert!(looks(&mut liveness, 10 * BEAT_PERIOD_US, 12 * BEAT_PERIOD_US).is_empty());
    }

    #[test]
    fn who_left_is_not_mourned() {
        let mut liveness = Liveness::default();
        liveness.beat("a", 0);
        liveness.forget("a");
        assert!(looks(&mut liveness, 0, 9 * BEAT_PERIOD_US).is_empty());
        assert!(!liveness.alive("a") && !liveness.lost("a"));
    }
}
