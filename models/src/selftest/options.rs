//! Options of the self-test.

use std::time::{Duration, Instant};

use crate::device::DeviceChoice;
use crate::power::PowerConfig;
use crate::precision::WeightType;

/// The networks that are timed, as [`SelftestOptions::networks`] names them.
pub const NETWORKS: [&str; 7] = [
    "bert-tiny",
    "bert-small",
    "bert-base",
    "vit-tiny",
    "vit-base",
    "gpt-2",
    "tiny-llama-1.1b",
];

/// The checkpoints that are compared, as [`SelftestOptions::families`] names them.
pub fn families() -> impl Iterator<Item = &'static str> + Clone {
    let encoders = super::fixtures::ALL.iter().map(|fixture| fixture.name);
    encoders.chain(super::language::names())
}

/// Why a part has no result.
pub(super) const NOT_REACHED: &str = "the time limit was reached before";

/// Options of the self-test.
#[derive(Debug, Clone, PartialEq)]
pub struct SelftestOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Extent of the suite.
    pub extent: SelftestExtent,
    /// Time to spend on each shape and batch size, besides loading and warming up.
    pub budget: Duration,
    /// Time for the suite; what is not reached by then is reported as such, and the suite does not pass if that is a
    /// comparison. `None`: no limit.
    pub limit: Option<Duration>,
    /// Allowed energy sources.
    pub power: PowerConfig,
    /// The parts to run; empty: all.
    pub parts: Vec<SelftestPart>,
    /// Names of the networks to time; empty: those of the extent.
    pub networks: Vec<String>,
    /// Batch sizes to time; empty: those of the extent.
    pub batches: Vec<usize>,
    /// Type of the weights of timed networks.
    pub dtype: WeightType,
    /// Names of the checkpoints to compare, encoders and decoders; empty: all.
    pub families: Vec<String>,
}

/// A part of the suite that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelftestPart {
    /// Encoders and image networks against expected answers.
    Parity,
    /// The language engine against expected answers, and its speed.
    Language,
    /// Speed of encoders and image networks.
    Throughput,
    /// Bandwidth to the device and back.
    Transfers,
}

impl SelftestOptions {
    /// Runs a part if it was chosen.
    pub(super) fn part<T>(
        &self,
        part: SelftestPart,
        run: impl FnOnce() -> Result<T, String>,
    ) -> super::Section<T> {
        if self.parts.is_empty() || self.parts.contains(&part) {
            super::section::guarded(run)
        } else {
            super::Section::Skipped("it was not chosen".into())
        }
    }

    /// Time left of the limit for a suite that began then; `None`: no limit.
    pub(super) fn left(&self, began: Instant) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(began.elapsed()))
    }

    /// Whether the limit of a suite that began then has passed.
    pub(super) fn is_over(&self, began: Instant) -> bool {
        self.left(began) == Some(Duration::ZERO)
    }

    /// Returns whether a checkpoint is to be compared.
    pub(super) fn compares(&self, family: &str) -> bool {
        self.families.is_empty() || self.families.iter().any(|name| name == family)
    }

    /// Returns whether a network was chosen.
    pub(super) fn times(&self, network: &str) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|name| name == network)
    }

    /// Returns the chosen batch sizes in ascending order, or the given ones.
    pub(super) fn batches(&self, usual: &[usize]) -> Vec<usize> {
        let mut batches = if self.batches.is_empty() {
            usual.to_vec()
        } else {
            self.batches.clone()
        };
        batches.sort_unstable();
        batches.dedup();
        batches
    }
}

/// Extent of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelftestExtent {
    /// Seconds on a CPU: parity, the smallest network at two batch sizes, small transfers.
    Quick,
    /// Every network and every batch size on a GPU; on a CPU the batch sizes 1, 8 and 32.
    Standard,
    /// Every network and every batch size on any device.
    Full,
}

impl Default for SelftestOptions {
    /// The standard suite on the CPU, one second per shape.
    fn default() -> Self {
        Self {
            device: DeviceChoice::Cpu,
            extent: SelftestExtent::Standard,
            budget: Duration::from_secs(1),
            limit: None,
            power: PowerConfig::default(),
            parts: Vec::new(),
            networks: Vec::new(),
            batches: Vec::new(),
            dtype: WeightType::F32,
            families: Vec::new(),
        }
    }
}
