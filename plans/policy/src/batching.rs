//! When a replica's queue becomes a batch (CascadeServe §4.4).

use std::collections::VecDeque;

use crate::plan::Batching;

/// Expected run time of a batch: a fixed part and a part per request, microseconds.
///
/// Costs of models by batch size are close to linear, see `fit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunTime {
    /// Fixed part.
    pub base_us: u64,
    /// Part for each request in the batch.
    pub per_request_us: u64,
}

impl RunTime {
    /// Expected time of a batch of this size, microseconds.
    pub fn of(&self, batch: usize) -> u64 {
        self.base_us
            .saturating_add(self.per_request_us.saturating_mul(batch as u64))
    }
}

/// Result of a poll of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll<T> {
    /// Requests whose budget can no longer be met. The caller answers them with an error and does not run them.
    pub late: Vec<T>,
    /// Next action of the replica.
    pub next: Next<T>,
}

/// Next action of the replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// Run this batch, oldest first, never empty.
    Run(Vec<T>),
    /// Wait until this time, microseconds, or until a request comes or the replica becomes idle. Always in the future.
    WaitUntil(u64),
    /// Wait until a request comes.
    Wait,
}

/// Result of [`BatchQueue::poll_into`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Run the batch in the buffer.
    Run,
    /// Same as [`Next::WaitUntil`].
    WaitUntil(u64),
    /// Same as [`Next::Wait`].
    Wait,
}

/// Number of requests refused in a row because of the expected run alone, after which one is run to measure it again.
///
/// An expectation that is never tried is never corrected: after one batch that a cold device or a stopped process delayed
/// beyond every budget, a replica would refuse every request.
const TRIED_AFTER: u32 = 16;

/// The bounded queue of one replica.
#[derive(Debug)]
pub struct BatchQueue<T> {
    batching: Batching,
    capacity: usize,
    run_time: RunTime,
    waiting: VecDeque<Waiting<T>>,
    /// A lower bound of the earliest deadline in the queue: it may belong to a request that has left. The queue is searched
    /// for late requests only when this bound has passed.
    earliest: u64,
    /// Whether the queue is in order of deadlines, so that late requests are at its front.
    ascending: bool,
    /// Requests refused while the replica was idle, since its last batch.
    refused: u32,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    since: u64,
    deadline: u64,
}

impl<T> BatchQueue<T> {
    /// Creates an empty queue for at most `capacity` requests (at least one).
    pub fn new(batching: Batching, capacity: usize) -> Self {
        Self {
            batching,
            capacity: capacity.max(1),
            run_time: RunTime::default(),
            waiting: VecDeque::new(),
            earliest: u64::MAX,
            ascending: true,
            refused: 0,
        }
    }

    /// Changes the triggers, as a gear shift does. The requests that wait stay.
    pub fn set_batching(&mut self, batching: Batching) {
        self.batching = batching;
    }

    /// The triggers.
    pub fn batching(&self) -> Batching {
        self.batching
    }

    /// Sets the expected run time of a batch. Until then, a request is late only once its deadline has passed.
    pub fn set_expected_run(&mut self, run_time: RunTime) {
        self.run_time = run_time;
    }

    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a request that came at `now` and must be answered by `deadline`, microseconds.
    ///
    /// # Errors
    /// Gives the request back if the queue is full.
    pub fn push(&mut self, item: T, now: u64, deadline: u64) -> Result<(), T> {
        if self.waiting.len() >= self.capacity {
            return Err(item);
        }
        self.earliest = self.earliest.min(deadline);
        let before = self.waiting.back().map(|last| last.deadline);
        self.ascending = before.is_none_or(|before| self.ascending && before <= deadline);
        self.waiting.push_back(Waiting {
            item,
            since: now,
            deadline,
        });
        Ok(())
    }

    /// Takes out everything, oldest first, as a shutdown does.
    pub fn drain(&mut self) -> Vec<T> {
        self.earliest = u64::MAX;
        self.waiting.drain(..).map(|waiting| waiting.item).collect()
    }

    /// Decides what to do at `now`; `idle` is whether the replica could start a batch.
    ///
    /// An idle replica starts once `min_queue` requests wait, or the oldest has waited `max_wait_us`, or waiting longer
    /// would make one late. A request is late when even a batch of size 1 would end at or after its deadline; if the queue holds
    /// only late requests, a few of them run all the same, because the expected time may be wrong.
    pub fn poll(&mut self, now: u64, idle: bool) -> Poll<T> {
        let (mut late, mut batch) = (Vec::new(), Vec::new());
        let next = match self.poll_into(now, idle, &mut late, &mut batch) {
            Step::Run => Next::Run(batch),
            Step::WaitUntil(at) => Next::WaitUntil(at),
            Step::Wait => Next::Wait,
        };
        Poll { late, next }
    }

    /// Polls like [`BatchQueue::poll`], but adds the requests to the caller's buffers, which saves callers of many queues the allocation.
    pub fn poll_into(&mut self, now: u64, idle: bool, late: &mut Vec<T>, batch: &mut Vec<T>) -> Step {
        let (run, before) = (self.run_time.of(1), late.len());
        let tries = idle && self.refused >= TRIED_AFTER && self.only_hopeless(now, run);
        self.take_late(now, if tries { 0 } else { run }, usize::MAX, late);
        if idle {
            let refused = u32::try_from(late.len() - before).unwrap_or(u32::MAX);
            self.refused = self.refused.saturating_add(refused);
        }
        if idle && self.is_due(now) {
            if !tries && self.waiting.len() > self.max_batch() {
                // With as many waiting behind this batch, shrinking it to save a tight request would make many late.
                let most = self.most_in_time(now);
                self.take_late(now, self.run_time.of(most), most, late);
            }
            if self.take_batch(now, batch) {
                self.refused = 0;
                return Step::Run;
            }
        }
        self.wake(idle)
            .map_or(Step::Wait, |at| Step::WaitUntil(at.max(now + 1)))
    }

    /// Returns when an idle replica should start if nothing more comes, microseconds: `now` if it is time. `None` if none waits.
    ///
    /// For replicas that share a device: from this time on, the replica has its place in the device queue.
    pub fn due_at(&self, now: u64) -> Option<u64> {
        if self.is_due(now) {
            Some(now)
        } else {
            self.start_by()
        }
    }

    fn max_batch(&self) -> usize {
        self.batching.max_batch.max(1) as usize
    }

    /// Returns when an idle replica should start although fewer than `min_queue` wait.
    fn start_by(&self) -> Option<u64> {
        let oldest = self.waiting.front()?;
        let waited = oldest.since.saturating_add(self.batching.max_wait_us);
        let run = self.run_time.of(self.waiting.len().min(self.max_batch()));
        Some(waited.min(self.earliest.saturating_sub(run).saturating_sub(1)))
    }

    fn is_due(&self, now: u64) -> bool {
        let enough = (self.batching.min_queue.max(1) as usize).min(self.max_batch());
        self.waiting.len() >= enough || self.start_by().is_some_and(|at| at <= now)
    }

    fn wake(&self, idle: bool) -> Option<u64> {
        let hopeless = self.earliest.saturating_sub(self.run_time.of(1));
        let start = self.start_by()?;
        Some(if idle { start.min(hopeless) } else { hopeless })
    }

    /// Returns whether the queue holds a request whose deadline has not passed, and none that a run of `run` microseconds would
    /// answer in time.
    fn only_hopeless(&self, now: u64, run: u64) -> bool {
        let mut deadlines = self.waiting.iter().map(|waiting| waiting.deadline);
        deadlines.clone().any(|deadline| deadline > now)
            && deadlines.all(|deadline| deadline <= now.saturating_add(run))
    }

    /// The number of requests in the largest batch that answers all of its requests in time, whichever of the queue they are.
    fn most_in_time(&self, now: u64) -> usize {
        let in_time = |deadline: u64, size: usize| deadline > now.saturating_add(self.run_time.of(size));
        let most = self.max_batch();
        if in_time(self.earliest, most) {
            return most;
        }
        let mut deadlines: Vec<u64> = self.waiting.iter().map(|waiting| waiting.deadline).collect();
        deadlines.sort_unstable_by(|one, other| other.cmp(one));
        let sizes = deadlines.into_iter().zip(1..=most);
        sizes
            .take_while(|(deadline, size)| in_time(*deadline, *size))
            .count()
    }

    /// Takes out the requests that a run of `run` microseconds from now would answer too late, looking no further than the
    /// point where `enough` others are in time.
    fn take_late(&mut self, now: u64, run: u64, enough: usize, late: &mut Vec<T>) {
        let end = now.saturating_add(run);
        if self.earliest > end {
            return;
        }
        if self.ascending {
            while let Some(first) = self.waiting.pop_front_if(|first| first.deadline <= end) {
                late.push(first.item);
            }
            self.earliest = self.waiting.front().map_or(u64::MAX, |first| first.deadline);
            return;
        }
        let mut kept = VecDeque::with_capacity(self.waiting.len());
        let mut earliest = u64::MAX;
        for waiting in self.waiting.drain(..) {
            if kept.len() < enough && waiting.deadline <= end {
                late.push(waiting.item);
            } else {
                earliest = earliest.min(waiting.deadline);
                kept.push_back(waiting);
            }
        }
        self.waiting = kept;
        self.earliest = earliest;
    }

    /// The longest batch from the front in which every request is answered in time. The first alone is, since the late
    /// have left. False if there is none.
    fn take_batch(&mut self, now: u64, batch: &mut Vec<T>) -> bool {
        let mut size = 0;
        let mut tightest = u64::MAX;
        for waiting in self.waiting.iter().take(self.max_batch()) {
            tightest = tightest.min(waiting.deadline);
            if size > 0 && now.saturating_add(self.run_time.of(size + 1)) >= tightest {
                break;
            }
            size += 1;
        }
        batch.extend(self.waiting.drain(..size).map(|waiting| waiting.item));
        if self.waiting.is_empty() {
            self.earliest = u64::MAX;
        }
        size > 0
    }
}

#[cfg(test)]
mod tests;
