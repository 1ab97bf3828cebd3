//! Report types for transfer speed between host and device by size.

use serde::Serialize;

/// Result for transfers of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Transfer {
    /// Direction, and kind of host memory.
    pub direction: Direction,
    /// Bytes per transfer.
    pub bytes: usize,
    /// Median duration, seconds.
    pub median_s: f64,
    /// Bandwidth at the median duration, bytes per second.
    pub bytes_per_s: f64,
    /// Whether all bytes were returned unchanged.
    pub intact: bool,
}

/// Direction, and kind of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Pageable host memory to the device.
    HostToDevicePageable,
    /// Host memory staged by burn (`Device::staging`) to the device; staging is not timed.
    HostToDeviceStaged,
    /// The device to host memory.
    DeviceToHost,
}
