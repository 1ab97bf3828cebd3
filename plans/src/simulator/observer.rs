//! Who watches a simulation, and a watcher that draws its course.

use serde::Serialize;

use super::histogram::LatencyHistogram;

/// Watches a simulation. Every method does nothing unless it is written.
pub trait Observer {
    /// A request was answered in time.
    fn answered(&mut self, _answered: &Answered) {}

    /// A tick of the shifter has passed, also where nothing shifts.
    fn tick(&mut self, _tick: &Tick) {}

    /// A device has run a batch.
    fn ran(&mut self, _run: &Run) {}
}

impl Observer for () {}

/// Two watchers watch together.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn answered(&mut self, answered: &Answered) {
        self.0.answered(answered);
        self.1.answered(answered);
    }

    fn tick(&mut self, tick: &Tick) {
        self.0.tick(tick);
        self.1.tick(tick);
    }

    fn ran(&mut self, run: &Run) {
        self.0.ran(run);
        self.1.ran(run);
    }
}

/// A request that was answered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// When the client had the answer, microseconds. Ascending from call to call.
    pub at_us: u64,
    /// How long that took, microseconds.
    pub latency_us: u64,
    /// The gear that admitted it.
    pub gear: u32,
    /// The variant whose answer it was, by its place in the plan's list.
    pub variant: u32,
    /// Whether the answer was right.
    pub right: bool,
    /// Batches that it was part of, over all its copies and attempts.
    pub hops: u32,
}

/// The state of the service at a tick of the shifter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// The end of the tick, microseconds.
    pub at_us: u64,
    /// Requests that came in it.
    pub arrivals: u64,
    /// The load as the shifter measures it, requests/s.
    pub qps: f64,
    /// The gear after the tick.
    pub gear: u32,
    /// Requests that wait for the first stage's variant.
    pub first_queue: usize,
    /// Requests without an outcome.
    pub in_flight: usize,
}

/// A batch that has run, to its end or to the failure of its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// When it began, microseconds.
    pub from_us: u64,
    /// When it ended, microseconds.
    pub to_us: u64,
    /// The replica, by its place in the plan's placement.
    pub replica: u32,
    /// The device, by its place in the report's list.
    pub device: u32,
    /// Requests in it.
    pub batch: usize,
}

/// The course of a simulation in buckets of equal length, for plots.
#[derive(Debug, Clone)]
pub struct Timeline {
    bucket_us: u64,
    buckets: Vec<Bucket>,
    ticks: Vec<u32>,
    /// The bucket whose latencies are being counted; those before it are closed.
    open: usize,
    latencies: LatencyHistogram,
}

/// What happened in one bucket of time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Bucket {
    /// Its beginning, microseconds.
    pub from_us: u64,
    /// Requests that came per second.
    pub qps: f64,
    /// Mean gear over its ticks.
    pub gear: f64,
    /// Requests answered in it.
    pub answered: u64,
    /// 95th percentile of their latency, microseconds; absent if none was answered.
    pub p95_us: Option<u64>,
    /// Share of right ones among them; absent if none was answered.
    pub accuracy: Option<f64>,
    /// Most requests in flight at a tick.
    pub max_in_flight: usize,
    #[serde(skip)]
    right: u64,
    #[serde(skip)]
    arrivals: u64,
}

impl Timeline {
    /// An empty one with buckets of this length, microseconds.
    pub fn new(bucket_us: u64) -> Self {
        Self {
            bucket_us: bucket_us.max(1),
            buckets: Vec::new(),
            ticks: Vec::new(),
            open: 0,
            latencies: LatencyHistogram::default(),
        }
    }

    /// The buckets, in order of time and without gaps.
    pub fn finish(mut self) -> Vec<Bucket> {
        self.close(self.buckets.len());
        let seconds = self.bucket_us as f64 / 1e6;
        for (bucket, ticks) in self.buckets.iter_mut().zip(&self.ticks) {
            bucket.qps = bucket.arrivals as f64 / seconds;
            bucket.gear /= f64::from((*ticks).max(1));
        }
        self.buckets
    }

    fn at(&mut self, at_us: u64) -> usize {
        let index = (at_us / self.bucket_us) as usize;
        while self.buckets.len() <= index {
            self.buckets.push(Bucket {
                from_us: self.buckets.len() as u64 * self.bucket_us,
                ..Bucket::default()
            });
            self.ticks.push(0);
        }
        index
    }

    /// Ends the buckets before this one.
    fn close(&mut self, before: usize) {
        if self.open >= before {
            return;
        }
        if let Some(bucket) = self.buckets.get_mut(self.open) {
            bucket.p95_us = self.latencies.p95();
            bucket.accuracy = (bucket.answered > 0).then(|| bucket.right as f64 / bucket.answered as f64);
        }
        self.latencies.clear();
        self.open = before;
    }
}

impl Observer for Timeline {
    fn answered(&mut self, answered: &Answered) {
        let index = self.at(answered.at_us);
        self.close(index);
        self.latencies.record(answered.latency_us);
        if let Some(bucket) = self.buckets.get_mut(index) {
            bucket.answered += 1;
            bucket.right += u64::from(answered.right);
        }
    }

    fn tick(&mut self, tick: &Tick) {
        // A tick speaks of the time before it.
        let index = self.at(tick.at_us.saturating_sub(1));
        if let (Some(bucket), Some(ticks)) = (self.buckets.get_mut(index), self.ticks.get_mut(index)) {
            bucket.arrivals += tick.arrivals;
            bucket.gear += f64::from(tick.gear);
            bucket.max_in_flight = bucket.max_in_flight.max(tick.in_flight);
            *ticks += 1;
        }
    }
}
