//! Devices that plans may use.

/// A device that may host replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// The worker it belongs to.
    pub worker: String,
    /// Name of the device on the worker: `cpu`, `cuda:0`, ...
    pub device: String,
    /// Memory for replicas, bytes.
    pub memory_bytes: u64,
    /// Speed relative to the device that was profiled.
    pub speed: f64,
}

impl DeviceSpec {
    /// A number of equal devices, one per worker: `w0`, `w1`, ...
    pub fn fleet(count: usize, memory_bytes: u64) -> Vec<Self> {
        let device = |index| Self {
            worker: format!("w{index}"),
            device: "cuda:0".to_owned(),
            memory_bytes,
            speed: 1.0,
        };
        (0..count).map(device).collect()
    }
}
