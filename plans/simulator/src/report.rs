//! The results of a simulation.

use serde::Serialize;

use super::branches::Paths;
use super::config::{Power, SimConfig};
use super::fleet::Fleet;
use super::histogram::LatencyHistogram;
use super::observer::Loss;
use super::run_tables::RunTables;
use kaskade_policy::energy;

/// The results of a simulation. Every request is answered, expired, dropped, refused or failed, and none twice.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Report {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests answered before their budget ended.
    pub answered: u64,
    /// Answered requests that were later than the objective ([`SimConfig::slo_us`]).
    pub late: u64,
    /// Answered requests with a right answer.
    pub right: u64,
    /// Requests that were, or would have been, answered too late.
    pub expired: u64,
    /// Requests dropped early ([`kaskade_policy::rerouting`]).
    pub dropped: u64,
    /// Requests for which there was no room: in a queue, in the ledger, or by early shedding.
    pub refused: u64,
    /// Requests whose every attempt failed.
    pub failed: u64,
    /// Requests without an outcome at the end; 0 unless the simulator errs.
    pub lost: u64,
    /// Latency of the answered requests, microseconds.
    pub latency: LatencyHistogram,
    /// Copies of requests that were sent to a backup instead of the replica that the shares chose (Loki §5.2).
    pub rerouted: u64,
    /// Outcomes of the branches of pipelines' requests.
    pub branches: BranchReport,
    /// The paths of the answered requests of pipelines.
    pub paths: Vec<PathReport>,
    /// Answered pipelines' requests whose accuracy is known, and the sum of their accuracies: each the mean over its branches.
    pub graded: u64,
    /// See [`Report::graded`].
    pub grades: f64,
    /// Results of each variant, in the first plan's order; those of later plans follow.
    pub variants: Vec<VariantReport>,
    /// Results of each device, in order of first mention in the plans' placements.
    pub devices: Vec<DeviceReport>,
    /// Gear shifts.
    pub shifts: u64,
    /// The first [`SHIFTS_KEPT`] shifts.
    pub shift_log: Vec<Shift>,
    /// Times that a controller's plan was put in force.
    pub plans: u64,
    /// The first [`PLANS_KEPT`] times.
    pub plan_log: Vec<PlanChange>,
    /// Plans that could not be simulated. The plan in force stayed.
    pub plans_refused: u64,
    /// Errors of the first [`PLANS_KEPT`] of them.
    pub refused_plans: Vec<String>,
    /// Most plans at once that requests were in flight under.
    pub max_plans: usize,
    /// Models that were loaded for a plan.
    pub loads: u64,
    /// Most requests in flight at once.
    pub max_in_flight: usize,
    /// Most places for requests that were ever needed at once: what the simulator's memory grows with.
    pub max_places: usize,
    /// Branches of pipelines' requests that are still kept at the end; 0 unless the simulator errs.
    pub branches_left: usize,
    /// Longest queue of any replica.
    pub max_queue: usize,
    /// Time from the start until the last request had its outcome, microseconds.
    pub duration_us: u64,
    /// Joules of all devices, idle and spare ones included, where known.
    pub energy_j: Option<f64>,
    /// Joules of the devices that host nothing ([`SimConfig::spare`]).
    pub spare_j: Option<f64>,
    /// Events that the simulator processed.
    pub events: u64,
}

/// Shifts of which a report keeps the time.
pub const SHIFTS_KEPT: usize = 10_000;

/// Changes of plan of which a report keeps the time.
pub const PLANS_KEPT: usize = 1_000;

impl Report {
    /// Requests that missed their objective: answered late, or not at all.
    pub fn slo_violations(&self) -> u64 {
        self.late + self.expired + self.dropped + self.refused + self.failed
    }

    /// Share of requests that missed their objective; `None` if none came.
    pub fn slo_violation_ratio(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.slo_violations() as f64 / self.requests as f64)
    }

    /// Mean accuracy of the answered requests of pipelines, each the mean over its branches, in [0, 1]; `None` if none was.
    /// The mean over all branches is [`BranchReport::accuracy`].
    pub fn path_accuracy(&self) -> Option<f64> {
        (self.graded > 0).then(|| self.grades / self.graded as f64)
    }

    /// Share of right answers among the answered requests; `None` if none was answered.
    pub fn accuracy(&self) -> Option<f64> {
        (self.answered > 0).then(|| self.right as f64 / self.answered as f64)
    }

    /// Highest utilisation of any device, in [0, 1].
    pub fn max_utilisation(&self) -> f64 {
        self.devices
            .iter()
            .map(|device| device.utilisation)
            .fold(0.0, f64::max)
    }

    /// Time that devices had a running replica, summed over the devices, seconds: what an autoscaled service is billed for.
    pub(crate) fn device_seconds(&self) -> f64 {
        self.devices.iter().map(|device| device.up_us as f64 / 1e6).sum()
    }

    /// Mean number of devices that hosted something.
    pub fn mean_active_devices(&self) -> f64 {
        self.device_seconds() / (self.duration_us.max(1) as f64 / 1e6)
    }

    /// Adds the variants and devices that have been numbered since.
    pub(super) fn grow(&mut self, tables: &RunTables) {
        let variants = tables.variants.list.iter().skip(self.variants.len());
        self.variants.extend(variants.map(|name| VariantReport {
            name: name.clone(),
            ..VariantReport::default()
        }));
        let devices = tables.devices.list.iter().skip(self.devices.len());
        self.devices.extend(devices.map(|(worker, device)| DeviceReport {
            worker: worker.clone(),
            device: device.clone(),
            ..DeviceReport::default()
        }));
    }

    pub(super) fn count(&mut self, loss: Loss) {
        match loss {
            Loss::Expired => self.expired += 1,
            Loss::Dropped => self.dropped += 1,
            Loss::Refused => self.refused += 1,
            Loss::Failed => self.failed += 1,
        }
    }

    pub(super) fn take_paths(&mut self, paths: &Paths, tables: &RunTables) {
        self.paths = paths
            .taken()
            .map(|path| PathReport {
                path: tables.path_names(&path.steps),
                answered: path.answered,
                accuracy: (!path.accuracy.is_nan()).then_some(path.accuracy),
            })
            .collect();
    }

    pub(super) fn take_devices(&mut self, fleet: &Fleet, end: u64, config: &SimConfig) {
        for (device, state) in self.devices.iter_mut().zip(&fleet.devices) {
            (device.busy_us, device.up_us) = state.times(end);
            device.utilisation = device.busy_us as f64 / end.max(1) as f64;
            device.kernel_us = if config.contention {
                state.sharers.used_us() as u64
            } else {
                device.busy_us
            };
            (device.idle_j, device.busy_j) = device.joules(config.power, state.batches_j).unzip();
        }
        let spare = config.spare.map_or(0.0, |spare| {
            f64::from(spare.devices) * spare.watts * end as f64 / 1e6
        });
        self.spare_j = config.power.map(|_| spare);
        let of_devices = self.devices.iter().map(DeviceReport::energy_j);
        let of_devices: Option<f64> = of_devices.sum();
        self.energy_j = self.spare_j.and_then(|spare| Some(spare + of_devices?));
    }
}

/// Outcomes of the branches of pipelines' requests. A lost branch counts once, however many branches would have followed from it; when a
/// request is sent again, the ended branches of its earlier attempt stay counted.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct BranchReport {
    /// Answered before the request's budget ended.
    pub answered: u64,
    /// Answered branches that were later than the objective.
    pub late: u64,
    /// Would have been, or were, answered too late.
    pub expired: u64,
    /// Dropped early.
    pub dropped: u64,
    /// Refused by a full queue.
    pub refused: u64,
    /// Failed at every attempt.
    pub failed: u64,
    /// Answered branches whose accuracy is known, and the sum of their accuracies.
    pub graded: u64,
    /// See [`BranchReport::graded`].
    pub grades: f64,
}

impl BranchReport {
    /// Mean end-to-end accuracy of the answered branches, in [0, 1]; `None` if none was.
    pub fn accuracy(&self) -> Option<f64> {
        (self.graded > 0).then(|| self.grades / self.graded as f64)
    }

    /// Share of branches that missed their objective; `None` if there was none.
    pub fn slo_violation_ratio(&self) -> Option<f64> {
        let lost = self.expired + self.dropped + self.refused + self.failed;
        let all = self.answered + lost;
        (all > 0).then(|| (self.late + lost) as f64 / all as f64)
    }

    pub(super) fn answered(&mut self, late: bool, accuracy: Option<f64>) {
        self.answered += 1;
        self.late += u64::from(late);
        if let Some(accuracy) = accuracy {
            self.graded += 1;
            self.grades += accuracy;
        }
    }

    pub(super) fn count(&mut self, loss: Loss) {
        match loss {
            Loss::Expired => self.expired += 1,
            Loss::Dropped => self.dropped += 1,
            Loss::Refused => self.refused += 1,
            Loss::Failed => self.failed += 1,
        }
    }
}

/// A path through a pipeline by which requests were answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathReport {
    /// Task and variant of each step, from the root on.
    pub path: Vec<(String, String)>,
    /// Branches that were answered at its end.
    pub answered: u64,
    /// End-to-end accuracy of the path, in [0, 1], where known.
    pub accuracy: Option<f64>,
}

/// A plan that was put in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlanChange {
    /// When the controller gave it, microseconds.
    pub decided_us: u64,
    /// When its replicas were loaded and it began to admit, microseconds.
    pub at_us: u64,
}

/// The results of a variant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct VariantReport {
    /// Name of the variant.
    pub name: String,
    /// Requests that it answered.
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

/// The results of a device.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DeviceReport {
    /// The worker it belongs to.
    pub worker: String,
    /// Name of the device on the worker.
    pub device: String,
    /// Time with at least one batch running, microseconds.
    pub busy_us: u64,
    /// Time with at least one replica loaded or loading, microseconds.
    pub up_us: u64,
    /// `busy_us` over the whole duration, in [0, 1].
    pub utilisation: f64,
    /// Time with a batch running, weighed by the share of the device that its batches used, microseconds; `busy_us` without
    /// [`SimConfig::contention`].
    pub kernel_us: u64,
    /// Joules that it drew for having something loaded, where known.
    pub idle_j: Option<f64>,
    /// Joules that its batches drew on top, where known.
    pub busy_j: Option<f64>,
}

impl DeviceReport {
    /// Joules that it drew in all, where known.
    pub fn energy_j(&self) -> Option<f64> {
        Some(self.idle_j? + self.busy_j?)
    }

    fn joules(&self, power: Option<Power>, batches_j: f64) -> Option<(f64, f64)> {
        let (up_s, kernel_s) = (self.up_us as f64 / 1e6, self.kernel_us as f64 / 1e6);
        let (idle, busy) = match power? {
            Power::Modelled(model) => {
                let idle = energy::modelled_joules(up_s, 0.0, model)?;
                (idle, energy::modelled_joules(up_s, kernel_s, model)? - idle)
            }
            Power::Profiled { idle_watts } => (up_s * idle_watts, batches_j),
        };
        (idle.is_finite() && busy.is_finite()).then_some((idle, busy))
    }
}

/// A gear shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shift {
    /// When, microseconds.
    pub at_us: u64,
    /// Into which gear.
    pub gear: u32,
}
