//! What a simulation found.

use serde::Serialize;

use super::histogram::LatencyHistogram;

/// What a simulation found. Every request that came is answered, expired, refused or failed, and none twice.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Report {
    /// Requests that came.
    pub requests: u64,
    /// Requests answered in time.
    pub answered: u64,
    /// Of those, with a right answer.
    pub right: u64,
    /// Requests that were, or would have been, answered too late.
    pub expired: u64,
    /// Requests for which there was no room: in a queue, in the book of accepted ones, or by early shedding.
    pub refused: u64,
    /// Requests whose every attempt failed.
    pub failed: u64,
    /// Requests without an outcome at the end; 0 unless the simulator errs.
    pub lost: u64,
    /// Latency of the answered requests, microseconds.
    pub latency: LatencyHistogram,
    /// By variant, in the plan's order.
    pub variants: Vec<VariantReport>,
    /// By device, in order of first mention in the plan's placement.
    pub devices: Vec<DeviceReport>,
    /// Gear shifts.
    pub shifts: u64,
    /// The first [`SHIFTS_KEPT`] shifts.
    pub shift_log: Vec<Shift>,
    /// Most requests in flight at once.
    pub max_in_flight: usize,
    /// Most places for requests that were ever needed at once: what the simulator's memory grows with.
    pub max_places: usize,
    /// Longest queue of any replica.
    pub max_queue: usize,
    /// From the start until the last request had its outcome, microseconds.
    pub duration_us: u64,
    /// Joules of all devices, idle included, where known.
    pub energy_j: Option<f64>,
    /// Events that the simulator worked off.
    pub events: u64,
}

/// Shifts of which a report keeps the time.
pub const SHIFTS_KEPT: usize = 10_000;

impl Report {
    /// Share of right answers among the answered requests; `None` if none was answered.
    pub fn accuracy(&self) -> Option<f64> {
        (self.answered > 0).then(|| self.right as f64 / self.answered as f64)
    }

    /// Answered requests per second of simulated time.
    pub fn throughput_qps(&self) -> f64 {
        self.answered as f64 / (self.duration_us.max(1) as f64 / 1e6)
    }

    /// Highest utilisation of any device, in [0, 1].
    pub fn max_utilisation(&self) -> f64 {
        self.devices
            .iter()
            .map(|device| device.utilisation)
            .fold(0.0, f64::max)
    }

    /// Time that devices had a running replica, summed over the devices, seconds: what an autoscaled service is billed for.
    pub fn device_seconds(&self) -> f64 {
        self.devices.iter().map(|device| device.up_us as f64 / 1e6).sum()
    }
}

/// What became of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// Requests whose answer was its.
    pub answered: u64,
    /// Requests that its batches ran.
    pub runs: u64,
    /// Batches.
    pub batches: u64,
}

impl VariantReport {
    /// Mean size of its batches; `None` if there was none.
    pub fn mean_batch(&self) -> Option<f64> {
        (self.batches > 0).then(|| self.runs as f64 / self.batches as f64)
    }
}

/// What became of a device.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DeviceReport {
    /// The worker it belongs to.
    pub worker: String,
    /// Its name there.
    pub device: String,
    /// Time with at least one batch running, microseconds.
    pub busy_us: u64,
    /// Time with at least one replica loaded, microseconds.
    pub up_us: u64,
    /// `busy_us` over the whole duration, in [0, 1].
    pub utilisation: f64,
}

/// A gear shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shift {
    /// When, microseconds.
    pub at_us: u64,
    /// Into which gear.
    pub gear: u32,
}
