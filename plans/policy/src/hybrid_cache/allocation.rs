//! How much memory goes to KV blocks and how much to ACT blocks.
//!
//! [`allocate`] is the paper's Algorithm 1, which fills the host's memory once, when the engine starts. It assumes a full
//! memory and a device that computes nothing but `T_kv_gen`. [`split`] answers the same question for a stated load: it
//! searches the mixture whose step is shortest, counts everything that the device computes and the link carries, and leaves ACT
//! out altogether where the link is fast. That is what keeps the hybrid from ever losing to one of its ends.

use super::BlockCounts;
use super::blocks::Shares;
use super::cost::{self, Costs};

/// The memory that blocks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// `M_Host`: capacity of the host, bytes.
    pub host_bytes: u64,
    /// `S_weight`: all weights that lie in the host's memory, bytes.
    pub weight_bytes: u64,
    /// Device memory for blocks, bytes.
    pub device_bytes: u64,
    /// `S_KV`: a KV block, all layers, bytes.
    pub kv_block_bytes: u64,
    /// `S_ACT`: an ACT block, all layers, bytes.
    pub act_block_bytes: u64,
}

impl Memory {
    /// ACT blocks that the device holds if it holds nothing else: `#ACT_GPU`.
    pub fn device_acts(&self) -> usize {
        whole(self.device_bytes, self.act_block_bytes)
    }

    /// Returns the host's memory beside the weights, bytes.
    pub fn host_blocks_bytes(&self) -> u64 {
        self.host_bytes.saturating_sub(self.weight_bytes)
    }
}

/// Result of Algorithm 1, all in the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allocation {
    /// Step 1: blocks that make up for the difference between loading weights and the device's own ACT blocks.
    pub initial: BlockCounts,
    /// Step 2: blocks that fill the rest in balance.
    pub remaining: BlockCounts,
}

impl Allocation {
    /// `#ACT_Host` and `#KV_Host`.
    pub fn host(&self) -> BlockCounts {
        self.initial + self.remaining
    }
}

/// Algorithm 1 with `acts_on_device` ACT blocks on the device (`#ACT_GPU`).
///
/// Fractions of blocks are rounded down, so what it gives always fits.
pub fn allocate(memory: &Memory, acts_on_device: usize, costs: &Costs) -> Allocation {
    let free = memory.host_blocks_bytes();
    let initial = initial(memory, acts_on_device, costs);
    let left = free
        .saturating_sub(initial.act as u64 * memory.act_block_bytes)
        .saturating_sub(initial.kv as u64 * memory.kv_block_bytes);
    Allocation {
        initial,
        remaining: remaining(memory, left, costs),
    }
}

/// Lines 10-18: what removes the idle time between weights and the device's ACT blocks.
fn initial(memory: &Memory, acts_on_device: usize, costs: &Costs) -> BlockCounts {
    let free = memory.host_blocks_bytes();
    let at_most = |blocks: f64, bytes: u64| whole(free, bytes).min(blocks as usize);
    let budget = costs.load_weights_s - cost::seconds(&costs.kv_gen, acts_on_device);
    if budget >= 0.0 {
        let act = at_most(cost::blocks_in(&costs.kv_gen, budget), memory.act_block_bytes);
        BlockCounts { act, kv: 0 }
    } else {
        let kv = at_most(cost::blocks_in(&costs.load_kv, -budget), memory.kv_block_bytes);
        BlockCounts { act: 0, kv }
    }
}

/// Lines 20-27: `M = S_ACT a + S_KV k` and `T_kv_gen(a) = T_load_kv(k)`.
fn remaining(memory: &Memory, bytes: u64, costs: &Costs) -> BlockCounts {
    let (act_bytes, kv_bytes) = (memory.act_block_bytes as f64, memory.kv_block_bytes as f64);
    let (compute, load) = (&costs.kv_gen, &costs.load_kv);
    let act = if load.slope > 0.0 {
        let level = (compute.intercept - load.intercept) / load.slope;
        (bytes as f64 - kv_bytes * level) / (act_bytes + kv_bytes * compute.slope / load.slope)
    } else {
        0.0
    };
    let act = whole(bytes, memory.act_block_bytes).min(act.max(0.0) as usize);
    let left = bytes - act as u64 * memory.act_block_bytes;
    BlockCounts {
        act,
        kv: whole(left, memory.kv_block_bytes),
    }
}

/// The best mixture for a load, and how long a step's layer takes by it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Blocks on the device.
    pub device: BlockCounts,
    /// Blocks in the host's memory.
    pub host: BlockCounts,
    /// Compute time of the device per layer of a step, seconds.
    pub compute_s: f64,
    /// Transfer time of the link per layer of a step, seconds.
    pub load_s: f64,
}

impl Split {
    /// A layer's time: the device and the link work side by side.
    pub(crate) fn layer_s(&self) -> f64 {
        self.compute_s.max(self.load_s)
    }

    /// A decoding step through `layers` layers of `mini_batches` mini-batches each, by the costs that the split was timed with, seconds: the
    /// longer of both sides all along, once what the other side does for a mini-batch, before the first or behind the last, and the head.
    pub fn step_s(&self, costs: &Costs, layers: usize, mini_batches: usize) -> f64 {
        let layers_s = layers as f64 * self.layer_s();
        layers_s + self.compute_s.min(self.load_s) / mini_batches.max(1) as f64 + costs.head_s
    }

    /// Returns the shares that every request keeps to (equation 11).
    pub fn shares(&self) -> Shares {
        let share = |part: usize, whole: usize| {
            if whole == 0 {
                0.0
            } else {
                part as f64 / whole as f64
            }
        };
        let all = self.device + self.host;
        Shares {
            act: share(all.act, all.total()),
            act_on_device: share(self.device.act, all.act),
            kv_on_device: share(self.device.kv, all.kv),
        }
    }
}

/// Returns the mixture of `blocks` blocks whose layer is shortest; of several, the one with the fewest ACT blocks.
///
/// The placement of ACT blocks does not matter, because a byte on the device saves the link a byte whatever it holds. The device therefore
/// takes ACT blocks first and KV blocks where room is left. `None` if no mixture fits the memory.
pub fn split(blocks: usize, memory: &Memory, costs: &Costs) -> Option<Split> {
    split_among(0..=blocks, blocks, memory, costs)
}

/// Returns the split with a fixed number of ACT blocks: the ends of the scale, and ablations.
pub fn split_of(acts: usize, blocks: usize, memory: &Memory, costs: &Costs) -> Option<Split> {
    split_among(acts..=acts, blocks, memory, costs)
}

/// An end of the scale is taken if a mixture promises to be faster by no more than this: less than sampled costs are sure of.
const MARGIN: f64 = 1.07;

/// The best mixture, if it is surely better than keys and values only and activations only; else the better of these two. `None` if
/// nothing fits the memory.
pub fn split_sure(blocks: usize, memory: &Memory, costs: &Costs) -> Option<Split> {
    let best = split(blocks, memory, costs)?;
    let ends = [0, blocks].map(|acts| split_of(acts, blocks, memory, costs));
    let ends = ends.into_iter().flatten();
    let end = ends.min_by(|a, b| a.layer_s().total_cmp(&b.layer_s()));
    Some(
        end.filter(|end| end.layer_s() <= MARGIN * best.layer_s())
            .unwrap_or(best),
    )
}

fn split_among(
    acts: std::ops::RangeInclusive<usize>,
    blocks: usize,
    memory: &Memory,
    costs: &Costs,
) -> Option<Split> {
    acts.filter_map(|act| placed(act.min(blocks), blocks, memory, costs))
        .min_by(|a, b| a.layer_s().total_cmp(&b.layer_s()))
}

fn placed(act: usize, blocks: usize, memory: &Memory, costs: &Costs) -> Option<Split> {
    let kv = blocks - act;
    let device_act = act.min(memory.device_acts());
    let left = memory.device_bytes - device_act as u64 * memory.act_block_bytes;
    let device = BlockCounts {
        act: device_act,
        kv: kv.min(whole(left, memory.kv_block_bytes)),
    };
    let host = BlockCounts {
        act: act - device.act,
        kv: kv - device.kv,
    };
    let bytes = host.act as u64 * memory.act_block_bytes + host.kv as u64 * memory.kv_block_bytes;
    (bytes <= memory.host_blocks_bytes()).then(|| split_at(device, host, costs))
}

/// Returns the times of a layer with these blocks on the device and these in the host's memory.
pub fn split_at(device: BlockCounts, host: BlockCounts, costs: &Costs) -> Split {
    let all = device + host;
    Split {
        device,
        host,
        compute_s: cost::seconds(&costs.forward, all.total()) + cost::seconds(&costs.kv_gen, all.act),
        load_s: costs.load_weights_s
            + cost::seconds(&costs.load_kv, host.kv)
            + cost::seconds(&costs.load_act, host.act),
    }
}

/// Returns how many pieces of `piece` bytes fit.
fn whole(bytes: u64, piece: u64) -> usize {
    bytes
        .checked_div(piece)
        .map_or(0, |pieces| usize::try_from(pieces).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests;
