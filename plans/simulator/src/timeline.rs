//! Observer that records a simulation over time.

use serde::Serialize;

use super::histogram::LatencyHistogram;
use super::observer::{Answered, Loss, Lost, Observer, Sink, Tick};

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

/// Statistics of one bucket of time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Bucket {
    /// Start of the bucket, microseconds.
    pub from_us: u64,
    /// Arrivals per second.
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
    /// Requests that missed their objective in it: answered late, or not at all.
    pub violations: u64,
    /// Violations that were dropped early.
    pub dropped: u64,
    /// Mean end-to-end accuracy of the branches answered in it, in [0, 1]; absent if none was, and for everything but pipelines.
    pub path_accuracy: Option<f64>,
    /// Mean number of devices that host something, over its ticks.
    pub active_devices: f64,
    #[serde(skip)]
    right: u64,
    #[serde(skip)]
    arrivals: u64,
    #[serde(skip)]
    graded: u64,
    #[serde(skip)]
    grades: f64,
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
            let ticks = f64::from((*ticks).max(1));
            bucket.gear /= ticks;
            bucket.active_devices /= ticks;
            bucket.path_accuracy = (bucket.graded > 0).then(|| bucket.grades / bucket.graded as f64);
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
            bucket.violations += u64::from(answered.late);
        }
    }

    fn lost(&mut self, lost: &Lost) {
        let index = self.at(lost.at_us);
        if let Some(bucket) = self.buckets.get_mut(index) {
            bucket.violations += 1;
            bucket.dropped += u64::from(lost.loss == Loss::Dropped);
        }
    }

    fn sink(&mut self, sink: &Sink<'_>) {
        let index = self.at(sink.at_us);
        if let (Some(bucket), Some(accuracy)) = (self.buckets.get_mut(index), sink.accuracy) {
            bucket.graded += 1;
            bucket.grades += accuracy;
        }
    }

    fn tick(&mut self, tick: &Tick) {
        // A tick covers the time before it.
        let index = self.at(tick.at_us.saturating_sub(1));
        if let (Some(bucket), Some(ticks)) = (self.buckets.get_mut(index), self.ticks.get_mut(index)) {
            bucket.arrivals += tick.arrivals;
            bucket.gear += f64::from(tick.gear);
            bucket.active_devices += tick.active_devices as f64;
            bucket.max_in_flight = bucket.max_in_flight.max(tick.in_flight);
            *ticks += 1;
        }
    }
}
