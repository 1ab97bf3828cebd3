//! A pass of mini-batches through all layers, while the copying thread brings what comes next.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use kaskade_plans::hybrid_cache::{Block, BlockSpace, Kind, Place};

use super::cache::{DeviceCache, HostCache, Piece, store};
use super::layer::{Fresh, Layer};
use super::link::Link;
use super::math::{Math, Span};
use super::model::Spec;
use super::stream::{Buffer, Buffers, Job, Loaded, Staged, Traffic, copy};
use super::{EngineError, Home};

/// Buffers of each kind.
const BUFFERS: usize = 2;

/// A request's part in a pass.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) request: u64,
    /// Tokens whose keys and values are in the cache.
    pub(super) cached: usize,
    /// Tokens to compute.
    pub(super) new: usize,
    /// Where the cached ones are.
    pub(super) pieces: Vec<Piece>,
}

/// Requests that go through a layer together.
pub(super) struct MiniBatch<M: Math> {
    pub(super) runs: Vec<Run>,
    /// The new tokens' vectors.
    pub(super) x: M::Matrix,
    /// Their positions.
    pub(super) positions: Vec<usize>,
    /// Pieces that the link brings.
    pub(super) loaded: Vec<Piece>,
}

/// What a pass leaves behind.
pub(super) struct Passed<M: Math> {
    /// The first layer for the next pass, where it is streamed.
    pub(super) ahead: Option<Layer<M>>,
    pub(super) traffic: Traffic,
    /// Time spent waiting for the link, seconds.
    pub(super) waited_s: f64,
}

/// What a pass goes over.
pub(super) struct Ground<'a, M: Math> {
    pub(super) math: &'a M,
    pub(super) spec: &'a Spec,
    pub(super) homes: &'a [Home<M>],
    pub(super) host: &'a HostCache,
    pub(super) space: &'a BlockSpace,
    /// To the device, and back.
    pub(super) links: &'a [Arc<Link>; 2],
}

/// The near end of the copying thread.
struct Arrivals<M: Math> {
    loaded: Receiver<Loaded<M>>,
    free_weights: Sender<()>,
    free_blocks: Sender<Buffer>,
    /// Weights that came before they were wanted.
    weights: Option<(usize, Layer<M>)>,
    waited_s: f64,
}

impl<M: Math> Ground<'_, M> {
    /// Takes mini-batches through all layers; their vectors `x` are then those after the last one.
    pub(super) fn run(
        &self,
        device: &mut DeviceCache<M>,
        ahead: Option<Layer<M>>,
        batches: &mut [MiniBatch<M>],
        kept: &mut Vec<Buffer>,
    ) -> Result<Passed<M>, EngineError> {
        let loaded: Vec<Vec<Piece>> = batches
            .iter_mut()
            .map(|batch| std::mem::take(&mut batch.loaded))
            .collect();
        let jobs = self.jobs(&loaded, ahead.is_some());
        let (done, arrived) = channel();
        let ((free_weights, weights), (free_blocks, blocks)) = (channel(), channel());
        for _ in 0..BUFFERS {
            let _ = free_blocks.send(kept.pop().unwrap_or_default());
        }
        for _ in usize::from(ahead.is_some())..BUFFERS {
            let _ = free_weights.send(());
        }
        let arrivals = Arrivals {
            loaded: arrived,
            free_weights,
            free_blocks,
            weights: ahead.map(|layer| (0, layer)),
            waited_s: 0.0,
        };
        let buffers = Buffers { weights, blocks };
        let [to_device, _] = self.links;
        if jobs.is_empty() {
            drop(done);
            return self.compute(device, arrivals, batches, &loaded);
        }
        std::thread::scope(|scope| {
            let copier = scope.spawn(move || {
                let traffic = copy(self.math, to_device, self.host, &jobs, &buffers, &done);
                drop(done);
                (traffic, buffers.blocks)
            });
            let passed = self.compute(device, arrivals, batches, &loaded);
            let (carried, blocks) = copier.join().map_err(|_| EngineError::CopyingEnded)?;
            kept.extend(blocks.try_iter());
            let mut passed = passed?;
            passed.traffic = Traffic {
                stored: passed.traffic.stored,
                ..carried
            };
            Ok(passed)
        })
    }

    /// What the copying thread does, in the order in which it is wanted: blocks of a mini-batch, and behind them its share of the
    /// next layer's weights, behind the last layer those of the first for the next pass.
    fn jobs<'a>(&'a self, loaded: &'a [Vec<Piece>], ahead: bool) -> Vec<Job<'a>> {
        let mut jobs = Vec::new();
        let weights = |layer: usize, part: usize, of: usize| match self.homes.get(layer) {
            Some(Home::Streamed(stored)) => Some(Job::Weights {
                layer,
                stored,
                part,
                of,
            }),
            _ => None,
        };
        if !ahead {
            jobs.extend(weights(0, 0, 1));
        }
        let layers = self.homes.len();
        for layer in 0..layers {
            for (part, pieces) in loaded.iter().enumerate() {
                if !pieces.is_empty() {
                    jobs.push(Job::Blocks { layer, pieces });
                }
                jobs.extend(weights((layer + 1) % layers, part, loaded.len()));
            }
        }
        jobs
    }

    fn compute(
        &self,
        device: &mut DeviceCache<M>,
        mut arrivals: Arrivals<M>,
        batches: &mut [MiniBatch<M>],
        loaded: &[Vec<Piece>],
    ) -> Result<Passed<M>, EngineError> {
        let mut stored = 0;
        for (index, home) in self.homes.iter().enumerate() {
            let streamed;
            let layer = match home {
                Home::Resident(layer) => layer,
                Home::Streamed(_) => {
                    streamed = arrivals.weights(index)?;
                    &streamed
                }
            };
            for (batch, loaded) in batches.iter_mut().zip(loaded) {
                let staged = if loaded.is_empty() {
                    None
                } else {
                    Some(arrivals.blocks()?)
                };
                let fresh = self.layer(device, index, layer, batch, staged.as_ref());
                if let Some(staged) = staged {
                    let _ = arrivals.free_blocks.send(staged.free(self.math));
                }
                stored += self.store(device, index, batch, &fresh)?;
            }
            if matches!(home, Home::Streamed(_)) {
                let _ = arrivals.free_weights.send(());
            }
        }
        let ahead = arrivals.rest();
        let waited_s = arrivals.waited_s;
        Ok(Passed {
            ahead,
            traffic: Traffic {
                stored,
                ..Traffic::default()
            },
            waited_s,
        })
    }

    /// Computes a layer for a mini-batch.
    fn layer(
        &self,
        device: &DeviceCache<M>,
        index: usize,
        layer: &Layer<M>,
        batch: &mut MiniBatch<M>,
        staged: Option<&Staged<M>>,
    ) -> Fresh<M> {
        let MiniBatch {
            runs, x, positions, ..
        } = batch;
        let fresh = layer.project(self.math, self.spec, x, positions);
        let on_device = |block: Block| device.block(index, block);
        let generated = self.generate(layer, runs, staged, &on_device);
        let cached = spans(runs, staged, generated.as_ref(), &on_device);
        layer.forward(self.math, self.spec, x, positions, &fresh, cached);
        fresh
    }

    /// KV Gen for all ACT blocks of a mini-batch, those on the device and those that were loaded, in the requests' order.
    fn generate<'b>(
        &self,
        layer: &Layer<M>,
        runs: &[Run],
        staged: Option<&'b Staged<M>>,
        on_device: &impl Fn(Block) -> Option<&'b M::Matrix>,
    ) -> Option<M::Matrix>
    where
        M::Matrix: 'b,
    {
        let (mut acts, mut positions, mut next) = (Vec::new(), Vec::new(), 0);
        for piece in runs.iter().flat_map(|run| &run.pieces) {
            if piece.block.kind != Kind::Act {
                continue;
            }
            let (matrix, from) = match piece.block.place {
                Place::Device => (on_device(piece.block), 0),
                Place::Host => {
                    next += piece.tokens;
                    (staged.map(|staged| &staged.act), next - piece.tokens)
                }
            };
            let count = piece.tokens;
            acts.extend(matrix.map(|matrix| Span { matrix, from, count }));
            positions.extend(piece.position..piece.position + count);
        }
        if acts.is_empty() {
            return None;
        }
        let acts = self.math.gather(&acts, self.spec.act_width());
        Some(layer.generate(self.math, self.spec, &acts, &positions))
    }

    /// Writes what a mini-batch's new tokens leave behind to the cache; bytes that went to the host.
    fn store(
        &self,
        device: &mut DeviceCache<M>,
        index: usize,
        batch: &MiniBatch<M>,
        fresh: &Fresh<M>,
    ) -> Result<u64, EngineError> {
        let began = Instant::now();
        let (mut from, mut bytes) = (0, 0);
        for run in &batch.runs {
            let (table, new) = (self.space.table(run.request), run.cached..run.cached + run.new);
            let rows = [&fresh.act, &fresh.kv];
            bytes += store(self.math, self.host, device, index, table, new, from, rows)?;
            from += run.new;
        }
        let [_, back] = self.links;
        back.charge(began, bytes);
        Ok(bytes)
    }
}

/// Where each request's keys and values are, and how many new tokens it has: blocks as they were loaded, blocks on the device, and
/// what was generated, in the order of its tokens.
fn spans<'b, X>(
    runs: &[Run],
    staged: Option<&'b Staged<impl Math<Matrix = X>>>,
    generated: Option<&'b X>,
    on_device: &impl Fn(Block) -> Option<&'b X>,
) -> Vec<(Vec<Span<'b, X>>, usize)> {
    let (mut next_loaded, mut next_generated) = (0, 0);
    let mut of = |piece: &Piece| {
        let count = piece.tokens;
        let (matrix, from) = match (piece.block.kind, piece.block.place) {
            (Kind::Act, _) => {
                next_generated += count;
                (generated, next_generated - count)
            }
            (Kind::Kv, Place::Device) => (on_device(piece.block), 0),
            (Kind::Kv, Place::Host) => {
                next_loaded += count;
                (staged.map(|staged| &staged.kv), next_loaded - count)
            }
        };
        matrix.map(|matrix| Span { matrix, from, count })
    };
    runs.iter()
        .map(|run| (run.pieces.iter().filter_map(&mut of).collect(), run.new))
        .collect()
}

impl<M: Math> Arrivals<M> {
    fn next(&mut self) -> Result<Loaded<M>, EngineError> {
        let began = Instant::now();
        let loaded = self.loaded.recv().map_err(|_| EngineError::CopyingEnded);
        self.waited_s += began.elapsed().as_secs_f64();
        loaded
    }

    fn weights(&mut self, layer: usize) -> Result<Layer<M>, EngineError> {
        match self.weights.take() {
            Some((index, weights)) if index == layer => return Ok(weights),
            other => self.weights = other,
        }
        match self.next()? {
            Loaded::Weights(index, weights) if index == layer => Ok(weights),
            Loaded::Weights(..) | Loaded::Blocks(_) => Err(EngineError::CopyingEnded),
        }
    }

    fn blocks(&mut self) -> Result<Staged<M>, EngineError> {
        loop {
            match self.next()? {
                Loaded::Blocks(staged) => return Ok(staged),
                Loaded::Weights(index, weights) => self.weights = Some((index, weights)),
            }
        }
    }

    /// Waits for what is still on its way: the first layer, for the next pass.
    fn rest(&mut self) -> Option<Layer<M>> {
        while let Ok(loaded) = self.next() {
            if let Loaded::Weights(index, weights) = loaded {
                self.weights = Some((index, weights));
            }
        }
        let weights = self.weights.take().filter(|(index, _)| *index == 0);
        weights.map(|(_, weights)| weights)
    }
}
