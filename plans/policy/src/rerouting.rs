//! Decides which late requests of a pipeline to drop early, and which to reroute (Loki §5.2).
//!
//! A request that will miss its objective delays the requests behind it. So when a task's result is about to be forwarded, the
//! time that the request spent at the task is compared with the task's budget. A late request is rerouted to a faster replica of the
//! next task, or dropped. The replica that the routing table chose is known at that time, and so is its backup table
//! ([`Edge::backup`](crate::plan::Edge::backup)).
//!
//! Lateness is computed task by task, as in the paper, and not carried over: a budget belongs to a variant at a task
//! ([`Stage::budget_us`](crate::plan::Stage::budget_us)), so a request that is rerouted to a faster variant is held to the
//! faster one's budget there, and has made up for its delay by keeping to it. What could not be made up for was dropped. Nor
//! is time saved at an earlier task set off against a delay at a later one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Policy for a request that is late when a task's result is forwarded (Loki §5.2, §6.3). It applies to the stages that
/// name a [`task`](crate::plan::Stage::task); a cascade's stages have no budget to be late against. [`decide`] applies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dropping {
    /// No request is dropped before its deadline.
    #[default]
    None,
    /// Drops requests before the last task if less time is left than that task takes.
    LastTask,
    /// Drops requests after every task on which they spent longer than the task's budget.
    PerTask,
    /// After every task, a request that took longer than the task's budget goes to a backup that is fast enough to make up for
    /// the delay; if there is none, the request is dropped. Loki's opportunistic rerouting.
    Rerouting,
    /// A request that has less time left than the rest of its path takes goes to a backup by which it is in time; if there is none, it
    /// is dropped. In a queue, it is dropped when even a batch that starts now would end too late for the tasks after it. No task has a
    /// budget of its own ([`slack`](crate::slack)).
    Slack,
}

impl Dropping {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A task's result that is about to be forwarded to a replica of the next task. Times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarding {
    /// Time that the request spent at the task that has just ended: in the queue and in the batch.
    pub spent_us: u64,
    /// The budget of that task; `None`: nothing is late there.
    pub budget_us: Option<u64>,
    /// Time until its answer must be ready, communication not included; `None`: any time will do.
    pub left_us: Option<u64>,
    /// Profiled execution time of the chosen replica, the paper's `y`.
    pub run_us: u64,
    /// Time of the rest of the path after it ([`remaining_times_us`](crate::slack::remaining_times_us)).
    pub after_us: u64,
    /// Whether the next task is the last on its path.
    pub last: bool,
}

impl Forwarding {
    /// Returns the excess over the task's budget, the paper's `x`; 0 if the request kept it.
    pub fn late_us(&self) -> u64 {
        self.budget_us
            .map_or(0, |budget| self.spent_us.saturating_sub(budget))
    }
}

/// A replica of the next task with capacity to spare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backup<R> {
    /// The replica.
    pub replica: R,
    /// Profiled execution time, microseconds.
    pub run_us: u64,
    /// Time of the rest of the path after it, microseconds.
    pub after_us: u64,
    /// Profiled accuracy of its variant, in [0, 1].
    pub accuracy: f64,
}

/// The decision on a request at the end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision<R> {
    /// Forward the request to the replica that the routing table chose.
    Forward,
    /// Forward the request to this backup instead.
    Reroute(R),
    /// Drop the request: reply with the reason.
    Drop(Dropped),
}

/// Why a request was dropped early: the typed reply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Dropped {
    /// The request exceeded the budget of a task ([`Dropping::PerTask`]).
    #[error("took {late_us} us longer at a task than its budget; send it again when the load is lower")]
    OverBudget {
        /// Excess over the task's budget, microseconds.
        late_us: u64,
    },
    /// The request exceeded the budget of a task and no backup is fast enough to make up for it ([`Dropping::Rerouting`]).
    #[error(
        "took {late_us} us longer at a task than its budget, and no backup makes up for it; send it again when the load is lower"
    )]
    NoBackup {
        /// Excess over the task's budget, microseconds.
        late_us: u64,
    },
    /// The last task takes longer than there is time ([`Dropping::LastTask`]).
    #[error(
        "has {left_us} us left, and the last task takes {run_us} us; send it again with a larger time budget"
    )]
    NoTime {
        /// Time left, microseconds.
        left_us: u64,
        /// Run time of the last task, microseconds.
        run_us: u64,
    },
    /// The rest of the path takes longer than the remaining time ([`Dropping::Slack`]).
    #[error(
        "has {left_us} us left, and the tasks before its answer take {path_us} us; send it again when the load is lower, or with a larger time budget"
    )]
    NoSlack {
        /// Time left, microseconds.
        left_us: u64,
        /// Time of the rest of the path, microseconds.
        path_us: u64,
    },
}

/// Decides on one request by one of the mechanisms.
///
/// With opportunistic rerouting a request that is late by `x` goes to the most accurate backup that takes at most `y - x`,
/// ties by `draw`, uniform in [0, 1) from the caller's generator. A backup that would end after the deadline is skipped. `backups`
/// are the live ones.
pub fn decide<R: Copy>(
    dropping: Dropping,
    forwarding: &Forwarding,
    backups: impl Iterator<Item = Backup<R>> + Clone,
    draw: f64,
) -> Decision<R> {
    let late_us = forwarding.late_us();
    match dropping {
        Dropping::LastTask => last_task(forwarding),
        Dropping::PerTask if late_us > 0 => Decision::Drop(Dropped::OverBudget { late_us }),
        Dropping::Rerouting if late_us > 0 => match make_up(forwarding, backups, draw) {
            Some(replica) => Decision::Reroute(replica),
            None => Decision::Drop(Dropped::NoBackup { late_us }),
        },
        Dropping::Slack => by_slack(forwarding, backups, draw),
        Dropping::None | Dropping::PerTask | Dropping::Rerouting => Decision::Forward,
    }
}

fn last_task<R>(forwarding: &Forwarding) -> Decision<R> {
    match forwarding.left_us {
        Some(left_us) if forwarding.last && left_us < forwarding.run_us => Decision::Drop(Dropped::NoTime {
            left_us,
            run_us: forwarding.run_us,
        }),
        _ => Decision::Forward,
    }
}

/// Forwards a request that is in time by the chosen replica, or else by the most accurate backup by which it is.
fn by_slack<R: Copy>(
    forwarding: &Forwarding,
    backups: impl Iterator<Item = Backup<R>> + Clone,
    draw: f64,
) -> Decision<R> {
    let Some(left_us) = forwarding.left_us else {
        return Decision::Forward;
    };
    let path_us = forwarding.run_us.saturating_add(forwarding.after_us);
    if path_us <= left_us {
        return Decision::Forward;
    }
    let in_time = backups.filter(|backup| backup.run_us.saturating_add(backup.after_us) <= left_us);
    match most_accurate(in_time, draw) {
        Some(replica) => Decision::Reroute(replica),
        None => Decision::Drop(Dropped::NoSlack { left_us, path_us }),
    }
}

/// Returns the most accurate backup that makes up for the delay.
fn make_up<R: Copy>(
    forwarding: &Forwarding,
    backups: impl Iterator<Item = Backup<R>> + Clone,
    draw: f64,
) -> Option<R> {
    let allowed = forwarding.run_us.checked_sub(forwarding.late_us())?;
    let allowed = allowed.min(forwarding.left_us.unwrap_or(u64::MAX));
    most_accurate(backups.filter(|backup| backup.run_us <= allowed), draw)
}

/// Returns the most accurate of some backups, ties by `draw`.
fn most_accurate<R: Copy>(backups: impl Iterator<Item = Backup<R>> + Clone, draw: f64) -> Option<R> {
    let best = backups
        .clone()
        .map(|backup| backup.accuracy)
        .max_by(f64::total_cmp)?;
    let tied = backups.filter(|backup| backup.accuracy.total_cmp(&best).is_eq());
    let count = tied.clone().count();
    let pick = ((draw * count as f64) as usize).min(count.saturating_sub(1));
    tied.map(|backup| backup.replica).nth(pick)
}

#[cfg(test)]
mod tests;
