//! The outcome of a placement.

use serde::Serialize;

use super::curves::Curves;
use super::flow::Flow;
use kaskade_policy::plan::Plan;

/// A placed cascade and the steps of its planning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Placement {
    /// The plan, validated.
    pub plan: Plan,
    /// The load that it carries, requests/s.
    pub qps: f64,
    /// Requests of one period, `b`.
    pub batch: u32,
    /// Seconds of transfer per period (eq. 2).
    pub overhead_s: f64,
    /// Quality of the placement.
    pub proof: Proof,
    /// Statistics of the search.
    pub shapes: Shapes,
    /// The dataflow of the cascade.
    pub flow: Flow,
    /// The models, in the cascade's order.
    pub models: Vec<PlacedModel>,
    /// The devices, those without an instance too.
    pub devices: Vec<DeviceLoad>,
    /// The variants without a whole replica for which the plan lacks the certified list of its cascade: it is not audited, and has no
    /// safer cascade to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unaudited: Vec<String>,
}

impl Placement {
    /// Seconds of transfer per request of the app.
    pub fn overhead_per_request_s(&self) -> f64 {
        self.overhead_s / f64::from(self.batch)
    }

    /// Devices that host something.
    pub fn used(&self) -> usize {
        self.devices
            .iter()
            .filter(|device| !device.instances.is_empty())
            .count()
    }
}

/// Proven quality of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Proof {
    /// No placement moves less: every combination was solved exactly, or its bound proves it.
    Optimal,
    /// No placement of any combination moves less than this, examined or not.
    Gap {
        /// The bound, seconds of transfer per period.
        lower_s: f64,
        /// Relative difference between the placement and the bound, in [0, 1].
        gap: f64,
    },
    /// No bound is known: it is 0.
    NoBound,
}

/// Statistics of a search.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Shapes {
    /// Choices of partitions there are.
    pub cuts: f64,
    /// Choices of partitions that were examined.
    pub cuts_examined: u64,
    /// Combinations of replicas and partitions whose sums were examined.
    pub examined: u64,
    /// Examined combinations that break eq. 3 in sum or in an instance.
    pub memory: u64,
    /// Examined combinations that break eq. 4 in sum or in an instance.
    pub utilisation: u64,
    /// Combinations that were placed, or tried; the bounds rule out the others.
    pub tried: u64,
    /// Combinations that were annealed.
    pub annealed: u64,
    /// Combinations that were given to a solver.
    pub programs: u64,
    /// Whether there is no other combination. Of others it is known that they have more copies or partitions, and from that a bound.
    pub all: bool,
}

/// A model as placed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlacedModel {
    /// The variant.
    pub variant: String,
    /// Share of requests that it runs, `rho_i`.
    pub reach: f64,
    /// Copies, `R_i`.
    pub replicas: u32,
    /// Partitions of each, `S_i`.
    pub partitions: u32,
    /// Requests of a period that each copy gets, `rho_i b / R_i`.
    pub requests: f64,
    /// Largest batch of a copy.
    pub max_batch: u32,
    /// `rho_i l_i / (R_i S_i)`, seconds: alike for all models, but for the rounding to whole copies (§V-C).
    pub share_s: f64,
    /// Kernel utilisation of each partition on a device of speed 1, in [0, 1].
    pub utilisation: f64,
    /// Active memory of each partition, bytes.
    pub memory_bytes: f64,
    /// Figures by batch size: linear fits with their samples.
    pub curves: Curves,
}

/// A device as placed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceLoad {
    /// Worker of the device.
    pub worker: String,
    /// Name of the device on the worker.
    pub device: String,
    /// The replicas on it.
    pub instances: Vec<String>,
    /// Bytes in use.
    pub memory_bytes: f64,
    /// Bytes there are.
    pub capacity_bytes: u64,
    /// Kernel utilisation, in [0, 1].
    pub utilisation: f64,
}
