//! When a replica's queue becomes a batch (CascadeServe §4.4).

use std::collections::VecDeque;

use crate::plan::Batching;

/// How long a batch is expected to take: a fixed part and a part per request, microseconds.
///
/// Costs of models by batch size are close to linear, see `fit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunTime {
    /// Whatever the size.
    pub base_us: u64,
    /// For each request in it.
    pub per_request_us: u64,
}

impl RunTime {
    /// Expected time of a batch of this size, microseconds.
    pub fn of(&self, batch: usize) -> u64 {
        self.base_us
            .saturating_add(self.per_request_us.saturating_mul(batch as u64))
    }
}

/// What a poll of the queue found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll<T> {
    /// Requests whose budget can no longer be met. Answer them with an error now instead of running them in vain.
    pub late: Vec<T>,
    /// What to do.
    pub next: Next<T>,
}

/// What the replica does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// Run this batch, oldest first, never empty.
    Run(Vec<T>),
    /// Nothing before this time, microseconds, unless a request comes or the replica becomes idle. Always in the future.
    WaitUntil(u64),
    /// Nothing until a request comes.
    Wait,
}

/// The bounded queue of one replica.
#[derive(Debug)]
pub struct BatchQueue<T> {
    batching: Batching,
    capacity: usize,
    run_time: RunTime,
    waiting: VecDeque<Waiting<T>>,
    /// No later than the earliest deadline that waits: it may be that of a request which has left. The queue is only
    /// searched for late requests when this says that there may be one.
    earliest: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    since: u64,
    deadline: u64,
}

impl<T> BatchQueue<T> {
    /// An empty queue for at most `capacity` requests (at least one).
    pub fn new(batching: Batching, capacity: usize) -> Self {
        Self {
            batching,
            capacity: capacity.max(1),
            run_time: RunTime::default(),
            waiting: VecDeque::new(),
            earliest: u64::MAX,
        }
    }

    /// Changes the triggers, as a gear shift does. The requests that wait stay.
    pub fn set_batching(&mut self, batching: Batching) {
        self.batching = batching;
    }

    /// Tells how long a batch takes. Until told, a request is late only once its deadline has passed.
    pub fn set_expected_run(&mut self, run_time: RunTime) {
        self.run_time = run_time;
    }

    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
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

    /// What to do at `now`; `idle` says whether the replica could start a batch.
    ///
    /// An idle replica starts once `min_queue` requests wait, or the oldest has waited `max_wait_us`, or waiting longer
    /// would make one late. A request is late when even a batch of its own would end at or after its deadline.
    pub fn poll(&mut self, now: u64, idle: bool) -> Poll<T> {
        let mut late = self.take_late(now, self.run_time.of(1), usize::MAX);
        if idle && self.is_due(now) {
            if self.waiting.len() > self.max_batch() {
                // With a full batch waiting behind this one, shrinking it to save a tight request would make many late.
                late.extend(self.take_late(now, self.run_time.of(self.max_batch()), self.max_batch()));
            }
            let batch = self.take_batch(now);
            if !batch.is_empty() {
                return Poll {
                    late,
                    next: Next::Run(batch),
                };
            }
        }
        let next = self
            .wake(idle)
            .map_or(Next::Wait, |at| Next::WaitUntil(at.max(now + 1)));
        Poll { late, next }
    }

    fn max_batch(&self) -> usize {
        self.batching.max_batch.max(1) as usize
    }

    /// When an idle replica should start although fewer than `min_queue` wait.
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

    /// Takes out the requests that a run of `run` microseconds from now would answer too late, looking no further than the
    /// point where `enough` others are in time.
    fn take_late(&mut self, now: u64, run: u64, enough: usize) -> Vec<T> {
        let end = now.saturating_add(run);
        if self.earliest > end {
            return Vec::new();
        }
        let mut late = Vec::new();
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
        late
    }

    /// The longest batch from the front in which every request is answered in time. The first alone is, since the late
    /// have left.
    fn take_batch(&mut self, now: u64) -> Vec<T> {
        let mut size = 0;
        let mut tightest = u64::MAX;
        for waiting in self.waiting.iter().take(self.max_batch()) {
            tightest = tightest.min(waiting.deadline);
            if size > 0 && now.saturating_add(self.run_time.of(size + 1)) >= tightest {
                break;
            }
            size += 1;
        }
        let batch = self.waiting.drain(..size).map(|waiting| waiting.item).collect();
        if self.waiting.is_empty() {
            self.earliest = u64::MAX;
        }
        batch
    }
}

#[cfg(test)]
#[path = "batching_tests.rs"]
mod tests;
