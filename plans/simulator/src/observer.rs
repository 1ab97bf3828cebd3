//! Observers of a simulation, and the events that they receive.

use serde::Serialize;

/// Observes a simulation. The default of every method does nothing.
pub trait Observer {
    /// A request was answered in time.
    fn answered(&mut self, _answered: &Answered) {}

    /// A request ended without an answer.
    fn lost(&mut self, _lost: &Lost) {}

    /// A branch of a pipeline's request was answered.
    fn sink(&mut self, _sink: &Sink<'_>) {}

    /// A tick of the shifter has passed, also where nothing shifts.
    fn tick(&mut self, _tick: &Tick) {}

    /// Returns whether it needs ticks where nothing shifts. They cost time: at a load of a request per minute, nearly all of it.
    fn wants_ticks(&self) -> bool {
        true
    }

    /// A device has run a batch.
    fn ran(&mut self, _run: &Run) {}
}

impl Observer for () {
    fn wants_ticks(&self) -> bool {
        false
    }
}

/// Two observers as one.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn answered(&mut self, answered: &Answered) {
        self.0.answered(answered);
        self.1.answered(answered);
    }

    fn lost(&mut self, lost: &Lost) {
        self.0.lost(lost);
        self.1.lost(lost);
    }

    fn sink(&mut self, sink: &Sink<'_>) {
        self.0.sink(sink);
        self.1.sink(sink);
    }

    fn tick(&mut self, tick: &Tick) {
        self.0.tick(tick);
        self.1.tick(tick);
    }

    fn wants_ticks(&self) -> bool {
        self.0.wants_ticks() || self.1.wants_ticks()
    }

    fn ran(&mut self, run: &Run) {
        self.0.ran(run);
        self.1.ran(run);
    }
}

/// A request that was answered before its budget ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// When the client had the answer, microseconds. Ascending from call to call.
    pub at_us: u64,
    /// Latency of the request, microseconds.
    pub latency_us: u64,
    /// The gear that admitted it.
    pub gear: u32,
    /// The variant whose answer it was, by its place in the first plan's list; those of later plans follow.
    pub variant: u32,
    /// Whether the answer was right.
    pub right: bool,
    /// Batches that it was part of, over all its copies and attempts.
    pub hops: u32,
    /// Whether it took longer than the objective ([`SimConfig::slo_us`](super::SimConfig::slo_us)).
    pub late: bool,
    /// Mean end-to-end accuracy of the paths of a pipeline request's copies, in [0, 1]; `None` for other requests,
    /// and where none is known.
    pub path_accuracy: Option<f64>,
}

/// Why a request gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The request's budget ended, or would have ended before its answer.
    Expired,
    /// The request was dropped early ([`kaskade_policy::rerouting`]).
    Dropped,
    /// A queue or the ledger was full, or admission refused it.
    Refused,
    /// All attempts failed.
    Failed,
}

/// A request that ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// When, microseconds.
    pub at_us: u64,
    /// When the client had sent it, microseconds.
    pub arrived_us: u64,
    /// Why.
    pub loss: Loss,
}

/// A branch of a pipeline's request that was answered before the request's budget ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Sink<'a> {
    /// When the client had the answer, microseconds.
    pub at_us: u64,
    /// Latency from the request on, microseconds.
    pub latency_us: u64,
    /// Whether it took longer than the objective.
    pub late: bool,
    /// Path of the branch: tasks and variants by number ([`Report::paths`](super::Report::paths) has their names).
    pub path: &'a [(u32, u32)],
    /// End-to-end accuracy of the path, in [0, 1]; `None` if unknown, or if a task made no request for the next.
    pub accuracy: Option<f64>,
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
    /// Devices that host a replica, loaded or loading.
    pub active_devices: usize,
}

/// A batch that has run, to its end or to the failure of its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// When it began, microseconds.
    pub from_us: u64,
    /// When it ended, microseconds.
    pub to_us: u64,
    /// The replica, by its place in the first plan's placement; those of later plans follow.
    pub replica: u32,
    /// The device, by its place in the report's list.
    pub device: u32,
    /// Requests in it.
    pub batch: usize,
}
