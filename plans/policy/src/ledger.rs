//! The table of accepted requests of an ingress, from which "exactly one terminal reply per accepted request" follows.
//!
//! An entry is removed exactly once, and the remover sends the reply: with the first answer of any attempt, with
//! the last failure, or because its budget ended. What comes later finds no entry and is dropped. Messages may be lost,
//! doubled or reordered; none of that can make two replies or none.
//!
//! Every operation is `O(log n)` in the requests in flight (and linear in what it hands out).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use crate::retry_budget::{RetryBudget, RetryBudgetConfig};

/// The first request's id. A late answer to an ingress of the same name that ran before matches no request of this one: results carry
/// the token of their dispatch, whose key is random.
const FIRST_ID: u64 = 1;

/// Limits of the ledger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LedgerConfig {
    /// Maximum number of accepted requests without a reply.
    pub max_in_flight: usize,
    /// Maximum number of attempts per request, the first included. The pauses between them together must exceed the time in which the
    /// failure detector notices a lost replica: until then others still send to it.
    pub max_attempts: u32,
    /// Maximum number of times a request is sent again because a replica was lost: a request that crashes its replicas must not crash all
    /// of them.
    pub max_losses: u32,
    /// Attempt from which on an answer below the threshold is accepted.
    pub accept_any_from_attempt: u32,
    /// Pause before the second attempt, microseconds; it doubles with every further one.
    pub backoff_us: u64,
    /// Longest pause, microseconds.
    pub max_backoff_us: u64,
    /// Bounds resends, except those after a lost connection.
    pub retries: RetryBudgetConfig,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            max_in_flight: 10_000,
            max_attempts: 16,
            max_losses: 4,
            // Four attempts are over within some 30 ms; then larger models are taken for gone.
            accept_any_from_attempt: 5,
            backoff_us: 2_000,
            max_backoff_us: 100_000,
            retries: RetryBudgetConfig::default(),
        }
    }
}

impl LedgerConfig {
    /// Returns when the attempt after a failed one is sent, microseconds; `None` if there is none left, or no time for it.
    pub fn retry_at(&self, id: u64, attempt: u32, now: u64, deadline: u64) -> Option<u64> {
        let at = now.saturating_add(self.pause_us(id, attempt));
        (attempt < self.max_attempts && at < deadline).then_some(at)
    }

    /// The pause after a failed attempt, microseconds: doubling, capped, and shortened by up to half by a hash of the request,
    /// so that requests which failed together do not come back together.
    pub fn pause_us(&self, id: u64, attempt: u32) -> u64 {
        pause_us(self.backoff_us, self.max_backoff_us, id, attempt)
    }

    /// Returns whether this attempt accepts an answer below the threshold, because larger models could not be reached so far. Attempts after
    /// a lost connection do not count.
    pub fn must_accept_below_threshold(&self, attempt: u32) -> bool {
        attempt > 1 && attempt >= self.accept_any_from_attempt
    }

    /// Returns the outcome of an attempt whose replica was lost, of a request that was sent again for such a loss this many times.
    pub fn after_loss(&self, attempt: u32, losses: u32, now: u64, deadline: u64) -> AfterLoss {
        if deadline <= now {
            AfterLoss::Expire
        } else if attempt < self.max_attempts && losses < self.max_losses {
            AfterLoss::Resend
        } else {
            AfterLoss::Exhausted
        }
    }
}

/// Outcome of an attempt whose replica was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLoss {
    /// The request is sent again at once.
    Resend,
    /// There is no further attempt.
    Exhausted,
    /// The budget of the request has ended.
    Expire,
}

/// A request that the ledger accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Id of the request.
    pub id: u64,
    /// Attempt number of the request, 1.
    pub attempt: u32,
}

/// Why a request was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The ledger is full.
    #[error("{limit} requests are in flight, the most this ingress accepts; try again later")]
    Full {
        /// Maximum number of requests in flight.
        limit: usize,
    },
    /// The budget is zero.
    #[error("the time budget is spent; send the request with a larger one")]
    NoBudget,
}

/// Outcome of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerOutcome<T> {
    /// The first: reply with it.
    First(T),
    /// The request has had its reply already: drop it.
    Stale,
}

/// Outcome of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureOutcome<T> {
    /// [`Ledger::due`] hands the request out for this attempt once the pause is over.
    Retry {
        /// The attempt to come.
        attempt: u32,
        /// The pause, microseconds.
        after_us: u64,
    },
    /// There is no further attempt, but an earlier one may still answer before the deadline.
    Waiting,
    /// There is no further attempt: reply with the failure.
    Terminal(T),
    /// A newer attempt runs, or the request has had its reply: drop it.
    Stale,
}

/// Requests to retry or expire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerEvents<T> {
    /// Requests whose budget has ended: reply with a deadline error.
    pub expired: Vec<(u64, T)>,
    /// Requests whose last attempt was lost with a replica: reply that none is available.
    pub exhausted: Vec<(u64, T)>,
    /// Requests to send again, with the attempt's number.
    pub resend: Vec<(u64, u32)>,
}

/// The accepted requests that have no reply yet. `T` is what the ingress keeps of each: where to reply and what to send.
#[derive(Debug)]
pub struct Ledger<T> {
    config: LedgerConfig,
    retries: RetryBudget,
    next_id: u64,
    entries: BTreeMap<u64, Entry<T>>,
    deadlines: BTreeSet<(u64, u64)>,
    pauses: BTreeSet<(u64, u64)>,
    exhausted: BTreeSet<u64>,
    unplaced: BTreeSet<u64>,
    placed: BTreeMap<Arc<str>, BTreeSet<u64>>,
}

#[derive(Debug)]
struct Entry<T> {
    kept: T,
    deadline: u64,
    attempt: u32,
    /// Times that it was sent again because a replica was lost, in halves: a replica that may have had it counts half.
    half_losses: u32,
    /// Whether an earlier attempt may still run: the request was sent again although nothing said that it had failed.
    earlier_may_answer: bool,
    /// Attempts that a lost connection caused, and no failure.
    after_lost_connections: u32,
    state: State,
}

/// State of the current attempt. Each state but [`State::Exhausted`] has its index in the [`Ledger`].
#[derive(Debug, Clone)]
enum State {
    /// Sent, or about to be, to an unknown replica.
    Unplaced,
    /// Sent to this replica.
    At(Arc<str>),
    /// Waiting to be sent at this time.
    Paused(u64),
    /// Lost with no attempt left.
    Exhausted,
}

impl<T> Ledger<T> {
    /// Creates an empty ledger.
    pub fn new(config: LedgerConfig) -> Self {
        Self {
            config,
            retries: RetryBudget::new(config.retries),
            next_id: FIRST_ID,
            entries: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            pauses: BTreeSet::new(),
            exhausted: BTreeSet::new(),
            unplaced: BTreeSet::new(),
            placed: BTreeMap::new(),
        }
    }

    /// Accepts a request with this much time left, microseconds. From here on it gets exactly one terminal reply.
    ///
    /// # Errors
    /// A [`Refusal`] and what was to be kept, if the ledger is full or the budget is zero.
    pub fn admit(&mut self, now: u64, budget_us: u64, kept: T) -> Result<Admitted, (Refusal, T)> {
        if budget_us == 0 {
            return Err((Refusal::NoBudget, kept));
        }
        if self.entries.len() >= self.config.max_in_flight {
            let limit = self.config.max_in_flight;
            return Err((Refusal::Full { limit }, kept));
        }
        self.retries.admitted(now);
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let deadline = now.saturating_add(budget_us);
        self.deadlines.insert((deadline, id));
        self.unplaced.insert(id);
        self.entries.insert(
            id,
            Entry {
                kept,
                deadline,
                attempt: 1,
                half_losses: 0,
                earlier_may_answer: false,
                after_lost_connections: 0,
                state: State::Unplaced,
            },
        );
        Ok(Admitted { id, attempt: 1 })
    }

    /// Notes where the current attempt is, as far as known. May be called again when more is known.
    pub fn sent(&mut self, id: u64, attempt: u32, to: Option<&str>) {
        let current = self.entries.get(&id).is_some_and(|entry| {
            entry.attempt == attempt && matches!(entry.state, State::Unplaced | State::At(_))
        });
        if !current {
            return;
        }
        let state = match to {
            None => State::Unplaced,
            Some(replica) => State::At(
                self.placed
                    .get_key_value(replica)
                    .map_or_else(|| Arc::from(replica), |(known, _)| Arc::clone(known)),
            ),
        };
        self.put(id, state);
    }

    /// An answer to an attempt came. The first of any attempt wins, also one that an older attempt gives.
    pub fn answered(&mut self, id: u64, attempt: u32) -> AnswerOutcome<T> {
        let known = self
            .entries
            .get(&id)
            .is_some_and(|entry| (1..=entry.attempt).contains(&attempt));
        match known.then(|| self.take(id)).flatten() {
            Some(kept) => AnswerOutcome::First(kept),
            None => AnswerOutcome::Stale,
        }
    }

    /// Notes that an attempt failed; `retryable` is whether another attempt may succeed.
    ///
    /// Only a failure of the current attempt counts: a failure of an older attempt is irrelevant to the newer.
    pub fn failed(&mut self, id: u64, attempt: u32, retryable: bool, now: u64) -> FailureOutcome<T> {
        let Some(entry) = self.entries.get(&id) else {
            return FailureOutcome::Stale;
        };
        if entry.attempt != attempt || matches!(entry.state, State::Paused(_) | State::Exhausted) {
            return FailureOutcome::Stale;
        }
        let retry = self.config.retry_at(id, attempt, now, entry.deadline);
        if let Some(at) = retry.filter(|_| retryable) {
            self.next_attempt(id, State::Paused(at));
            return FailureOutcome::Retry {
                attempt: attempt + 1,
                after_us: at - now,
            };
        }
        self.take(id)
            .map_or(FailureOutcome::Stale, FailureOutcome::Terminal)
    }

    /// Notes that a full queue refused an attempt. No other attempt helps, because retries add load; but an earlier attempt that may still
    /// run must not end with it: such a request is sent again later, and after its last attempt it waits for the earlier one.
    pub fn overloaded(&mut self, id: u64, attempt: u32, now: u64) -> FailureOutcome<T> {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.earlier_may_answer) else {
            return self.failed(id, attempt, false, now);
        };
        let is_sent = entry.attempt == attempt && matches!(entry.state, State::Unplaced | State::At(_));
        if is_sent && self.config.retry_at(id, attempt, now, entry.deadline).is_none() {
            self.put(id, State::Unplaced);
            return FailureOutcome::Waiting;
        }
        self.failed(id, attempt, true, now)
    }

    /// A replica is gone: the requests to send again now, each with its new attempt's number, in order of admission. What
    /// the retry budget does not allow now comes out of [`Ledger::due`] later.
    ///
    /// Includes requests known to be there and requests whose replica is unknown: some of these may be answered twice, which
    /// costs work but not correctness, where the other choice would cost replies. A request known to have been there with
    /// no attempt left comes out of [`Ledger::due`] as exhausted, so that one that kills its replicas does not kill all.
    pub fn replica_lost(&mut self, replica: &str, now: u64) -> Vec<(u64, u32)> {
        self.replicas_lost(&[replica], now)
    }

    /// Several replicas are gone at once, as with their machine: as [`Ledger::replica_lost`], but one loss for each request. A
    /// loss counts half for a request whose replica is unknown, since it may have been elsewhere.
    pub fn replicas_lost<R: AsRef<str>>(&mut self, replicas: &[R], now: u64) -> Vec<(u64, u32)> {
        let placed = replicas
            .iter()
            .filter_map(|replica| self.placed.get(replica.as_ref()));
        let at_replicas: BTreeSet<u64> = placed.flatten().copied().collect();
        let mut again = Vec::new();
        for &id in at_replicas.union(&self.unplaced.clone()) {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            let config = &self.config;
            match config.after_loss(entry.attempt, entry.half_losses / 2, now, entry.deadline) {
                AfterLoss::Resend => {
                    let was_there = at_replicas.contains(&id);
                    entry.half_losses += if was_there { 2 } else { 1 };
                    entry.earlier_may_answer |= !was_there;
                    if self.retries.take(now) {
                        let attempt = self.next_attempt(id, State::Unplaced);
                        again.extend(attempt.map(|attempt| (id, attempt)));
                    } else {
                        self.next_attempt(id, State::Paused(now));
                    }
                }
                AfterLoss::Exhausted if at_replicas.contains(&id) => self.put(id, State::Exhausted),
                // Its replica is unknown, or `due` removes it.
                AfterLoss::Exhausted | AfterLoss::Expire => {}
            }
        }
        again
    }

    /// A replica has left in good order, with all its results sent before: returns the requests that are still known to be there, to
    /// send again now, each with its new attempt's number, in order of admission. They crossed its leave and were not taken; neither
    /// the replica nor the request failed, so no loss is counted. Requests whose replica is unknown are not included.
    pub fn replica_left(&mut self, replica: &str, now: u64) -> Vec<(u64, u32)> {
        let placed = self.placed.get(replica).cloned().unwrap_or_default();
        let mut again = Vec::new();
        for id in placed {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            match self.config.after_loss(entry.attempt, 0, now, entry.deadline) {
                AfterLoss::Resend => {
                    let attempt = self.next_attempt(id, State::Unplaced);
                    again.extend(attempt.map(|attempt| (id, attempt)));
                }
                AfterLoss::Exhausted => self.put(id, State::Exhausted),
                AfterLoss::Expire => {}
            }
        }
        again
    }

    /// Messages may have been lost with a connection: every request that was sent over it is sent again now, if it has an attempt left,
    /// each with its new attempt's number, in order of admission. `is_local` tells whether a request reached a replica without the
    /// connection; one that did stays there. Replicas and requests are not counted as failed.
    pub fn connection_lost(&mut self, now: u64, is_local: impl Fn(&T, &str) -> bool) -> Vec<(u64, u32)> {
        let mut sent = self.unplaced.clone();
        for (replica, placed) in &self.placed {
            let kept = |id: &u64| self.entries.get(id).map(|entry| &entry.kept);
            let over_it = |id: &&u64| kept(id).is_some_and(|kept| !is_local(kept, replica));
            sent.extend(placed.iter().filter(over_it));
        }
        let mut again = Vec::new();
        for id in sent {
            let fate = self
                .entries
                .get(&id)
                .map(|entry| self.config.after_loss(entry.attempt, 0, now, entry.deadline));
            if fate == Some(AfterLoss::Resend) {
                let attempt = self.next_attempt(id, State::Unplaced);
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.earlier_may_answer = true;
                    entry.after_lost_connections += 1;
                }
                again.extend(attempt.map(|attempt| (id, attempt)));
            }
        }
        again
    }

    /// Takes out what has ended and what is to be sent again by `now`.
    pub fn due(&mut self, now: u64) -> TimerEvents<T> {
        let mut due = TimerEvents {
            expired: Vec::new(),
            exhausted: Vec::new(),
            resend: Vec::new(),
        };
        while let Some(&(_, id)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            if let Some(kept) = self.take(id) {
                due.expired.push((id, kept));
            }
        }
        while let Some(&id) = self.exhausted.first() {
            if let Some(kept) = self.take(id) {
                due.exhausted.push((id, kept));
            }
        }
        while let Some(&(_, id)) = self.pauses.first().filter(|(at, _)| *at <= now) {
            if !self.retries.take(now) {
                break;
            }
            self.put(id, State::Unplaced);
            if let Some(entry) = self.entries.get(&id) {
                due.resend.push((id, entry.attempt));
            }
        }
        due
    }

    /// Returns when [`Ledger::due`] has something to give next, microseconds, if anything changes no earlier.
    pub fn next_wake(&mut self, now: u64) -> Option<u64> {
        if !self.exhausted.is_empty() {
            return Some(now);
        }
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let pause = self.pauses.first().map(|(at, _)| *at);
        let pause = pause.map(|at| if at <= now { self.retries.next_at(now) } else { at });
        deadline.into_iter().chain(pause).min()
    }

    /// Returns the number of a request's current attempt; 0 for a request that has its reply.
    pub fn newest_attempt(&self, id: u64) -> u32 {
        self.entries.get(&id).map_or(0, |entry| entry.attempt)
    }

    /// Returns whether this attempt of a request accepts an answer below the threshold.
    pub fn must_accept_below_threshold(&self, id: u64, attempt: u32) -> bool {
        let entry = self.entries.get(&id);
        let not_failed = entry.map_or(0, |entry| entry.after_lost_connections);
        self.config
            .must_accept_below_threshold(attempt.saturating_sub(not_failed))
    }

    /// Returns whether a replica was lost that had, or may have had, the request. It is then sent to one replica after the other by
    /// name, so that each further loss is known to concern it or not: a request that brings its replicas down is
    /// found after few of them, and one that merely was near is not blamed.
    pub fn is_suspect(&self, id: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.half_losses > 0)
    }

    /// Returns the entry of a request without a reply.
    pub fn get(&self, id: u64) -> Option<&T> {
        self.entries.get(&id).map(|entry| &entry.kept)
    }

    /// Returns the request, to change it.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entries.get_mut(&id).map(|entry| &mut entry.kept)
    }

    /// The number of a request's current attempt, and the replica that has it, where that is known.
    pub fn attempt_and_replica(&self, id: u64) -> Option<(u32, Option<&str>)> {
        self.entries.get(&id).map(|entry| match &entry.state {
            State::At(replica) => (entry.attempt, Some(&**replica)),
            _ => (entry.attempt, None),
        })
    }

    /// Returns what is left of its budget, microseconds: what the next attempt may use.
    #[cfg(test)]
    pub(crate) fn remaining_us(&self, id: u64, now: u64) -> Option<u64> {
        self.entries
            .get(&id)
            .map(|entry| entry.deadline.saturating_sub(now))
    }

    /// Changes every request without a reply.
    pub fn for_each_mut(&mut self, change: impl Fn(&mut T)) {
        for entry in self.entries.values_mut() {
            change(&mut entry.kept);
        }
    }

    /// The requests without a reply, in order of admission.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(id, entry)| (*id, &entry.kept))
    }

    /// Number of requests without a reply.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether every request has had its reply.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes out every request, in order of admission, as a shutdown does after its grace time.
    pub fn drain_all(&mut self) -> Vec<(u64, T)> {
        self.deadlines.clear();
        self.pauses.clear();
        self.exhausted.clear();
        self.unplaced.clear();
        self.placed.clear();
        std::mem::take(&mut self.entries)
            .into_iter()
            .map(|(id, entry)| (id, entry.kept))
            .collect()
    }

    fn next_attempt(&mut self, id: u64, state: State) -> Option<u32> {
        self.put(id, state);
        let entry = self.entries.get_mut(&id)?;
        entry.attempt += 1;
        Some(entry.attempt)
    }

    /// Moves an entry to a state and from one index to another.
    fn put(&mut self, id: u64, state: State) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let old = std::mem::replace(&mut entry.state, state.clone());
        self.unlist(id, &old);
        match state {
            State::Unplaced => {
                self.unplaced.insert(id);
            }
            State::At(replica) => {
                self.placed.entry(replica).or_default().insert(id);
            }
            State::Paused(at) => {
                self.pauses.insert((at, id));
            }
            State::Exhausted => {
                self.exhausted.insert(id);
            }
        }
    }

    fn unlist(&mut self, id: u64, state: &State) {
        match state {
            State::Unplaced => {
                self.unplaced.remove(&id);
            }
            State::At(replica) => {
                if let Some(placed) = self.placed.get_mut(replica) {
                    placed.remove(&id);
                    if placed.is_empty() {
                        self.placed.remove(replica);
                    }
                }
            }
            State::Paused(at) => {
                self.pauses.remove(&(*at, id));
            }
            State::Exhausted => {
                self.exhausted.remove(&id);
            }
        }
    }

    fn take(&mut self, id: u64) -> Option<T> {
        let entry = self.entries.remove(&id)?;
        self.deadlines.remove(&(entry.deadline, id));
        self.unlist(id, &entry.state);
        Some(entry.kept)
    }
}

/// The pause after a failed attempt, as [`LedgerConfig::pause_us`] has it, microseconds.
pub(crate) fn pause_us(first_us: u64, max_us: u64, id: u64, attempt: u32) -> u64 {
    let doubled = 1_u64
        .checked_shl(attempt.saturating_sub(1))
        .map_or(u64::MAX, |factor| first_us.saturating_mul(factor));
    let full = doubled.min(max_us);
    full - mix(id ^ u64::from(attempt)) % (full / 2 + 1)
}

/// Spreads a number over 64 bits (the finaliser of `SplitMix64`).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
