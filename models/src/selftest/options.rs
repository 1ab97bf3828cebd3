//! Options of the self-test.

use std::time::{Duration, Instant};

use crate::device::DeviceChoice;
use crate::power::PowerConfig;
use crate::precision::WeightType;

/// Names of the networks that can be timed, for [`SelftestOptions::networks`].
pub const NETWORKS: [&str; 7] = [
    "bert-tiny",
    "bert-small",
    "bert-base",
    "vit-tiny",
    "vit-base",
    "gpt-2",
    "tiny-llama-1.1b",
];

/// Names of the checkpoints that can be compared, for [`SelftestOptions::families`].
pub fn families() -> impl Iterator<Item = &'static str> + Clone {
    let encoders = super::fixtures::ALL.iter().map(|fixture| fixture.name);
    encoders.chain(super::language::names())
}

/// Reason for a missing result after the time limit.
pub(super) const NOT_REACHED: &str = "the time limit was reached before";

/// Options of the self-test.
#[derive(Debug, Clone, PartialEq)]
pub struct SelftestOptions {
    /// Device to test.
    pub device: DeviceChoice,
    /// Extent of the suite.
    pub extent: SelftestExtent,
    /// Measurement time per shape and batch size, besides loading and warm-up.
    pub budget: Duration,
    /// Time limit of the suite. Sections that are not reached in time are reported as such; the suite fails if one of
    /// them is a comparison. `None`: no limit.
    pub limit: Option<Duration>,
    /// Allowed energy sources.
    pub power: PowerConfig,
    /// Parts to run; empty: all.
    pub parts: Vec<SelftestPart>,
    /// Names of the networks to time; empty: those of the extent.
    pub networks: Vec<String>,
    /// Batch sizes to time; empty: those of the extent.
    pub batches: Vec<usize>,
    /// Weight type of timed networks.
    pub dtype: WeightType,
    /// Names of the checkpoints to compare, encoders and decoders; empty: all.
    pub families: Vec<String>,
}

/// A part of the suite that can be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelftestPart {
    /// Encoders and image networks against expected outputs.
    Parity,
    /// Language model engine against expected outputs, and its speed.
    Language,
    /// Throughput of encoders and image networks.
    Throughput,
    /// Bandwidth between host and device, both ways.
    Transfers,
}

impl SelftestOptions {
    /// Runs a part if it is selected.
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

    /// Returns the time left for a suite that started at `began`; `None`: no limit.
    pub(super) fn left(&self, began: Instant) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(began.elapsed()))
    }

    /// Returns whether the time limit of a suite that started at `began` has passed.
    pub(super) fn is_over(&self, began: Instant) -> bool {
        self.left(began) == Some(Duration::ZERO)
    }

    /// Returns whether a checkpoint is selected for comparison.
    pub(super) fn compares(&self, family: &str) -> bool {
        self.families.is_empty() || self.families.iter().any(|name| name == family)
    }

    /// Returns whether a network is selected.
    pub(super) fn times(&self, network: &str) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|name| name == network)
    }

    /// Returns the selected batch sizes, else `usual`, in ascending order.
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
    /// Returns the standard suite on the CPU, one second per shape.
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
