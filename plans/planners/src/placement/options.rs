//! Options of the placement planner.

use std::collections::BTreeMap;
use std::time::Duration;

use super::channel::Channels;
use super::error::PlacementError;
use crate::device::DeviceSpec;
use crate::lp::Solver;

/// Options of the placement planner.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementOptions {
    /// The available devices.
    pub devices: Vec<DeviceSpec>,
    /// Number of devices to use.
    pub fleet: Fleet,
    /// The load to carry.
    pub goal: PlacementObjective,
    /// Requests of one period, `b`: what `u`, `w` and `T` are functions of. The largest batch of a single copy is its part of them.
    pub batch: u32,
    /// Target utilisation: the share of a device that its instances may use together, in (0, 1] (eq. 4: 1).
    pub utilisation: f64,
    /// Transfer times between devices.
    pub channels: Channels,
    /// Bytes that a request carries from model to model.
    pub request_bytes: f64,
    /// Bytes that a request carries from partition to partition, by variant: the size of its hidden state.
    pub hidden_bytes: BTreeMap<String, f64>,
    /// Most partitions of any variant.
    pub max_partitions: u32,
    /// Most partitions of single variants: the number of their layers.
    pub layers: BTreeMap<String, u32>,
    /// Substitutes for figures that the profile lacks.
    pub assumed: Assumptions,
    /// Limits of the search.
    pub limits: SearchLimits,
    /// Seed of the random part of the search. The same seed finds the same placement.
    pub seed: u64,
}

impl PlacementOptions {
    /// The defaults for these devices and this goal: 32 requests per device and period, whole devices, at most 8 partitions, channels as
    /// [`Channels::stated`], and requests without a size.
    pub fn new(devices: Vec<DeviceSpec>, goal: PlacementObjective) -> Self {
        let batch = u32::try_from(devices.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(32);
        Self {
            devices,
            fleet: Fleet::All,
            goal,
            batch: batch.max(1),
            utilisation: 1.0,
            channels: Channels::stated(),
            request_bytes: 0.0,
            hidden_bytes: BTreeMap::new(),
            max_partitions: 8,
            layers: BTreeMap::new(),
            assumed: Assumptions::default(),
            limits: SearchLimits::default(),
            seed: 0,
        }
    }

    /// Most partitions of a variant: its layers, the general limit and the number of devices all bound it.
    pub(super) fn most_partitions(&self, variant: &str) -> u32 {
        let layers = self.layers.get(variant).copied().unwrap_or(u32::MAX);
        let devices = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
        self.max_partitions.min(layers).min(devices)
    }

    /// Checks what can be checked without a profile.
    pub(super) fn check(&self) -> Result<(), PlacementError> {
        if self.devices.is_empty() {
            return Err(PlacementError::NoDevices);
        }
        let within = |option: &'static str, found: f64, holds: bool, expected: &'static str| {
            if holds && found.is_finite() {
                Ok(())
            } else {
                Err(PlacementError::Option {
                    option,
                    found,
                    expected,
                })
            }
        };
        for device in &self.devices {
            within(
                "devices.speed",
                device.speed,
                device.speed > 0.0,
                "positive and finite",
            )?;
            let memory = device.memory_bytes as f64;
            within("devices.memory_bytes", memory, memory > 0.0, "at least 1 byte")?;
        }
        if let PlacementObjective::Carry { qps } = self.goal {
            within("qps", qps, qps > 0.0, "positive and finite")?;
        }
        within("batch", self.batch.into(), self.batch > 0, "at least 1")?;
        let bound = self.utilisation;
        within(
            "utilisation",
            bound,
            bound > 0.0 && bound <= 1.0,
            "above 0 and at most 1",
        )?;
        let most = self.max_partitions;
        within("max_partitions", most.into(), most > 0, "at least 1")?;
        let not_negative = "zero or positive, and finite";
        within(
            "request_bytes",
            self.request_bytes,
            self.request_bytes >= 0.0,
            not_negative,
        )?;
        for bytes in self.hidden_bytes.values() {
            within("hidden_bytes", *bytes, *bytes >= 0.0, not_negative)?;
        }
        for layers in self.layers.values() {
            within("layers", f64::from(*layers), *layers > 0, "at least 1")?;
        }
        if let Some(bytes) = self.assumed.bytes_per_parameter {
            within(
                "assumed.bytes_per_parameter",
                bytes,
                bytes > 0.0,
                "positive and finite",
            )?;
        }
        match self.channels.unsound() {
            Some(route) => Err(PlacementError::Channel { route }),
            None => Ok(()),
        }
    }
}

/// Number of devices to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fleet {
    /// As many devices as reduce transfers. Among placements with equal transfers, the one on fewer devices.
    #[default]
    All,
    /// The first few that carry the load, and no more: the others may serve other apps or be switched off.
    Fewest,
}

/// The load to carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PlacementObjective {
    /// This many requests per second.
    Carry {
        /// Requests/s.
        qps: f64,
    },
    /// As much load as the devices are found to carry.
    Most,
}

/// Substitutes for figures that the profile lacks. None by default: a missing figure is refused.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Assumptions {
    /// Memory of a replica where none was measured: this many bytes per weight, whatever the batch.
    pub bytes_per_parameter: Option<f64>,
    /// A batch whose utilisation was not measured keeps the device busy all the time.
    pub whole_device: bool,
}

/// Limits of the search. Counts and no times, so that the outcome does not depend on the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchLimits {
    /// Most combinations of `R` and `S` whose bounds are computed.
    pub shapes: u64,
    /// Moves of the annealing, over all combinations.
    pub moves: u64,
    /// Largest integer program that is tried: instances times devices.
    pub exact_cells: usize,
    /// Most nodes of its search tree, over all combinations; for the embedded solver.
    pub exact_nodes: u64,
    /// The solver of the placement program.
    pub solver: Solver,
    /// Time limit of another solver for one program, by its own clock; the embedded solver ignores it.
    pub solver_time: Option<Duration>,
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self {
            shapes: 20_000,
            moves: 2_000_000,
            exact_cells: 24,
            exact_nodes: 2_000,
            solver: Solver::Embedded,
            solver_time: None,
        }
    }
}
