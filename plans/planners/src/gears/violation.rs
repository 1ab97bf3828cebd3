//! Violated constraints that submodules report to each other, and errors that the planner reports to the user (CascadeServe §4.1).

use serde::Serialize;
use thiserror::Error;

use super::options::OptionError;
use crate::certify::CertifyError;
use crate::lp::LpError;
use crate::thresholds::FamilyError;
use kaskade_policy::invalid::Invalid;
use kaskade_policy::plan::LoadRange;

/// The failure of a submodule for a range of load. Every violation names the range and the bottleneck model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Violation {
    /// The range, from 0.
    pub range: usize,
    /// Loads of the range, requests/s.
    pub load: LoadRange,
    /// The model whose replicas are the bottleneck.
    pub bottleneck: String,
    /// The shortfall.
    pub kind: ViolationKind,
}

/// The shortfall of a range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ViolationKind {
    /// No placement lets the busiest device be less than fully busy, even in batches of the best size.
    Utilisation {
        /// The least utilisation of the busiest device; above 1.
        utilisation: f64,
    },
    /// The replicas that the loads need do not fit into the devices' memory.
    Memory {
        /// Memory of one replica of each needed model, bytes.
        needed_bytes: u64,
        /// Memory of the largest device, bytes.
        device_bytes: u64,
    },
    /// Simulated, the backlog grew whatever the batching.
    Throughput {
        /// Utilisation of the busiest device, as simulated.
        utilisation: f64,
    },
    /// The busiest device has less headroom than required, whatever the batching.
    Headroom {
        /// Utilisation of the busiest device, as simulated.
        utilisation: f64,
        /// Highest utilisation allowed.
        at_most: f64,
    },
    /// The latency objective is missed whatever the batching.
    Latency {
        /// The least 95th percentile found, microseconds, or its lower bound.
        p95_us: u64,
        /// The objective, microseconds.
        slo_us: u64,
    },
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let to = self.load.to_qps.unwrap_or(f64::INFINITY);
        write!(
            f,
            "from {:.1} to {:.1} requests/s, at model `{}`: ",
            self.load.from_qps, to, self.bottleneck
        )?;
        match self.kind {
            ViolationKind::Utilisation { utilisation } => {
                write!(f, "the busiest device would be {:.0} % busy", 100.0 * utilisation)
            }
            ViolationKind::Memory {
                needed_bytes,
                device_bytes,
            } => write!(
                f,
                "the models need {} together, and the largest device has {}",
                bytes(needed_bytes),
                bytes(device_bytes)
            ),
            ViolationKind::Throughput { utilisation } => write!(
                f,
                "the backlog grows, with the busiest device {:.0} % busy",
                100.0 * utilisation
            ),
            ViolationKind::Headroom { utilisation, at_most } => write!(
                f,
                "the busiest device is {:.0} % busy, and at most {:.0} % are allowed",
                100.0 * utilisation,
                100.0 * at_most
            ),
            ViolationKind::Latency { p95_us, slo_us } => write!(
                f,
                "the 95th percentile of latency is {}, the objective {}",
                time(p95_us),
                time(slo_us)
            ),
        }
    }
}

/// A gear plan cannot be made. The caller keeps an older plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum GearError {
    /// An option has a value that is not allowed, or the options contradict each other.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The profile cannot be planned from.
    #[error("the profile cannot be planned from: {0}")]
    Profile(#[from] FamilyError),
    /// The objective is out of reach even with the cheapest cascade in the range that failed last.
    #[error(
        "the objective cannot be met on {devices} device(s), even by the cheapest {}: {violation}; {remedy}{}",
        if *certified { "cascade that is certified" } else { "cascade" },
        if *certified { ", allow a larger loss or a lower accuracy, or record more samples" } else { "" }
    )]
    Unattainable {
        /// The violation of the cheapest cascade.
        violation: Violation,
        /// The devices there are.
        devices: usize,
        /// The remedy.
        remedy: Remedy,
        /// Whether only certified cascades were tried.
        certified: bool,
    },
    /// The accuracy is out of reach at the cascades that the devices can carry.
    #[error("an accuracy of {at_least:.4} cannot be met {}", inaccurate(*reached, *devices, violation.as_ref()))]
    Inaccurate {
        /// The objective.
        at_least: f64,
        /// The accuracy of the most accurate plan that was found; without a violation, of the most accurate cascade.
        reached: f64,
        /// The devices there are.
        devices: usize,
        /// The last violation that ruled a cascade out; absent if even without load the accuracy is too low.
        violation: Option<Violation>,
    },
    /// The accuracy is out of reach, and no lower one was found that is not.
    #[error(
        "an accuracy of {at_least:.4} cannot be met on {devices} device(s), because {violation}; use more devices, a lower accuracy, or a lower rate"
    )]
    NoLimitKnown {
        /// The objective.
        at_least: f64,
        /// The devices there are.
        devices: usize,
        /// The last violation that ruled a cascade out.
        violation: Violation,
    },
    /// No such variant.
    #[error("the profile has no variant `{name}`")]
    NoVariant {
        /// Name of the variant.
        name: String,
    },
    /// There are more cascades by ranges than can be searched.
    #[error(
        "{assignments} assignments of cascades to ranges are too many to try; use fewer ranges or cascades"
    )]
    TooMany {
        /// The number.
        assignments: f64,
    },
    /// The solver failed.
    #[error("the load was not balanced: {0}")]
    Lp(#[from] LpError),
    /// A gear could not be simulated.
    #[error("a gear could not be simulated: {0}")]
    Simulation(String),
    /// No cascade keeps the guarantee.
    #[error("no gear can be certified: {0}")]
    Certify(CertifyError),
    /// The plan would be unsound.
    #[error("the options do not make a sound plan: {0}")]
    Plan(#[from] Invalid),
}

/// A time in a unit that shows it. Rounded up, so that it can be stated as an objective.
fn time(us: u64) -> String {
    if us < 10_000 {
        format!("{us} µs")
    } else {
        format!("{:.1} ms", us.div_ceil(100) as f64 / 10.0)
    }
}

/// A size in a unit that shows it.
fn bytes(bytes: u64) -> String {
    if bytes < 1_000_000_000 {
        format!("{:.1} MB", bytes as f64 / 1e6)
    } else {
        format!("{:.1} GB", bytes as f64 / 1e9)
    }
}

/// Why an accuracy is out of reach, and what to change: more devices help only where the load is the reason.
fn inaccurate(reached: f64, devices: usize, violation: Option<&Violation>) -> String {
    violation.map_or_else(
        || format!("by any of the cascades that there are: the most accurate gives {reached:.4} on the samples; ask for less"),
        |violation| {
            format!(
                "on {devices} device(s): the most accurate plan that was found gives {reached:.4}, because {violation}; use more devices, \
                 a lower accuracy, or a lower rate"
            )
        },
    )
}

/// A change that would make a plan possible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Remedy {
    /// More devices.
    Devices {
        /// Number of devices of average speed that the load keeps fully busy.
        at_least: usize,
    },
    /// More memory.
    Memory,
    /// A looser objective: no device is the cause.
    Objective {
        /// The least 95th percentile that was reached, microseconds.
        p95_us: u64,
    },
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Devices { at_least } => write!(
                f,
                "use more devices (the load alone keeps {at_least} busy) or a lower rate"
            ),
            Self::Memory => write!(f, "use more devices, devices with more memory, or smaller models"),
            Self::Objective { p95_us } => write!(
                f,
                "use a looser objective ({} was reached), more devices, or a lower rate",
                time(*p95_us)
            ),
        }
    }
}

/// The submodules of the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Submodule {
    /// SP1: the cascades to choose from.
    CascadeSearch,
    /// SP2: which cascade serves which range.
    WorkloadAdaption,
    /// SP3: which model runs where.
    HardwareMapping,
    /// SP4: in which batches.
    Batching,
}

/// A call of a submodule, for progress reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// Calls of the submodules so far.
    pub call: u64,
    /// The submodule that was called.
    pub submodule: Submodule,
    /// Violation that the submodule found; absent if it succeeded.
    pub violation: Option<Violation>,
}

/// The cost of planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Effort {
    /// Calls of the cascade search.
    pub cascade_search: u64,
    /// Calls of the workload adaption.
    pub workload_adaption: u64,
    /// Calls of the hardware mapping.
    pub hardware_mapping: u64,
    /// Calls of the batching, one per range.
    pub batching: u64,
    /// Gears that were simulated.
    pub simulations: u64,
    /// Passes through all submodules after the first feasible plan.
    pub improvements: u64,
}

impl Effort {
    /// Calls of all submodules (Figure 11).
    pub fn calls(&self) -> u64 {
        self.cascade_search + self.workload_adaption + self.hardware_mapping + self.batching
    }
}
