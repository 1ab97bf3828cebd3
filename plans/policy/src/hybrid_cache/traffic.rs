//! Bytes between host and device.

use serde::Serialize;

/// Bytes that the link between host and device carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Traffic {
    /// Weights to the device.
    pub weights: u64,
    /// KV blocks to the device.
    pub kv: u64,
    /// ACT blocks to the device.
    pub act: u64,
    /// Entries of new tokens, back to host memory.
    pub stored: u64,
}

impl Traffic {
    /// Returns the bytes to the device.
    pub fn loaded(&self) -> u64 {
        self.weights + self.cache()
    }

    /// Bytes of blocks of either kind to the device, which Figure 13 compares.
    pub fn cache(&self) -> u64 {
        self.kv + self.act
    }

    /// The traffic of `times` such transfers.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self {
            weights: self.weights * times,
            kv: self.kv * times,
            act: self.act * times,
            stored: self.stored * times,
        }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.weights += other.weights;
        self.kv += other.kv;
        self.act += other.act;
        self.stored += other.stored;
    }
}
