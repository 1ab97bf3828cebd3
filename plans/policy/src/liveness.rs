//! Failure detector: which processes are alive, judged by heartbeats alone.
//!
//! A process that was killed is noticed by the broker at once (its subjects have no responders). One that hangs, or
//! is stopped, keeps its connection and its place in the queue groups; only the missing heartbeats show it.
//!
//! The silence of others is measured in the time in which the observer itself runs. A process that was stalled has
//! not read the heartbeats that arrived meanwhile, so the stall is no evidence against their senders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::reachability::Reachability;

/// Period of heartbeats, microseconds.
pub const HEARTBEAT_PERIOD_US: u64 = 100_000;

/// Beats that may be missed before an actor counts as lost. Three, so that one lost message and one late timer on a
/// busy machine do not count as a loss, and a death is still noticed in well under half a second.
pub const MISSED_HEARTBEATS: u64 = 3;

/// Silence after which an actor counts as lost, microseconds.
pub const DETECTION_US: u64 = MISSED_HEARTBEATS * HEARTBEAT_PERIOD_US;

/// Silence after which a lost actor that no plan names is forgotten, microseconds. Its name may never return: every start of a
/// stage may have a new one.
pub const FORGOTTEN_US: u64 = 60_000_000;

/// Period at which a process checks for silent actors, microseconds: half a heartbeat period.
pub const CHECK_PERIOD_US: u64 = HEARTBEAT_PERIOD_US / 2;

/// Beats of the process before that show that it is still alive: fewer may be late.
const DUPLICATE_BEATS: u32 = 10;

/// Number of earlier processes of one name that are distinguished from new ones.
const MAX_INSTANCES: usize = 64;

/// Time between two checks beyond which the observer counts as stalled, microseconds.
const LATE_CHECK_US: u64 = 2 * CHECK_PERIOD_US;

/// The living and the lost, by name.
#[derive(Debug, Clone, Default)]
pub struct Liveness {
    members: BTreeMap<Arc<str>, MemberState>,
    /// The newest beat of each process.
    processes: BTreeMap<String, Process>,
    /// The replicas that could not be loaded where the admitted plan places them.
    unloadable: BTreeSet<Arc<str>>,
    /// Counts the changes of what [`Liveness::reachability`] returns.
    revision: u64,
    checks: Option<SilenceChecks>,
}

#[derive(Debug, Clone, Copy)]
struct MemberState {
    /// When its newest beat arrived, in the time in which the observer runs.
    at: u64,
    lost: bool,
    leaving: bool,
}

#[derive(Debug, Clone)]
struct Process {
    instance: u64,
    /// Number of its newest beat.
    number: u64,
    /// When that arrived, in the time in which the observer runs.
    at: u64,
    /// The instances before it, the newest last; [`MAX_INSTANCES`] at most.
    previous_instances: Vec<u64>,
    /// Beats of the instances before it since its own start.
    duplicate_beats: u32,
}

/// Start of a process, as its heartbeat shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The worker has not restarted since its last heartbeat.
    Same,
    /// The worker has restarted since its last heartbeat.
    Restarted,
    /// Another process with its name sends heartbeats at the same time. Reported once.
    DuplicateName,
}

/// When the observer checked for silence, microseconds.
#[derive(Debug, Clone, Copy)]
struct SilenceChecks {
    first: u64,
    last: u64,
    /// Whether the last check was late.
    late: bool,
    /// Time during which the observer was stalled, microseconds.
    stalled: u64,
}

impl Liveness {
    /// Notes a beat of `name` at `now` (µs). True if it was unknown, lost or leaving until now.
    pub fn record_heartbeat(&mut self, name: &str, now: u64) -> bool {
        self.record(name, now, false)
    }

    /// Notes a beat of `name` at `now` (µs) that says that it is shutting down: it is alive and must not be chosen.
    pub fn record_leaving(&mut self, name: &str, now: u64) {
        self.record(name, now, true);
    }

    fn record(&mut self, name: &str, now: u64, leaving: bool) -> bool {
        let at = self.running(now);
        let changed = if let Some(member) = self.members.get_mut(name) {
            let changed = member.lost || member.leaving != leaving;
            let at = member.at.max(at);
            *member = MemberState {
                at,
                lost: false,
                leaving,
            };
            changed
        } else {
            let lost = false;
            self.members
                .insert(name.into(), MemberState { at, lost, leaving });
            true
        };
        self.revision += u64::from(changed);
        changed
    }

    /// Notes the number of a process's beat at `now` (µs), which counts from its start, and the instance that sent it. If the process has
    /// [restarted](Start::Restarted) since its last one, whatever it had is lost, although it was never silent for long. The number
    /// alone does not show it if the process died before it had sent more beats than the one after it.
    ///
    /// Beats of a process before it are late, or that process still runs: [`Start::DuplicateName`].
    pub fn started(&mut self, process: &str, instance: u64, number: u64, now: u64) -> Start {
        let at = self.running(now);
        let Some(last) = self.processes.get_mut(process) else {
            let first = Process {
                instance,
                number,
                at,
                previous_instances: Vec::new(),
                duplicate_beats: 0,
            };
            self.processes.insert(process.to_owned(), first);
            return Start::Same;
        };
        last.at = at;
        if instance != last.instance && last.previous_instances.contains(&instance) {
            last.duplicate_beats = last.duplicate_beats.saturating_add(1);
            return if last.duplicate_beats == DUPLICATE_BEATS {
                Start::DuplicateName
            } else {
                Start::Same
            };
        }
        let again = instance != last.instance || number < last.number;
        if instance != last.instance {
            if last.previous_instances.len() == MAX_INSTANCES {
                last.previous_instances.remove(0);
            }
            last.previous_instances.push(last.instance);
            last.duplicate_beats = 0;
        }
        (last.instance, last.number) = (instance, number);
        if again { Start::Restarted } else { Start::Same }
    }

    /// Looks for silence: names whose newest beat is over [`DETECTION_US`] old at `now` (µs) and that were not lost at
    /// the last call. Call it every [`CHECK_PERIOD_US`], after reading the beats that have arrived.
    ///
    /// If the last call was much longer ago, the observer was stalled. Then the stall does not count as silence, and
    /// this check finds nothing: beats may still be on their way through the observer's own queues. A second late check
    /// in a row counts again, so that a process that is always late still finds the lost.
    pub fn newly_lost(&mut self, now: u64) -> Vec<String> {
        if self.is_late(now) {
            return Vec::new();
        }
        let oldest = self.running(now).saturating_sub(DETECTION_US);
        let silent = self
            .members
            .iter_mut()
            .filter(|(_, member)| !member.lost && member.at < oldest);
        let names: Vec<String> = silent
            .map(|(name, member)| {
                member.lost = true;
                name.to_string()
            })
            .collect();
        self.revision += u64::from(!names.is_empty());
        names
    }

    /// Notes a check. True if it is the first late one after a check in time.
    fn is_late(&mut self, now: u64) -> bool {
        let checks = self.checks.get_or_insert(SilenceChecks {
            first: now,
            last: now,
            late: false,
            stalled: 0,
        });
        let gap = now.saturating_sub(std::mem::replace(&mut checks.last, now));
        let late = gap > LATE_CHECK_US;
        let before = std::mem::replace(&mut checks.late, late);
        if late {
            checks.stalled += gap - CHECK_PERIOD_US;
            let running = self.running(now);
            // Beats that were read between the stall and this check.
            for member in self.members.values_mut() {
                member.at = member.at.min(running);
            }
        }
        late && !before
    }

    /// `now` without the time during which this process was stalled.
    fn running(&self, now: u64) -> u64 {
        now.saturating_sub(self.checks.map_or(0, |checks| checks.stalled))
    }

    /// Takes `name` for lost now, for a reason other than silence. True if it was alive.
    pub fn declare_lost(&mut self, name: &str) -> bool {
        let alive = self
            .members
            .get_mut(name)
            .is_some_and(|member| !std::mem::replace(&mut member.lost, true));
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
        self.revision += u64::from(self.members.remove(name).is_some());
    }

    /// Forgets the lost that have been silent for [`FORGOTTEN_US`] at `now` (µs) and that no plan places, and processes that
    /// have been silent as long.
    pub fn forget_lost(&mut self, now: u64, is_placed: impl Fn(&str) -> bool) {
        let oldest = self.running(now).saturating_sub(FORGOTTEN_US);
        let known = self.members.len();
        self.members
            .retain(|name, member| !member.lost || member.at >= oldest || is_placed(name));
        self.revision += u64::from(self.members.len() != known);
        self.processes.retain(|_, process| process.at >= oldest);
    }

    /// Returns whether a beat of the process was noted, and it is not forgotten.
    pub fn knows_process(&self, process: &str) -> bool {
        self.processes.contains_key(process)
    }

    /// Returns whether `name` beats.
    pub fn alive(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|member| !member.lost)
    }

    /// Returns whether `name` used to beat and fell silent.
    pub fn lost(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|member| member.lost)
    }

    /// The names of those that beat, in order.
    pub fn living(&self) -> impl Iterator<Item = &str> {
        let living = self.members.iter().filter(|(_, member)| !member.lost);
        living.map(|(name, _)| &**name)
    }

    /// A number that changes whenever [`Liveness::reachability`] does.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns where a process that receives the heartbeats itself may send: to those that send heartbeats, do not leave and could
    /// be loaded.
    pub fn reachability(&self) -> Reachability {
        let all = self.members.iter();
        let is_avoided = |name: &Arc<str>, member: &MemberState| {
            member.lost || member.leaving || self.unloadable.contains(name)
        };
        let (avoided, alive) = all.partition::<Vec<_>, _>(|(name, member)| is_avoided(name, member));
        let alive = alive.into_iter().map(|(name, _)| Arc::clone(name));
        let avoided = avoided.into_iter().map(|(name, _)| Arc::clone(name));
        let avoided = avoided.chain(self.unloadable.iter().cloned());
        Reachability::record(alive.collect(), avoided.collect())
    }

    /// Returns whether this process has checked for no longer than [`DETECTION_US`] at `now` (µs): it may not have received all heartbeats yet.
    pub fn is_starting(&self, now: u64) -> bool {
        let first = self.checks.map(|checks| checks.first);
        first.is_none_or(|first| self.running(now).saturating_sub(first) <= DETECTION_US)
    }

    /// The replicas that others should avoid: the lost, the leaving, those that could not be loaded, and those of `placed` that sent no heartbeat although
    /// this process no longer [is starting](Liveness::is_starting) at `now` (µs).
    pub fn unavailable<'a>(&self, placed: impl IntoIterator<Item = &'a str>, now: u64) -> BTreeSet<String> {
        let avoided = self
            .members
            .iter()
            .filter(|(_, member)| member.lost || member.leaving);
        let mut names: BTreeSet<String> = avoided.map(|(name, _)| name.to_string()).collect();
        names.extend(self.unloadable.iter().map(ToString::to_string));
        if !self.is_starting(now) {
            let unheard = placed
                .into_iter()
                .filter(|name| !self.members.contains_key(*name));
            names.extend(unheard.map(ToOwned::to_owned));
        }
        names
    }
}

#[cfg(test)]
mod tests;
