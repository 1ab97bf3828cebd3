//! Speed of transfers to a device and back, by size: the report's types.

use serde::Serialize;

/// Transfers of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Transfer {
    /// Direction and host memory.
    pub direction: Direction,
    /// Bytes per transfer.
    pub bytes: usize,
    /// Median time, seconds.
    pub median_s: f64,
    /// Bytes over the median time.
    pub bytes_per_s: f64,
    /// Whether every byte was returned unchanged.
    pub intact: bool,
}

/// Direction and host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Ordinary host memory to the device.
    HostToDevicePageable,
    /// Host memory prepared by burn (`Device::staging`) to the device; the preparation is not timed.
    HostToDeviceStaged,
    /// The device to host memory.
    DeviceToHost,
}
