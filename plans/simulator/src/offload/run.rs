//! Simulates a whole load, step by step: the engine's scheduler, block tables and packing decide, and [`simulate_step`] computes the times.

use serde::Serialize;
use thiserror::Error;

use super::Machine;
use super::hardware::Forward;
use super::pass::{LayerWork, StepTime, Weights, simulate_step};
use super::setup::{Load, Mode, Setup};
use kaskade_policy::hybrid_cache::admission::{Refused, Scheduler};
use kaskade_policy::hybrid_cache::blocks::{Block, BlockSpace, Kind, Place};
use kaskade_policy::hybrid_cache::minibatch::{Demand, in_order, pack};
use kaskade_policy::hybrid_cache::{BlockCounts, Traffic};

/// The results of a load.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct OffloadOutcome {
    /// Steps that computed prompts, all together.
    pub prefill: StepTime,
    /// Steps that generated one token for each request, all together.
    pub decode: StepTime,
    /// Number of those.
    pub decode_steps: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// Mini-batches of the last step.
    pub mini_batches: usize,
    /// Preemptions of requests.
    pub preempted: usize,
}

impl OffloadOutcome {
    /// Returns the time from the first prompt to the last token, seconds.
    pub fn seconds(&self) -> f64 {
        self.prefill.seconds + self.decode.seconds
    }

    /// Throughput as the paper defines it (§5.2): tokens generated over everything, prefill too.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds()
    }

    /// Temporal utilisation of the device (§5.1): the share of all time in which it computed.
    pub fn busy_share(&self) -> f64 {
        (self.prefill.busy_s + self.decode.busy_s) / self.seconds()
    }

    /// A mean step that generates, seconds.
    pub fn step_s(&self) -> f64 {
        self.decode.seconds / self.decode_steps.max(1) as f64
    }
}

/// A load cannot be completed. This does not happen with a setup for the same load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RunError {
    /// A request was refused on arrival.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// There is work, and no request can proceed.
    #[error("no request can proceed: {waiting} requests wait and {running} run")]
    Stalled {
        /// Requests that wait.
        waiting: usize,
        /// Requests that run.
        running: usize,
    },
}

/// A request's work in one layer of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Work {
    /// Blocks that the link brings.
    loaded: BlockCounts,
    /// ACT blocks that lie on the device.
    acts_on_device: usize,
    /// Work that the layer computes.
    forward: Forward,
    /// Bytes that new tokens leave in the host's memory.
    stored: u64,
}

impl Work {
    /// Returns the same work with the first tokens of the context computed again.
    fn with_rows(mut self, rows: usize) -> Self {
        self.forward.rows += rows;
        // They attend to each other; the new token attends to them too.
        self.forward.pairs += rows * (rows + 1) / 2 + rows;
        self.forward.read += rows;
        self
    }

    fn and(self, other: &Self) -> Self {
        Self {
            loaded: self.loaded + other.loaded,
            acts_on_device: self.acts_on_device + other.acts_on_device,
            forward: Forward {
                rows: self.forward.rows + other.forward.rows,
                pairs: self.forward.pairs + other.forward.pairs,
                read: self.forward.read + other.forward.read,
            },
            stored: self.stored + other.stored,
        }
    }
}

/// Lengths of an answer at which a mean step is walked, at most.
const LENGTHS: usize = 10;

impl Machine<'_> {
    /// Runs a load to its end: all prompts, then token after token.
    ///
    /// # Errors
    /// [`RunError`] where the setup was made for another load.
    pub fn run(&self, setup: &Setup, load: &Load) -> Result<OffloadOutcome, RunError> {
        let mut space = space(setup, load);
        let mut scheduler = Scheduler::new(setup.limits);
        for request in 0..load.requests as u64 {
            scheduler.submit(request, load.prompt, load.answer, &space)?;
        }
        let mut lengths = vec![load.prompt; load.requests];
        let mut steps = Steps::default();
        let mut outcome = OffloadOutcome::default();
        while !scheduler.is_idle() {
            let step = scheduler.step(&mut space);
            outcome.preempted += step.preempted.len();
            let prefill = !step.prefill.is_empty();
            let requests = if prefill { step.prefill } else { step.decode };
            if requests.is_empty() {
                let (waiting, running) = scheduler.counts();
                return Err(RunError::Stalled { waiting, running });
            }
            let works = requests.iter().map(|request| {
                let tokens = lengths.get(*request as usize).copied().unwrap_or_default();
                self.work(setup, space.table(*request), tokens, 0, prefill)
            });
            let (course, mini_batches) = steps.take(self, setup, works.collect());
            outcome.mini_batches = mini_batches;
            if prefill {
                outcome.prefill += course;
            } else {
                outcome.decode += course;
                outcome.decode_steps += 1;
            }
            outcome.tokens += requests.len();
            for request in requests {
                if let Some(length) = lengths.get_mut(request as usize) {
                    *length += 1;
                    if *length == load.total_tokens() {
                        scheduler.end(request, &mut space);
                    } else {
                        scheduler.extend(request);
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Returns the time of a mean generating step, over the answers of as many requests as are set up for at a time, seconds.
    ///
    /// Tables grow as they do in a run, and steps that load equally many blocks are walked once, so this equals the mean of a run; for very
    /// long answers only some lengths are walked.
    pub(super) fn mean_step_s(&self, setup: &Setup, load: &Load) -> f64 {
        let requests = setup.limits.requests as u64;
        let mut space = space(setup, load);
        let lengths: Vec<usize> = (load.prompt + 1..load.total_tokens().max(load.prompt + 2)).collect();
        let blocks = |tokens: usize| tokens.div_ceil(load.block_tokens);
        // What is loaded, and what there is: a token whose block is new is not loaded yet.
        let key = |tokens: usize| (blocks(tokens - 1), blocks(tokens));
        let alike: Vec<&[usize]> = lengths.chunk_by(|a, b| key(*a) == key(*b)).collect();
        let mut seconds = 0.0;
        for part in alike.chunks(alike.len().div_ceil(LENGTHS).max(1)) {
            let steps: usize = part.iter().map(|same| same.len()).sum();
            let most = part.iter().map(|same| same.len()).max();
            let mut walked = None;
            for same in part {
                let tokens = same.last().copied().unwrap_or(load.prompt);
                // A setup's capacity holds its requests at any length.
                for request in 0..requests {
                    let _ = space.reserve(request, tokens);
                }
                if walked.is_none() && Some(same.len()) == most {
                    let work = |request| self.work(setup, space.table(request), tokens, 0, false);
                    let works: Vec<Work> = (0..requests).map(work).collect();
                    walked = Some(self.walk_works(setup, &works, true).0.seconds);
                }
            }
            seconds += steps as f64 * walked.unwrap_or_default();
        }
        seconds / lengths.len() as f64
    }

    /// One step that generates for `requests` requests of `tokens` tokens each.
    pub fn step(&self, setup: &Setup, load: &Load, tokens: usize, requests: usize) -> StepTime {
        self.step_with_recomputation(setup, load, tokens, requests, 0.0)
    }

    /// Simulates a step in which the first blocks of every request, this share in [0, 1], are not cached: their tokens go through all
    /// layers again (token recomputation, §3.2, Figure 4).
    pub fn step_with_recomputation(
        &self,
        setup: &Setup,
        load: &Load,
        tokens: usize,
        requests: usize,
        share: f64,
    ) -> StepTime {
        let mut space = space(setup, load);
        let works = (0..requests as u64).map(|request| {
            // A setup's capacity holds its requests at any length; a request that exceeds it gets no blocks for the rest.
            let _ = space.reserve(request, tokens);
            let table = space.table(request);
            let cached = tokens.saturating_sub(1).div_ceil(setup.block_tokens);
            let again = (cached.min(table.len()) as f64 * share.clamp(0.0, 1.0)).round() as usize;
            let work = self.work(setup, table, tokens, again, false);
            work.with_rows(again * setup.block_tokens)
        });
        let works: Vec<Work> = works.collect();
        self.walk_works(setup, &works, true).0
    }

    /// Returns a request's work: its table's blocks except the first `again`, whole, and the rows of its new tokens.
    fn work(&self, setup: &Setup, table: &[Block], tokens: usize, again: usize, prefill: bool) -> Work {
        let all_again = prefill || setup.mode == Mode::Tokens;
        let block_tokens = setup.block_tokens;
        let cached = if all_again { 0 } else { tokens.saturating_sub(1) };
        let held = table
            .get(again..cached.div_ceil(block_tokens))
            .unwrap_or_default();
        let count = |kind, place| {
            let of = |block: &&Block| (block.kind, block.place) == (kind, place);
            held.iter().filter(of).count()
        };
        // Whole blocks, so that steps between two new blocks are alike.
        let read = held.len() * block_tokens;
        let rows = tokens - cached;
        let stored = (cached..tokens).filter_map(|token| table.get(token / block_tokens));
        Work {
            loaded: BlockCounts {
                act: count(Kind::Act, Place::Host),
                kv: count(Kind::Kv, Place::Host),
            },
            acts_on_device: count(Kind::Act, Place::Device),
            forward: Forward {
                rows,
                pairs: rows * read + rows * (rows + 1) / 2,
                read: read + rows,
            },
            stored: stored.map(|block| self.entry_bytes(*block)).sum(),
        }
    }

    /// Returns the bytes that the link carries for a token's entry in a layer.
    fn entry_bytes(&self, block: Block) -> u64 {
        match (block.place, block.kind) {
            (Place::Device, _) => 0,
            (Place::Host, Kind::Act) => self.shape.act_bytes(),
            (Place::Host, Kind::Kv) => self.shape.kv_bytes(),
        }
    }

    fn walk_works(&self, setup: &Setup, works: &[Work], ahead: bool) -> (StepTime, usize) {
        let groups = groups(setup, works);
        let of = |group: &Vec<usize>| {
            let works = group.iter().filter_map(|index| works.get(*index));
            self.price(setup, &works.fold(Work::default(), Work::and))
        };
        let batches: Vec<LayerWork> = groups.iter().map(of).collect();
        let weights = Weights {
            layers: self.shape.layers,
            resident: setup.resident_layers,
            bytes: self.shape.layer_bytes(),
            bytes_per_s: self.hardware.link_bytes_per_s,
            transfer_s: self.hardware.transfer_s,
        };
        let mut course = simulate_step(&weights, &batches, ahead);
        let head_s = self.hardware.head_s(self.shape, works.len());
        course.seconds += head_s;
        course.busy_s += head_s;
        (course, batches.len())
    }

    fn price(&self, setup: &Setup, work: &Work) -> LayerWork {
        let block_tokens = setup.block_tokens;
        let acts = (work.loaded.act + work.acts_on_device) * block_tokens;
        let bytes = |blocks: usize, each: u64| (blocks * block_tokens) as u64 * each;
        let act = bytes(work.loaded.act, self.shape.act_bytes());
        let kv = bytes(work.loaded.kv, self.shape.kv_bytes());
        let transfers = work.loaded.total();
        LayerWork {
            compute_s: self.hardware.kv_gen_s(self.shape, acts)
                + self.hardware.forward_s(self.shape, work.forward),
            load_s: (transfers > 0).then(|| self.hardware.load_s((act + kv) as f64, transfers)),
            store_s: work.stored as f64 / self.hardware.link_bytes_per_s,
            traffic: Traffic {
                weights: 0,
                kv,
                act,
                stored: work.stored,
            },
        }
    }
}

/// Steps one after the other. Those whose requests need the same are walked once.
#[derive(Debug, Default)]
struct Steps {
    last: Option<(Vec<Work>, StepTime, usize)>,
    begun: bool,
}

impl Steps {
    fn take(&mut self, machine: &Machine<'_>, setup: &Setup, works: Vec<Work>) -> (StepTime, usize) {
        if let Some((same, course, mini_batches)) = &self.last
            && *same == works
        {
            return (*course, *mini_batches);
        }
        let (course, mini_batches) = machine.walk_works(setup, &works, self.begun);
        // The first step loads the first layer's weights itself, and no other is like it.
        self.last = self.begun.then_some((works, course, mini_batches));
        self.begun = true;
        (course, mini_batches)
    }
}

fn space(setup: &Setup, load: &Load) -> BlockSpace {
    match setup.mode {
        Mode::Tokens => BlockSpace::without_cache(),
        _ => BlockSpace::new(load.block_tokens, setup.capacity, setup.split.shares()),
    }
}

/// Mini-batches as the engine forms them: by packing where blocks are loaded, in order where only prompts are computed.
fn groups(setup: &Setup, works: &[Work]) -> Vec<Vec<usize>> {
    if setup.mode == Mode::NoMiniBatches {
        return vec![(0..works.len()).collect()];
    }
    if works.iter().all(|work| work.forward.read == work.forward.rows) {
        let rows: Vec<usize> = works.iter().map(|work| work.forward.rows).collect();
        return in_order(&rows, setup.mini_batch_tokens, usize::MAX);
    }
    let demand = |work: &Work| Demand {
        loaded: work.loaded,
        on_device: work.acts_on_device,
    };
    let demands: Vec<Demand> = works.iter().map(demand).collect();
    pack(&demands, setup.bounds, setup.mini_batch, &setup.costs)
}
