//! Times of a device and its link for a decoder's work, from a handful of stated figures.
//!
//! Everything that the device computes is the longer of two times: of its operations, and of the bytes that it moves in its own
//! memory (a roofline). That is crude, and it is the same for every mode, which is what a comparison needs.

use serde::Serialize;

use super::shape::Shape;
use kaskade_policy::hybrid_cache::cost::{CostError, Costs, Sample, fit};

/// A device, its link and its host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hardware {
    /// Name of the hardware.
    pub name: String,
    /// Operations per second that large products reach.
    pub flops: f64,
    /// Bytes per second that the device reads and writes in its own memory.
    pub memory_bytes_per_s: f64,
    /// The device's memory for everything that an engine keeps there, bytes.
    pub device_bytes: u64,
    /// The host's memory for weights and blocks, bytes.
    pub host_bytes: u64,
    /// Bytes per second that the link reaches in each direction; both go side by side.
    pub link_bytes_per_s: f64,
    /// Seconds that a transfer takes beside its bytes. A block of one layer is a transfer.
    pub transfer_s: f64,
    /// Seconds to launch a kernel.
    pub launch_s: f64,
}

/// Work of a mini-batch in one layer, without KV Gen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forward {
    /// Tokens that go through the layer.
    pub rows: usize,
    /// Pairs of such a token and one that it attends to.
    pub pairs: usize,
    /// Tokens whose keys and values are read from the device's memory.
    pub read: usize,
}

/// Kernels of a layer: norms, projections, attention, feed-forward network, sums.
const FORWARD_KERNELS: f64 = 12.0;
/// Kernels of KV Gen: the projection, and keys and values to their places.
const KV_GEN_KERNELS: f64 = 2.0;

impl Hardware {
    /// `T_kv_gen`: keys and values of this many tokens out of their activations, seconds; 0 for none.
    pub fn kv_gen_s(&self, shape: &Shape, tokens: usize) -> f64 {
        if tokens == 0 {
            return 0.0;
        }
        let moved = tokens as f64 * (shape.act_bytes() + shape.kv_bytes()) as f64;
        KV_GEN_KERNELS * self.launch_s + self.product_s(shape, tokens, shape.kv_gen_weights(), moved)
    }

    /// A layer for a mini-batch, seconds; 0 for one without tokens.
    pub fn forward_s(&self, shape: &Shape, forward: Forward) -> f64 {
        if forward.rows == 0 {
            return 0.0;
        }
        let moved = 4.0 * forward.rows as f64 * shape.act_bytes() as f64;
        let attended = self.longer_s(
            4.0 * forward.pairs as f64 * shape.width as f64,
            forward.read as f64 * shape.kv_bytes() as f64,
        );
        FORWARD_KERNELS * self.launch_s
            + self.product_s(shape, forward.rows, shape.layer_weights(), moved)
            + attended
    }

    /// The head for this many requests, seconds.
    pub fn head_s(&self, shape: &Shape, requests: usize) -> f64 {
        let weights = (shape.vocabulary * shape.width) as u64;
        self.launch_s + self.product_s(shape, requests, weights, 0.0)
    }

    /// Returns the time of this many bytes in this many transfers over the link, seconds.
    pub fn load_s(&self, bytes: f64, transfers: usize) -> f64 {
        bytes / self.link_bytes_per_s + transfers as f64 * self.transfer_s
    }

    fn product_s(&self, shape: &Shape, rows: usize, weights: u64, moved: f64) -> f64 {
        let operations = 2.0 * rows as f64 * weights as f64;
        self.longer_s(operations, weights as f64 * shape.element_bytes as f64 + moved)
    }

    fn longer_s(&self, operations: f64, bytes: f64) -> f64 {
        (operations / self.flops).max(bytes / self.memory_bytes_per_s)
    }

    /// Samples what a layer costs and lays lines through the samples, as an engine does when it starts (§4.3, Figure 11).
    ///
    /// # Errors
    /// [`CostError`] where the figures make no line, as infinite or negative ones do.
    pub fn costs(&self, shape: &Shape, sampled: &Sampled) -> Result<Costs, CostError> {
        let bytes_of = |bytes: u64| bytes as f64 * sampled.block_tokens as f64;
        let loading = |bytes: f64| fit(&sampled.line(|blocks| self.load_s(bytes * blocks as f64, blocks)));
        let kv_gen = sampled.line(|blocks| self.kv_gen_s(shape, blocks * sampled.block_tokens));
        let batches = sampled.requests.div_ceil(sampled.mini_batch.max(1));
        let forward = [1, 2, 4].map(|part| {
            let blocks = sampled.request_blocks.max(4) * part / 4;
            let read = sampled.mini_batch * blocks * sampled.block_tokens;
            let one = Forward {
                rows: sampled.mini_batch,
                pairs: read,
                read,
            };
            Sample {
                blocks: (sampled.requests * blocks) as f64,
                seconds: batches as f64 * self.forward_s(shape, one),
            }
        });
        Ok(Costs {
            load_weights_s: sampled.weights_s,
            kv_gen: fit(&kv_gen)?,
            load_kv: loading(bytes_of(shape.kv_bytes()))?,
            load_act: loading(bytes_of(shape.act_bytes()))?,
            forward: fit(&forward)?,
            head_s: self.head_s(shape, sampled.requests),
        })
    }
}

/// Load that costs are sampled for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// Tokens in a block.
    pub block_tokens: usize,
    /// Requests that decode together.
    pub requests: usize,
    /// Requests of a mini-batch.
    pub mini_batch: usize,
    /// Blocks of a request at its longest.
    pub request_blocks: usize,
    /// `T_load_w`: the mean layer's weights over the link, seconds.
    pub weights_s: f64,
}

impl Sampled {
    /// Eight sizes up to what a mini-batch holds.
    pub fn sizes(&self) -> [usize; 8] {
        let most = (self.mini_batch * self.request_blocks).max(8);
        [1, 2, 3, 4, 5, 6, 7, 8].map(|part| most * part / 8)
    }

    fn line(&self, seconds: impl Fn(usize) -> f64) -> [Sample; 8] {
        self.sizes().map(|blocks| Sample {
            blocks: blocks as f64,
            seconds: seconds(blocks),
        })
    }
}
