//! Configuration of a simulation, and its errors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fan_out::Copies;
use kaskade_policy::admission::AdmissionConfig;
use kaskade_policy::energy::EnergyModel;
use kaskade_policy::invalid::Invalid;
use kaskade_policy::ledger::LedgerConfig;
use kaskade_policy::liveness::{HEARTBEAT_PERIOD_US, MISSED_HEARTBEATS};
use kaskade_policy::plan::Sharing;
use kaskade_policy::profile::{HopAtRate, LatencyQuantiles, hop};
use kaskade_policy::routing::RoutingError;
use kaskade_policy::shifting::ShiftConfig;

/// Configuration of a simulation, beside the plan and the profile. Times in microseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// Seed of every draw. The same seed gives the same report.
    pub seed: u64,
    /// Median time from the client to the first queue and from the last replica back, together; each direction takes half of it.
    pub entry_hop_us: u64,
    /// Median time from one stage to the next.
    pub hop_us: u64,
    /// Distribution of the times of hops around their medians; `None` if they do not vary.
    pub hop_quantiles: Option<LatencyQuantiles>,
    /// Dependence of the times of hops on the rate at which requests are sent, measured over the last 32 of them or the last second:
    /// medians are multiplied by [`HopAtRate::factor`], and vary by the row's quantiles, if it has any. Empty if there is none.
    pub hop_by_rate: Vec<HopAtRate>,
    /// Time from the end of a batch to the start of the next if requests wait: the time to report the end of one and to deliver the other.
    /// For a batch that starts on an idle device, the hops contain it.
    pub turnaround_us: u64,
    /// Rule for choosing gears; `None`: the service stays in [`SimConfig::start_gear`].
    pub shift: Option<ShiftConfig>,
    /// The gear it starts in.
    pub start_gear: u32,
    /// Budget of each request; `None`: unlimited.
    pub budget_us: Option<u64>,
    /// Objective: an answer that takes longer is late and counts as a violation. Other than a budget it takes nothing out of a
    /// queue; [`Dropping::LastTask`](kaskade_policy::plan::Dropping::LastTask) uses the earlier of the two. Default: no request is late.
    pub slo_us: Option<u64>,
    /// Requests that may wait in each replica's queue.
    pub queue_capacity: usize,
    /// Admission of an overloaded service; `None`: every request is admitted. Needs a budget.
    pub admission: Option<AdmissionConfig>,
    /// Limits of requests in flight, and of resends.
    pub ledger: LedgerConfig,
    /// Time for which a replica's failure stays unnoticed: until then shares lead to it, and its requests are not sent again.
    pub detection_us: u64,
    /// Events of replicas, in any order.
    pub timeline: Vec<ReplicaEvent>,
    /// Ids of the replicas that do not run at the start.
    pub initially_down: Vec<String>,
    /// Whether batches that run on a shared device at once slow each other down. If so, each needs the share of the device that was
    /// measured of it ([`BatchCost::utilisation`](kaskade_policy::profile::BatchCost::utilisation), all of it where nothing was); when together
    /// they need more than the whole device, all of them slow down by that factor (HybridServe §V-B). If not, a shared device runs
    /// everything at full speed. Devices that run one batch at a time ignore it.
    pub contention: bool,
    /// Energy model; `None`: joules stay unknown.
    pub power: Option<Power>,
    /// Devices of the deployment that host nothing.
    pub spare: Option<IdleDevices>,
    /// Period of a [`Controller`](super::Controller).
    pub control_interval_us: u64,
    /// Loading times of models.
    pub loading: Loading,
    /// Measured distributions of the number of copies; without one, a mean of 1.3 makes one or two copies.
    pub copies: Vec<MeasuredCopies>,
    /// End-to-end accuracy of the paths through a pipeline, from the root to a sink, task and variant each, in [0, 1], as
    /// profiled. A path that is not listed has the product of its stages' [`Profiled`](kaskade_policy::plan::Profiled) accuracies.
    pub path_accuracies: BTreeMap<Vec<(String, String)>, f64>,
}

/// Loading times of models.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Loading {
    /// Default, microseconds.
    pub default_us: u64,
    /// Loading time of single variants, microseconds.
    pub by_variant: BTreeMap<String, u64>,
}

impl Loading {
    /// Returns the loading time of this variant, microseconds.
    pub fn time_us(&self, variant: &str) -> u64 {
        self.by_variant.get(variant).copied().unwrap_or(self.default_us)
    }
}

/// A measured distribution of a multiplicative factor (Loki §4.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCopies {
    /// The variant whose results are multiplied.
    pub variant: String,
    /// The child's task, or its stage where that has none.
    pub to: String,
    /// Weight of each number of copies, from 0, in any scale; plans are still made for the mean of the wiring.
    pub weights: Vec<f64>,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            entry_hop_us: 0,
            hop_us: 0,
            hop_quantiles: None,
            hop_by_rate: Vec::new(),
            turnaround_us: 0,
            shift: None,
            start_gear: 0,
            budget_us: None,
            slo_us: None,
            queue_capacity: usize::MAX,
            admission: None,
            ledger: LedgerConfig {
                max_in_flight: usize::MAX,
                ..LedgerConfig::default()
            },
            // A beat is missed half a period after the failure on average.
            detection_us: HEARTBEAT_PERIOD_US * MISSED_HEARTBEATS + HEARTBEAT_PERIOD_US / 2,
            timeline: Vec::new(),
            initially_down: Vec::new(),
            contention: false,
            power: None,
            spare: None,
            control_interval_us: 1_000_000,
            loading: Loading::default(),
            copies: Vec::new(),
            path_accuracies: BTreeMap::new(),
        }
    }
}

impl SimConfig {
    /// Checks what can be checked without the plan.
    pub(super) fn check(&self, gears: usize) -> Result<(), SimError> {
        let within = |field, found: f64, ok: bool, expected| {
            let found = found.to_string();
            if ok {
                Ok(())
            } else {
                Err(SimError::Config {
                    field,
                    found,
                    expected,
                })
            }
        };
        let gear = self.start_gear;
        within(
            "start_gear",
            gear.into(),
            (gear as usize) < gears,
            "a gear of the plan",
        )?;
        if let Some(budget) = self.budget_us {
            within("budget_us", budget as f64, budget > 0, "at least 1 microsecond")?;
        }
        if self.admission.is_some() && self.budget_us.is_none() {
            return within("admission", 1.0, false, "absent where no request has a budget");
        }
        let capacity = self.queue_capacity;
        within("queue_capacity", capacity as f64, capacity > 0, "at least 1")?;
        let attempts = self.ledger.max_attempts;
        let counted = (1..u32::from(u16::MAX)).contains(&attempts);
        within("ledger.max_attempts", attempts.into(), counted, "from 1 to 65534")?;
        if let Some(shift) = self.shift {
            within(
                "shift.tick_us",
                shift.tick_us as f64,
                shift.tick_us > 0,
                "at least 1",
            )?;
        }
        if let Some(quantiles) = self.hop_quantiles {
            within(
                "hop_quantiles",
                quantiles.p99,
                quantiles.is_sound(),
                "ascending around 1",
            )?;
        }
        let rows = self.hop_by_rate.len() as f64;
        let sound = hop::are_sound(&self.hop_by_rate);
        within(
            "hop_by_rate",
            rows,
            sound,
            "rows of ascending rates with factors above 0",
        )?;
        let interval = self.control_interval_us;
        within(
            "control_interval_us",
            interval as f64,
            interval > 0,
            "at least 1 microsecond",
        )?;
        for copies in &self.copies {
            let sum = copies.weights.iter().sum();
            let sound = Copies::measured(&copies.weights).is_some();
            within("copies.weights", sum, sound, "weights of a distribution")?;
        }
        for accuracy in self.path_accuracies.values() {
            let sound = (0.0..=1.0).contains(accuracy);
            within("path_accuracies", *accuracy, sound, "in [0, 1]")?;
        }
        let mut watts = match self.power {
            Some(Power::Modelled(model)) => vec![model.idle_watts, model.active_watts_per_core],
            Some(Power::Profiled { idle_watts }) => vec![idle_watts],
            None => Vec::new(),
        };
        watts.extend(self.spare.map(|spare| spare.watts));
        let sound = |watts: &f64| watts.is_finite() && *watts >= 0.0;
        let mut unsound = watts.into_iter().filter(|watts| !sound(watts));
        unsound.next().map_or(Ok(()), |watts| {
            within("power", watts, false, "finite and not negative")
        })
    }
}

/// A change of a replica at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaEvent {
    /// When, microseconds.
    pub at_us: u64,
    /// The replica's id, one of the first plan's. Where another plan gave the id another variant, that happens to whichever
    /// runs.
    pub replica: String,
    /// The change.
    pub change: Change,
}

/// A change of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The replica is loaded and takes requests from now on.
    Starts,
    /// The replica takes no new requests and answers those that it has.
    Stops,
    /// The replica fails, and its queue and its batch are lost.
    Fails,
}

/// Energy model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Power {
    /// Stated power of every device that has a running replica; a busy device counts as one core, and with [`SimConfig::contention`] as the
    /// share of one that its batches use.
    Modelled(EnergyModel),
    /// Profiled energy of every batch, plus this power for every device that has a running replica, watts.
    Profiled {
        /// Power drawn whether it works or not, watts.
        idle_watts: f64,
    },
}

/// Devices that belong to a deployment and host nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IdleDevices {
    /// Number of devices.
    pub devices: u32,
    /// Power of each device, watts.
    pub watts: f64,
}

/// Why a simulation cannot be set up.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SimError {
    /// The plan is unsound.
    #[error("the plan cannot be simulated: {0}")]
    Plan(#[from] Invalid),
    /// A variant that a stage names was not profiled.
    #[error("variant `{variant}` of the plan is not in the profile; profile it, or plan without it")]
    NoProfile {
        /// The variant.
        variant: String,
    },
    /// A variant's costs are absent or no positive numbers.
    #[error(
        "the profile's costs of variant `{variant}` give no latency for a batch of {batch}; profile it again"
    )]
    NoLatency {
        /// The variant.
        variant: String,
        /// The batch size.
        batch: u32,
    },
    /// A variant's validation columns are shorter than the profile requires, or there are none.
    #[error(
        "variant `{variant}` has {found} validation samples, the profile requires {expected}; profile it again"
    )]
    Samples {
        /// The variant.
        variant: String,
        /// The length of its shortest column.
        found: usize,
        /// The number in the profile, at least one.
        expected: usize,
    },
    /// A validation sample has no exit of a stage.
    #[error("gear `{gear}`, stage `{stage}`, validation sample {sample}: {source}")]
    NoRoute {
        /// The gear.
        gear: String,
        /// The stage.
        stage: String,
        /// The sample.
        sample: usize,
        /// Why.
        source: RoutingError,
    },
    /// The configuration names a replica that the plan has not.
    #[error("{field}: the plan has no replica `{replica}`")]
    NoSuchReplica {
        /// The field of the configuration.
        field: &'static str,
        /// The replica.
        replica: String,
    },
    /// A figure of the configuration is out of its range.
    #[error("{field}: {found} must be {expected}")]
    Config {
        /// The field.
        field: &'static str,
        /// Value of the field.
        found: String,
        /// Allowed values.
        expected: &'static str,
    },
    /// Another plan shares its devices in another way than the first one.
    #[error(
        "the plan's `sharing` is {found:?} and the running one's {expected:?}; devices cannot change how they are shared"
    )]
    SharingChanged {
        /// How the plan shares its devices.
        found: Sharing,
        /// How the running plan shares them.
        expected: Sharing,
    },
    /// The plan has more items of a kind than the simulator can count.
    #[error("the plan has more than {limit} {what}, which the simulator cannot number")]
    TooMany {
        /// The kind of item.
        what: &'static str,
        /// The maximum.
        limit: usize,
    },
}
