//! The policy of the hybrid cache (HybridServe, KAIST): which tokens of a language model are kept as keys and values and
//! which as activations, where they are stored, and which requests run when.
//!
//! A decoder's cache consists of blocks of some tokens each, for all layers. A KV block holds keys and values; an ACT block holds the
//! inputs of every layer's projections, from which keys and values are computed again when they are wanted. An ACT block is mostly half
//! as large, so it halves what the link carries and gives the device work instead. The best mixture keeps link and device
//! busy equally long.
//!
//! | module | holds |
//! |---|---|
//! | [`cost`] | how long loading and computing take, by lines through samples |
//! | [`allocation`] | Algorithm 1, and the best mixture for a stated load |
//! | [`blocks`] | the block space: a table per request, the ratio kept block by block |
//! | [`learning`] | costs as steps correct them, and mixtures planned again |
//! | [`minibatch`] | packing requests into mini-batches |
//! | [`traffic`] | bytes between host and device |
//! | [`admission`] | which requests are admitted, run or preempted |

pub mod admission;
pub mod allocation;
pub mod blocks;
pub mod cost;
pub mod learning;
pub mod minibatch;
pub mod traffic;

pub use admission::{Limits, Refused, Scheduler, Step};
pub use allocation::{Allocation, Memory, Split, allocate, split, split_at, split_of, split_sure};
pub use blocks::{Block, BlockCopy, BlockSpace, Capacity, Full, Kind, Place, Shares};
pub use cost::{CostError, Costs, Sample, fit};
pub use learning::{Planned, Policy, Prediction, StepTimes};
pub use minibatch::{Demand, in_order, pack};
pub use traffic::Traffic;

/// Numbers of blocks by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct BlockCounts {
    /// Blocks of activations.
    pub act: usize,
    /// Blocks of keys and values.
    pub kv: usize,
}

impl BlockCounts {
    /// Blocks of either kind.
    pub fn total(self) -> usize {
        self.act + self.kv
    }

    /// Returns whether there is no more of either kind than in `bounds`.
    pub fn within(self, bounds: Self) -> bool {
        self.act <= bounds.act && self.kv <= bounds.kv
    }
}

impl std::ops::Add for BlockCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            act: self.act + other.act,
            kv: self.kv + other.kv,
        }
    }
}
