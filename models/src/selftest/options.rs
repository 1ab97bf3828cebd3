//! Options of the self-test.

use std::path::PathBuf;
use std::time::Duration;

use crate::device::DeviceChoice;
use crate::power::PowerConfig;

/// Options of the self-test.
#[derive(Debug, Clone, PartialEq)]
pub struct SelftestOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Extent of the suite.
    pub extent: SelftestExtent,
    /// Time to spend on each shape and batch size, besides loading and warming up.
    pub budget: Duration,
    /// Time for all shapes; those not reached by then are skipped and reported as such. `None`: no limit.
    pub limit: Option<Duration>,
    /// The Python to measure torch with; `None` skips torch.
    pub python: Option<PathBuf>,
    /// Allowed energy sources.
    pub power: PowerConfig,
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
    /// The standard suite on the CPU, one second per shape, compared with the `python3` of the PATH.
    fn default() -> Self {
        Self {
            device: DeviceChoice::Cpu,
            extent: SelftestExtent::Standard,
            budget: Duration::from_secs(1),
            limit: None,
            python: Some("python3".into()),
            power: PowerConfig::default(),
        }
    }
}
