//! The setups that are tried for a load: how many layers stay, how large mini-batches are, and which mixture is cached.

use super::Machine;
use super::hardware::Sampled;
use super::setup::{Arena, Load, Mode, Setup, SetupError};
use kaskade_policy::hybrid_cache::BlockCounts;
use kaskade_policy::hybrid_cache::admission::Limits;
use kaskade_policy::hybrid_cache::allocation::{Memory, Split, allocate, split, split_of};
use kaskade_policy::hybrid_cache::blocks::{Capacity, Shares};
use kaskade_policy::hybrid_cache::cost::{CostError, Costs};

/// Tokens that one step prefills, at most: as many as keep a large device busy while a layer's weights come.
const PREFILL_TOKENS: usize = 16_384;
/// Mini-batches that they go in.
const PREFILL_PARTS: usize = 4;
/// Prompts that are computed may take one part in so many of the device.
const PREFILL_SHARE: u64 = 8;
/// Memory of a layer per token while it is computed, as a multiple of the hidden state: the state itself, normed, queries, keys, values,
/// the output of attention, and the feed-forward network's inner state, four times as long.
const HELD: u64 = 10;
/// Numbers of resident layers that are tried, evenly from none to as many as fit.
const RESIDENT: usize = 4;
/// Sizes of mini-batches that are tried, the largest that fit: smaller ones only read the weights more often.
const SIZES: usize = 4;

impl Machine<'_> {
    /// Every setup that is tried for this many requests at a time.
    pub(super) fn candidates(
        &self,
        load: &Load,
        mode: Mode,
        at_once: usize,
    ) -> Result<Vec<Setup>, SetupError> {
        let mut found = Vec::new();
        let mut sizes = 0;
        for mini_batch in mini_batches(mode, at_once) {
            let before = found.len();
            let fixed = self.arena(load, mode, at_once, mini_batch);
            let Some(free) = self.hardware.device_bytes.checked_sub(fixed.total()) else {
                continue;
            };
            let layers = self.shape.layers;
            let most = usize::try_from(free / self.shape.layer_bytes()).map_or(layers, |fit| fit.min(layers));
            let mut residents: Vec<usize> = (0..=RESIDENT).rev().map(|part| most * part / RESIDENT).collect();
            residents.dedup();
            for resident in residents {
                let mut arena = fixed;
                arena.resident += resident as u64 * self.shape.layer_bytes();
                let draft = Draft {
                    mode,
                    at_once,
                    mini_batch,
                    resident,
                    arena,
                };
                found.extend(self.with_mixtures(load, &draft)?);
            }
            sizes += usize::from(found.len() > before);
            if sizes == SIZES {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the device memory in use before layers stay and blocks are cached there.
    fn arena(&self, load: &Load, mode: Mode, at_once: usize, mini_batch: usize) -> Arena {
        let shape = self.shape;
        let (act, kv) = (shape.act_bytes(), shape.kv_bytes());
        let prompts = (at_once * load.prompt) as u64;
        let (most, part) = self.prefill_tokens(load);
        let (hidden, at_work) = match mode {
            Mode::NoMiniBatches => (prompts, prompts),
            Mode::Tokens => ((at_once * load.total_tokens()) as u64, part as u64),
            _ => (prompts.min(most as u64), prompts.min(part as u64)),
        };
        let block_tokens = (mini_batch * load.blocks(load.total_tokens()) * load.block_tokens) as u64;
        let blocks = match mode {
            Mode::Tokens | Mode::NoMiniBatches => 0,
            Mode::Kv => block_tokens * 2 * kv,
            // Of KV blocks two buffers, of ACT blocks two and what is made of them: no mixture takes more than the larger.
            _ => block_tokens * (2 * kv).max(2 * act + kv),
        };
        Arena {
            resident: shape.head_bytes(),
            weights: 2 * shape.layer_bytes(),
            blocks,
            working: hidden * act + at_work * HELD * act,
            cache: 0,
        }
    }

    /// Tokens that a step prefills, and that a mini-batch of it does; in any case a whole request's.
    fn prefill_tokens(&self, load: &Load) -> (usize, usize) {
        let token = (1 + HELD / PREFILL_PARTS as u64) * self.shape.act_bytes();
        let room = self.hardware.device_bytes / PREFILL_SHARE / token.max(1);
        let most = usize::try_from(room).map_or(PREFILL_TOKENS, |room| room.min(PREFILL_TOKENS));
        (
            most.max(load.total_tokens()),
            (most / PREFILL_PARTS).max(load.total_tokens()),
        )
    }

    fn with_mixtures(&self, load: &Load, draft: &Draft) -> Result<Vec<Setup>, SetupError> {
        let memory = self.memory(load, draft);
        let costs = self.costs(load, draft)?;
        let middle = draft.at_once * load.blocks(load.tokens_halfway());
        let splits = mixtures(draft.mode, middle, &memory, &costs);
        let finished = splits
            .into_iter()
            .filter_map(|split| self.finish(load, draft, split, memory, costs));
        Ok(finished.collect())
    }

    fn memory(&self, load: &Load, draft: &Draft) -> Memory {
        let (shape, hardware) = (self.shape, self.hardware);
        let tokens = (load.block_tokens * shape.layers) as u64;
        let weight_bytes = (shape.layers - draft.resident) as u64 * shape.layer_bytes();
        let host_bytes = match draft.mode {
            Mode::NoMiniBatches if weight_bytes <= hardware.host_bytes => weight_bytes,
            _ => hardware.host_bytes,
        };
        Memory {
            host_bytes,
            weight_bytes,
            device_bytes: hardware.device_bytes.saturating_sub(draft.arena.total()),
            kv_block_bytes: tokens * shape.kv_bytes(),
            act_block_bytes: tokens * shape.act_bytes(),
        }
    }

    fn costs(&self, load: &Load, draft: &Draft) -> Result<Costs, CostError> {
        let shape = self.shape;
        let streamed = shape.layers - draft.resident;
        let part = streamed as f64 / shape.layers as f64;
        let sampled = Sampled {
            block_tokens: load.block_tokens,
            requests: draft.at_once,
            mini_batch: draft.mini_batch,
            request_blocks: load.blocks(load.total_tokens()),
            weights_s: part * self.hardware.load_s(shape.layer_bytes() as f64, 1),
        };
        self.hardware.costs(shape, &sampled)
    }

    /// The setup by a mixture; `None` if requests at their longest do not fit, or the weights do not.
    fn finish(
        &self,
        load: &Load,
        draft: &Draft,
        split: Split,
        memory: Memory,
        costs: Costs,
    ) -> Option<Setup> {
        if memory.weight_bytes > self.hardware.host_bytes {
            return None;
        }
        let each = load.blocks(load.total_tokens());
        let shares = split.shares();
        let blocks = if draft.mode == Mode::Tokens {
            0
        } else {
            draft.at_once * each
        };
        let acts = (blocks as f64 * shares.act).round() as usize;
        let longest = split_of(acts, blocks, &memory, &costs)?;
        let capacity = roomy(&longest, draft.at_once, &memory);
        let mut arena = draft.arena;
        arena.cache = longest.device.act as u64 * memory.act_block_bytes
            + longest.device.kv as u64 * memory.kv_block_bytes;
        let promised = draft.mode == Mode::NoMiniBatches;
        let (prefill_tokens, mini_batch_tokens) = self.prefill_tokens(load);
        Some(Setup {
            mode: draft.mode,
            resident_layers: draft.resident,
            mini_batch: draft.mini_batch,
            block_tokens: load.block_tokens,
            costs,
            split,
            capacity,
            bounds: bounds(&shares, draft.mini_batch, each),
            limits: Limits {
                context: self.shape.context,
                requests: draft.at_once,
                prefill_tokens: if promised {
                    draft.at_once * load.total_tokens()
                } else {
                    prefill_tokens
                },
                blocks_at_once: promised.then_some(blocks),
            },
            mini_batch_tokens,
            arena,
            memory,
            step_s: f64::INFINITY,
            waves: 1,
        })
    }
}

/// Starting point of a setup.
struct Draft {
    mode: Mode,
    at_once: usize,
    mini_batch: usize,
    resident: usize,
    arena: Arena,
}

/// Sizes of mini-batches that are tried: all at a time, then powers of two, the largest first. Where nothing is cached there are only those of prompts.
fn mini_batches(mode: Mode, at_once: usize) -> Vec<usize> {
    if matches!(mode, Mode::NoMiniBatches | Mode::Tokens) {
        return vec![at_once];
    }
    let powers = (0..usize::BITS).map_while(|power| 1_usize.checked_shl(power));
    let mut sizes: Vec<usize> = powers.take_while(|size| *size < at_once).collect();
    sizes.push(at_once);
    sizes.reverse();
    sizes
}

fn mixtures(mode: Mode, blocks: usize, memory: &Memory, costs: &Costs) -> Vec<Split> {
    let of = |acts: usize| split_of(acts, blocks, memory, costs);
    let found = match mode {
        // The policy assumes a mean layer; if layers stay on the device, other mixtures may be better.
        Mode::Hybrid => vec![
            split(blocks, memory, costs),
            of(by_algorithm_1(blocks, memory, costs)),
            of(blocks / 4),
            of(blocks / 2),
            of(blocks * 3 / 4),
        ],
        Mode::Kv | Mode::NoMiniBatches => vec![of(0)],
        Mode::Act => vec![of(blocks)],
        Mode::Tokens => vec![split_of(0, 0, memory, costs)],
        Mode::Even => vec![of(blocks / 2)],
        Mode::Algorithm1 => vec![of(by_algorithm_1(blocks, memory, costs))],
    };
    found.into_iter().flatten().collect()
}

/// ACT blocks among `blocks`: those that the device holds, and of the others the share that Algorithm 1 gives the host.
fn by_algorithm_1(blocks: usize, memory: &Memory, costs: &Costs) -> usize {
    let on_device = memory.device_acts();
    let host = allocate(memory, on_device, costs).host();
    let held = on_device.min(blocks);
    let share = host.act as f64 / host.total().max(1) as f64;
    held + ((blocks - held) as f64 * share).round() as usize
}

/// Physical blocks for a mixture, and where the host has room one more for every request and kind in use: for ratios that do not come
/// out even, and for the block that a scheduler keeps free for each that runs.
fn roomy(longest: &Split, requests: usize, memory: &Memory) -> Capacity {
    let host = longest.host;
    let used = longest.device + host;
    let bytes = host.act as u64 * memory.act_block_bytes + host.kv as u64 * memory.kv_block_bytes;
    let pair = memory.act_block_bytes + memory.kv_block_bytes;
    let left = memory.host_blocks_bytes().saturating_sub(bytes) / pair.max(1);
    let spare = (requests + 1).min(usize::try_from(left).unwrap_or(usize::MAX));
    let extra = |used: usize| if used > 0 { spare } else { 0 };
    Capacity {
        device: longest.device,
        host: BlockCounts {
            act: host.act + extra(used.act),
            kv: host.kv + extra(used.kv),
        },
    }
}

/// Returns the most blocks that this many requests load at their longest; each is within a block of its ratio.
fn bounds(shares: &Shares, mini_batch: usize, blocks: usize) -> BlockCounts {
    let most = |share: f64| {
        let rounded = usize::from(share > 0.0 && share < 1.0);
        mini_batch * blocks.min((share * blocks as f64).floor() as usize + rounded)
    };
    BlockCounts {
        act: most(shares.act),
        kv: most(1.0 - shares.act),
    }
}
