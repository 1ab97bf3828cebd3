//! A pass of mini-batches through all layers, while the copying thread brings what comes next.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use kaskade_plans::hybrid_cache::BlockSpace;

use super::block_cache::{DeviceCache, HostCache, store};
use super::block_cache::{Part, Piece};
use super::cached_context::{Reach, Run};
use super::encoder::Reader;
use super::engine::Home;
use super::error::EngineError;
use super::layer::{Fresh, Layer, Means};
use super::link::Link;
use super::transfer::{Buffer, Buffers, Job, Loaded, Staged, Traffic, copy};
use crate::decoder::weights::Spec;
use crate::ops::{Attended, Math, Span};

/// Buffers of each kind.
const BUFFERS: usize = 2;

/// Requests that go through a layer together.
pub(super) struct MiniBatch<M: Math> {
    pub(super) runs: Vec<Run>,
    /// The new tokens' vectors.
    pub(super) x: M::Matrix,
    /// Their positions.
    pub(super) positions: Vec<usize>,
    /// Vectors of the prompts that the encoder is to read, and has read when the decoder's turn comes; absent where all are cached.
    pub(super) source: Option<M::Matrix>,
    /// Pieces that the link brings.
    pub(super) loaded: Vec<Piece>,
}

/// What a pass leaves behind.
pub(super) struct Passed<M: Math> {
    /// The decoder's first layer for the next pass, where it is streamed.
    pub(super) ahead: Option<Layer<M>>,
    pub(super) traffic: Traffic,
    /// Time spent waiting for the link, seconds.
    pub(super) waited_s: f64,
}

/// What a pass goes over.
pub(super) struct Ground<'a, M: Math> {
    pub(super) math: &'a M,
    pub(super) spec: &'a Spec,
    /// Of the encoder's layers, and then the decoder's.
    pub(super) homes: &'a [Home<M>],
    pub(super) reader: Option<&'a Reader<M>>,
    /// What the decoder's scores gain by distance.
    pub(super) gains: Option<&'a M::Matrix>,
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
    /// The layer that the next pass most likely begins with: the decoder's first.
    again: usize,
    waited_s: f64,
}

/// What a mini-batch leaves in the cache.
struct Brought<M: Math> {
    fresh: Fresh<M>,
    /// Keys and values of prompts that the encoder has read.
    source: Option<M::Matrix>,
}

impl<M: Math> Ground<'_, M> {
    /// The decoder's first layer.
    fn decoder(&self) -> usize {
        self.reader.map_or(0, |reader| reader.layers)
    }

    /// Takes mini-batches through all layers, those of the encoder only where there is something to read; their vectors `x` are then
    /// those after the last one.
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
        let reads = batches.iter().any(|batch| batch.source.is_some());
        let first = if reads { 0 } else { self.decoder() };
        // What came ahead is of no use to a pass that begins elsewhere, and its buffer is needed.
        let ahead = ahead.filter(|_| first == self.decoder());
        let jobs = self.jobs(first, &loaded, ahead.is_some());
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
            weights: ahead.map(|layer| (first, layer)),
            again: self.decoder(),
            waited_s: 0.0,
        };
        let buffers = Buffers { weights, blocks };
        let [to_device, _] = self.links;
        if jobs.is_empty() {
            drop(done);
            return self.compute(device, first, arrivals, batches, &loaded);
        }
        std::thread::scope(|scope| {
            let copier = scope.spawn(move || {
                let traffic = copy(self.math, to_device, self.host, &jobs, &buffers, &done);
                drop(done);
                (traffic, buffers.blocks)
            });
            let passed = self.compute(device, first, arrivals, batches, &loaded);
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
    /// next layer's weights, behind the last layer those of the decoder's first for the next pass.
    fn jobs<'a>(&'a self, first: usize, loaded: &'a [Vec<Piece>], ahead: bool) -> Vec<Job<'a>> {
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
            jobs.extend(weights(first, 0, 1));
        }
        let (decoder, layers) = (self.decoder(), self.homes.len());
        for layer in first..layers {
            let next = if layer + 1 == layers { decoder } else { layer + 1 };
            for (part, pieces) in loaded.iter().enumerate() {
                if let Some(layer) = layer.checked_sub(decoder).filter(|_| !pieces.is_empty()) {
                    jobs.push(Job::Blocks { layer, pieces });
                }
                jobs.extend(weights(next, part, loaded.len()));
            }
        }
        jobs
    }

    fn compute(
        &self,
        device: &mut DeviceCache<M>,
        first: usize,
        mut arrivals: Arrivals<M>,
        batches: &mut [MiniBatch<M>],
        loaded: &[Vec<Piece>],
    ) -> Result<Passed<M>, EngineError> {
        let mut stored = 0;
        for (index, home) in self.homes.iter().enumerate().skip(first) {
            let streamed;
            let layer = match home {
                Home::Resident(layer) => layer,
                Home::Streamed(_) => {
                    streamed = arrivals.weights(index)?;
                    &streamed
                }
            };
            for (batch, loaded) in batches.iter_mut().zip(loaded) {
                let Some(index) = index.checked_sub(self.decoder()) else {
                    self.read((index, layer), batch);
                    continue;
                };
                let staged = if loaded.is_empty() {
                    None
                } else {
                    Some(arrivals.blocks()?)
                };
                let brought = self.layer(device, index, layer, batch, staged.as_ref());
                if let Some(staged) = staged {
                    let _ = arrivals.free_blocks.send(staged.free(self.math));
                }
                stored += self.store(device, index, batch, &brought)?;
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

    /// Takes a mini-batch's prompts through a layer of the encoder.
    fn read(&self, layer: (usize, &Layer<M>), batch: &mut MiniBatch<M>) {
        if let (Some(reader), Some(source)) = (self.reader, &mut batch.source) {
            let counts: Vec<usize> = batch.runs.iter().map(Run::encoded).collect();
            reader.read((self.math, self.spec), layer, source, &counts);
        }
    }

    /// Computes a layer of the decoder for a mini-batch.
    fn layer(
        &self,
        device: &DeviceCache<M>,
        index: usize,
        layer: &Layer<M>,
        batch: &mut MiniBatch<M>,
        staged: Option<&Staged<M>>,
    ) -> Brought<M> {
        let MiniBatch {
            runs, x, positions, ..
        } = batch;
        let (math, spec) = (self.math, self.spec);
        let means = Means {
            math,
            spec,
            gains: self.gains,
        };
        let reach = Reach {
            runs,
            staged,
            device,
            layer: index,
        };
        let fresh = layer.project(means, x, positions);
        let generated = reach.generate(math, spec.act_width(), Part::Own, |acts, positions| {
            layer.generate(means, acts, positions)
        });
        let own = attended(runs, reach.spans(Part::Own, generated.as_ref()), &fresh.kv);
        let encoded = batch.source.as_ref();
        let (mut source, mut seen) = (None, Vec::new());
        if let Some(cross) = &layer.cross {
            source = reach.prompt_kv(math, spec, cross, encoded);
            seen = reach.prompts(source.as_ref(), encoded.is_some());
        }
        layer.forward(means, x, positions, &fresh.act, &own, &seen);
        drop((own, seen));
        Brought {
            fresh,
            source: source.filter(|_| encoded.is_some()),
        }
    }

    /// Writes what a mini-batch's new tokens leave behind to the cache; bytes that went to the host.
    fn store(
        &self,
        device: &mut DeviceCache<M>,
        index: usize,
        batch: &MiniBatch<M>,
        brought: &Brought<M>,
    ) -> Result<u64, EngineError> {
        let began = Instant::now();
        let mut bytes = 0;
        let mut put = |run: &Run, places: Range<usize>, from: &mut usize, rows| {
            let (table, count) = (self.space.table(run.request), places.len());
            bytes += store(self.math, self.host, device, index, table, places, *from, rows)?;
            *from += count;
            Ok::<(), EngineError>(())
        };
        let (mut from, mut from_source) = (0, 0);
        for run in &batch.runs {
            put(
                run,
                run.places(),
                &mut from,
                [&brought.fresh.act, &brought.fresh.kv],
            )?;
            if let (Some(encoded), Some(kv)) = (&batch.source, &brought.source) {
                put(run, 0..run.encoded(), &mut from_source, [encoded, kv])?;
            }
        }
        let [_, back] = self.links;
        back.charge(began, bytes);
        Ok(bytes)
    }
}

/// What each request's new tokens attend to of its own: where its cached ones are, and behind them the keys and values of the new.
fn attended<'b, X>(runs: &[Run], cached: Vec<Vec<Span<'b, X>>>, fresh: &'b X) -> Vec<Attended<'b, X>> {
    let mut next = 0;
    let runs = runs.iter().zip(cached);
    runs.map(|(run, cached)| {
        next += run.new;
        let fresh = Span {
            matrix: fresh,
            from: next - run.new,
            count: run.new,
        };
        Attended {
            queries: run.new,
            cached,
            fresh: Some(fresh),
        }
    })
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

    /// Waits for what is still on its way: the decoder's first layer, for the next pass.
    fn rest(&mut self) -> Option<Layer<M>> {
        while let Ok(loaded) = self.next() {
            if let Loaded::Weights(index, weights) = loaded {
                self.weights = Some((index, weights));
            }
        }
        let weights = self.weights.take().filter(|(index, _)| *index == self.again);
        weights.map(|(_, weights)| weights)
    }
}
