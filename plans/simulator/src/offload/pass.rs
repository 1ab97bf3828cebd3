//! The course of one step: link and device side by side, layer by layer and mini-batch by mini-batch (§4.2.2, Figure 8).
//!
//! The order is the engine's. The link carries a mini-batch's blocks, then that mini-batch's part of the next layer's weights; two
//! buffers there are for blocks and two for weights, and a transfer begins when the link and a buffer of its kind are free. The
//! device computes a mini-batch when its blocks and the layer's weights have come. The cache entries of new tokens go back by
//! the link's other direction. Every event depends only on earlier ones, so one walk through the order finds all times.

use std::collections::VecDeque;

use kaskade_policy::hybrid_cache::Traffic;
use serde::Serialize;

/// Buffers of each kind.
const BUFFERS: usize = 2;

/// A mini-batch's work in one layer; it is the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LayerWork {
    /// Compute time of the device, KV Gen included, seconds.
    pub compute_s: f64,
    /// Time of its blocks on the link, seconds; `None`: none are loaded and no buffer is needed.
    pub load_s: Option<f64>,
    /// Time of the transfer back to the host, seconds.
    pub store_s: f64,
    /// Bytes of blocks and entries; `weights` is 0.
    pub traffic: Traffic,
}

/// The weights of the layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Number of layers.
    pub layers: usize,
    /// Number of layers that stay on the device: the last ones.
    pub resident: usize,
    /// Bytes of one layer.
    pub bytes: u64,
    /// Bytes per second of the link.
    pub bytes_per_s: f64,
    /// Seconds that a transfer takes beside its bytes.
    pub transfer_s: f64,
}

impl Weights {
    fn streamed(&self, layer: usize) -> bool {
        layer + self.resident < self.layers
    }

    /// Bytes of part `part` of `of` of a layer's weights, cut as the engine cuts them.
    fn part(&self, part: usize, of: usize) -> u64 {
        let until = |part: usize| self.bytes * part as u64 / of.max(1) as u64;
        until(part + 1) - until(part)
    }

    fn seconds(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_s + self.transfer_s
    }
}

/// The time of a step, and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StepTime {
    /// Time from the start until everything is computed and transferred, seconds.
    pub seconds: f64,
    /// The device computed, seconds.
    pub busy_s: f64,
    /// The link carried something to the device, seconds.
    pub link_s: f64,
    /// Traffic of the link.
    pub traffic: Traffic,
}

impl std::ops::AddAssign for StepTime {
    fn add_assign(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.busy_s += other.busy_s;
        self.link_s += other.link_s;
        self.traffic += other.traffic;
    }
}

/// Walks a step of these mini-batches through all layers. `ahead`: the first layer's weights came with the step before.
pub fn simulate_step(weights: &Weights, batches: &[LayerWork], ahead: bool) -> StepTime {
    let mut clocks = Clocks::default();
    let ahead = ahead && weights.streamed(0);
    if ahead {
        clocks.weights.push_back(None);
    } else if weights.streamed(0) && !batches.is_empty() {
        clocks.load_weights(weights, 0, 1);
    }
    for layer in 0..weights.layers {
        let next = (layer + 1) % weights.layers;
        let ready = clocks.whole_s;
        for (part, batch) in batches.iter().enumerate() {
            clocks.batch(batch, if weights.streamed(layer) { ready } else { 0.0 });
            if weights.streamed(next) {
                clocks.load_weights(weights, part, batches.len());
            }
        }
        if weights.streamed(layer) {
            clocks.release_weights();
        }
    }
    let per_layer = batches.iter().fold(Traffic::default(), |mut sum, batch| {
        sum += batch.traffic;
        sum
    });
    let mut traffic = per_layer.times(weights.layers as u64);
    traffic.weights = clocks.weight_bytes;
    StepTime {
        seconds: clocks.link_s.max(clocks.device_s).max(clocks.back_s),
        busy_s: clocks.busy_s,
        link_s: clocks.carried_s,
        traffic,
    }
}

/// The times at which each side and each buffer becomes free.
#[derive(Debug, Default)]
struct Clocks {
    link_s: f64,
    device_s: f64,
    back_s: f64,
    busy_s: f64,
    carried_s: f64,
    weight_bytes: u64,
    /// When the last streamed layer was complete.
    whole_s: f64,
    /// When the blocks' buffers in use are free again, the oldest first.
    blocks: VecDeque<f64>,
    /// Times of the loaded weights; absent as long as their layer is not computed.
    weights: VecDeque<Option<f64>>,
}

impl Clocks {
    fn carry(&mut self, from_s: f64, seconds: f64) {
        self.link_s = self.link_s.max(from_s) + seconds;
        self.carried_s += seconds;
    }

    fn batch(&mut self, batch: &LayerWork, weights_s: f64) {
        let mut ready = weights_s;
        if let Some(load_s) = batch.load_s {
            let free = if self.blocks.len() < BUFFERS {
                0.0
            } else {
                self.blocks.pop_front().unwrap_or_default()
            };
            self.carry(free, load_s);
            ready = ready.max(self.link_s);
        }
        self.device_s = self.device_s.max(ready) + batch.compute_s;
        self.busy_s += batch.compute_s;
        if batch.load_s.is_some() {
            self.blocks.push_back(self.device_s);
        }
        if batch.store_s > 0.0 {
            self.back_s = self.back_s.max(self.device_s) + batch.store_s;
        }
    }

    /// A part of a layer's weights; the first waits for a buffer, the last completes the layer.
    fn load_weights(&mut self, weights: &Weights, part: usize, of: usize) {
        let mut free = 0.0;
        if part == 0 {
            if self.weights.len() >= BUFFERS {
                // The older buffer's layer has been computed: there are no more than this one and the next.
                free = self.weights.pop_front().flatten().unwrap_or_default();
            }
            self.weights.push_back(None);
        }
        let bytes = weights.part(part, of);
        self.carry(free, weights.seconds(bytes));
        self.weight_bytes += bytes;
        if part + 1 == of {
            self.whole_s = self.link_s;
        }
    }

    fn release_weights(&mut self) {
        if let Some(oldest) = self.weights.iter_mut().find(|free| free.is_none()) {
            *oldest = Some(self.device_s);
        }
    }
}
