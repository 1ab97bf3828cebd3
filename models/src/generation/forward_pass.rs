//! Forward pass of mini-batches through all layers, while the transfer thread loads the data for the next layer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use kaskade_policy::hybrid_cache::{BlockSpace, Traffic};

use super::engine::LayerPlacement;
use super::error::EngineError;
use crate::decoder::weights::ModelConfig;
use crate::generation::cache::block_cache::{BlockSlice, Segment};
use crate::generation::cache::block_cache::{DeviceCache, HostCache, NewTokens, store};
use crate::generation::cache::cached_context::{BatchEntry, CachedContext};
use crate::generation::cache::link::Link;
use crate::generation::cache::transfer::{Buffer, Buffers, StagedBlocks, TransferJob, Transferred, copy};
use crate::generation::layers::encoder::DeviceEncoder;
use crate::generation::layers::layer::{ContextSpans, Layer, NewKv};
use crate::generation::layers::layer_context::LayerContext;
use crate::generation::layers::recurrent::RecurrentState;
use crate::ops::{AttentionSpans, Ops, OpsError, Span};

/// Number of buffers of each kind.
const BUFFERS: usize = 2;

/// Requests that pass through a layer together.
pub(super) struct MiniBatch<M: Ops> {
    pub(super) entries: Vec<BatchEntry>,
    /// Hidden states of the new tokens.
    pub(super) x: M::Matrix,
    /// Positions of the new tokens.
    pub(super) positions: Vec<usize>,
    /// Hidden states of the prompts in the encoder, then its output; `None` if all prompts are cached.
    pub(super) source: Option<M::Matrix>,
    /// Block slices to transfer.
    pub(super) loaded: Vec<BlockSlice>,
    /// Per-layer embeddings of the new tokens, one matrix per decoder layer; empty without them.
    pub(super) token_inputs: Vec<M::Matrix>,
    /// AltUp streams besides `x`.
    pub(super) streams: Vec<M::Matrix>,
    /// Keys and values of the last global layer and of the last local layer that computed their own, if later layers
    /// reuse them.
    pub(super) kept: [Option<NewKv<M>>; 2],
    /// Recurrent states, one per request; a pass updates them with the new tokens.
    pub(super) states: Vec<RecurrentState>,
}

/// Result of a pass.
pub(super) struct PassResult<M: Ops> {
    /// The decoder's first layer for the next pass, if it is streamed.
    pub(super) prefetched: Option<Layer<M>>,
    pub(super) traffic: Traffic,
    /// Time spent waiting for the link, seconds.
    pub(super) waited_s: f64,
}

/// Inputs of a forward pass.
pub(super) struct ForwardPass<'a, M: Ops> {
    pub(super) ops: &'a M,
    pub(super) model_config: &'a ModelConfig,
    /// Layers of the encoder, then of the decoder.
    pub(super) placements: &'a [LayerPlacement<M>],
    pub(super) encoder: Option<&'a DeviceEncoder<M>>,
    /// Relative position bias of the decoder.
    pub(super) position_bias: Option<&'a M::Matrix>,
    /// Whether layers of the decoder reuse keys and values of earlier ones.
    pub(super) reuses_kv: bool,
    pub(super) host: &'a HostCache,
    pub(super) space: &'a BlockSpace,
    /// Links to the device, and from it.
    pub(super) links: &'a [Arc<Link>; 2],
}

/// Receives layers and blocks from the transfer thread.
struct TransferReceiver<M: Ops> {
    loaded: Receiver<Transferred<M>>,
    free_weights: Sender<()>,
    free_blocks: Sender<Buffer>,
    /// Weights received before they are needed.
    weights: Option<(usize, Layer<M>)>,
    /// The layer that the next pass will probably begin with: the decoder's first.
    prefetch_layer: usize,
    waited_s: f64,
}

/// New cache entries of a mini-batch in a layer.
struct LayerOutput<M: Ops> {
    /// New keys and values; `None` if the mini-batch keeps them.
    new_kv: Option<NewKv<M>>,
    /// Keys and values of prompts that the encoder has read in this pass.
    source: Option<M::Matrix>,
}

impl<M: Ops> ForwardPass<'_, M> {
    /// Returns the index of the decoder's first layer.
    fn decoder(&self) -> usize {
        self.encoder.map_or(0, |encoder| encoder.layers)
    }

    /// Runs mini-batches through all layers; the result is their `x`. The encoder's layers run only if there are
    /// prompts to encode.
    pub(super) fn run(
        &self,
        device: &mut DeviceCache<M>,
        prefetched: Option<Layer<M>>,
        batches: &mut [MiniBatch<M>],
        free_buffers: &mut Vec<Buffer>,
    ) -> Result<PassResult<M>, EngineError> {
        let loaded: Vec<Vec<BlockSlice>> = batches
            .iter_mut()
            .map(|batch| std::mem::take(&mut batch.loaded))
            .collect();
        let reads = batches.iter().any(|batch| batch.source.is_some());
        let first = if reads { 0 } else { self.decoder() };
        // A prefetched layer is useless to a pass that begins at another layer, and its buffer is needed.
        let prefetched = prefetched.filter(|_| first == self.decoder());
        let jobs = self.jobs(first, &loaded, prefetched.is_some());
        let (done, arrived) = channel();
        let ((free_weights, weights), (free_blocks, blocks)) = (channel(), channel());
        for _ in 0..BUFFERS {
            let _ = free_blocks.send(free_buffers.pop().unwrap_or_default());
        }
        for _ in usize::from(prefetched.is_some())..BUFFERS {
            let _ = free_weights.send(());
        }
        let arrivals = TransferReceiver {
            loaded: arrived,
            free_weights,
            free_blocks,
            weights: prefetched.map(|layer| (first, layer)),
            prefetch_layer: self.decoder(),
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
                let copy = || copy(self.ops, to_device, self.host, &jobs, &buffers, &done);
                let traffic = self.ops.transferring(copy);
                drop(done);
                (traffic, buffers.blocks)
            });
            let result = self.compute(device, first, arrivals, batches, &loaded);
            let (carried, blocks) = copier.join().map_err(|_| EngineError::CopyingEnded)?;
            free_buffers.extend(blocks.try_iter());
            let mut result = result?;
            result.traffic = Traffic {
                stored: result.traffic.stored,
                ..carried
            };
            Ok(result)
        })
    }

    /// Lists the transfers in the order in which they are needed: for every mini-batch its blocks, then its part of
    /// the next layer's weights; after the last layer, the weights of the decoder's first layer for the next pass.
    fn jobs<'a>(
        &'a self,
        first: usize,
        loaded: &'a [Vec<BlockSlice>],
        prefetched: bool,
    ) -> Vec<TransferJob<'a>> {
        let mut jobs = Vec::new();
        let weights = |layer: usize, part: usize, of: usize| match self.placements.get(layer) {
            Some(LayerPlacement::Streamed(stored)) => Some(TransferJob::Weights {
                layer,
                stored,
                part,
                of,
            }),
            _ => None,
        };
        if !prefetched {
            jobs.extend(weights(first, 0, 1));
        }
        let (decoder, layers) = (self.decoder(), self.placements.len());
        for layer in first..layers {
            let next = if layer + 1 == layers { decoder } else { layer + 1 };
            for (part, slices) in loaded.iter().enumerate() {
                let cached = self
                    .placements
                    .get(layer)
                    .is_some_and(LayerPlacement::has_attention);
                if let Some(layer) = layer
                    .checked_sub(decoder)
                    .filter(|_| cached && !slices.is_empty())
                {
                    jobs.push(TransferJob::Blocks { layer, slices });
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
        mut arrivals: TransferReceiver<M>,
        batches: &mut [MiniBatch<M>],
        loaded: &[Vec<BlockSlice>],
    ) -> Result<PassResult<M>, EngineError> {
        let mut stored = 0;
        for (index, placement) in self.placements.iter().enumerate().skip(first) {
            let streamed;
            let layer = match placement {
                LayerPlacement::Resident(layer) => layer,
                LayerPlacement::Streamed(_) => {
                    streamed = arrivals.weights(index)?;
                    &streamed
                }
            };
            for (batch, loaded) in batches.iter_mut().zip(loaded) {
                let Some(index) = index.checked_sub(self.decoder()) else {
                    self.read((index, layer), batch)?;
                    continue;
                };
                let staged = if loaded.is_empty() || layer.attention.is_none() {
                    None
                } else {
                    Some(arrivals.blocks()?)
                };
                let output = self.layer(device, index, layer, batch, staged.as_ref())?;
                if let Some(staged) = staged {
                    let _ = arrivals.free_blocks.send(staged.free(self.ops));
                }
                stored += self.store(device, (index, layer.is_local()), batch, &output)?;
                if self.reuses_kv
                    && let Some(new_kv) = output.new_kv.filter(|new_kv| new_kv.kv.is_some())
                    && let Some(kept) = batch.kept.get_mut(usize::from(layer.is_local()))
                {
                    *kept = Some(new_kv);
                }
            }
            if matches!(placement, LayerPlacement::Streamed(_)) {
                // Waits for the device, because the next layer reuses the memory of this one.
                self.ops.finish()?;
                let _ = arrivals.free_weights.send(());
            }
        }
        let prefetched = arrivals.finish();
        let waited_s = arrivals.waited_s;
        Ok(PassResult {
            prefetched,
            traffic: Traffic {
                stored,
                ..Traffic::default()
            },
            waited_s,
        })
    }

    /// Computes a layer of the encoder for the prompts of a mini-batch.
    fn read(&self, layer: (usize, &Layer<M>), batch: &mut MiniBatch<M>) -> Result<(), OpsError> {
        if let (Some(encoder), Some(source)) = (self.encoder, &mut batch.source) {
            let counts: Vec<usize> = batch.entries.iter().map(BatchEntry::encoded).collect();
            encoder.read((self.ops, self.model_config), layer, source, &counts)?;
        }
        Ok(())
    }

    /// Computes a layer of the decoder for a mini-batch.
    fn layer(
        &self,
        device: &DeviceCache<M>,
        index: usize,
        layer: &Layer<M>,
        batch: &mut MiniBatch<M>,
        staged: Option<&StagedBlocks<M>>,
    ) -> Result<LayerOutput<M>, OpsError> {
        let MiniBatch {
            entries,
            x,
            positions,
            token_inputs,
            streams,
            kept,
            states,
            ..
        } = batch;
        let (ops, model_config) = (self.ops, self.model_config);
        let ctx = LayerContext {
            ops,
            model_config,
            position_bias: self.position_bias,
            token_input: token_inputs.get(index),
        };
        let context = CachedContext {
            entries,
            staged,
            device,
            layer: index,
        };
        let predicted = layer.streams.as_ref().map(|own| own.predict(ctx, x, streams));
        let predicted = predicted.transpose()?;
        let kept = kept.get(usize::from(layer.is_local())).and_then(Option::as_ref);
        let kept = kept.filter(|_| layer.reuses_kv);
        let (mut own, read) = (None, kept.map(|_| layer.input(ctx, x, positions)));
        let new_kv = match kept {
            Some(kept) => kept,
            None => &*own.insert(layer.project(ctx, x, positions)),
        };
        // Queries come from the layer's own input.
        let act = read.as_ref().unwrap_or(&new_kv.act);
        let generated = layer.attention.as_ref().and_then(|attention| {
            let width = model_config.act_width();
            context.generate(ops, width, Segment::Target, |acts, positions| {
                attention.generate(ctx, acts, positions)
            })
        });
        let self_spans = attended(
            entries,
            context.spans(Segment::Target, generated.as_ref()),
            new_kv.kv.as_ref(),
        );
        let encoded = batch.source.as_ref();
        let (mut source, mut cross_spans) = (None, Vec::new());
        if let Some(cross) = &layer.cross {
            source = context.prompt_kv(ops, model_config, cross, encoded);
            cross_spans = context.prompts(source.as_ref(), encoded.is_some());
        }
        let past = ContextSpans {
            self_spans: &self_spans,
            prompts: &cross_spans,
            states: states.iter_mut().filter_map(|state| state.layer(index)).collect(),
        };
        layer.forward(ctx, x, positions, act, past)?;
        if let Some((own, predicted)) = layer.streams.as_ref().zip(predicted) {
            own.correct(ctx, (x, predicted), streams, layer.token_gate.as_ref())?;
        }
        drop((self_spans, cross_spans));
        Ok(LayerOutput {
            new_kv: own,
            source: source.filter(|_| encoded.is_some()),
        })
    }

    /// Writes the new entries of a mini-batch to the cache; returns the bytes written to host memory.
    fn store(
        &self,
        device: &mut DeviceCache<M>,
        (index, local): (usize, bool),
        batch: &MiniBatch<M>,
        output: &LayerOutput<M>,
    ) -> Result<u64, EngineError> {
        let kept = batch.kept.get(usize::from(local)).and_then(Option::as_ref);
        let Some(new_kv) = output.new_kv.as_ref().or(kept) else {
            return Ok(0);
        };
        let Some(kv) = &new_kv.kv else {
            return Ok(0);
        };
        let began = Instant::now();
        let tokens = |entry: &BatchEntry, places| NewTokens {
            table: self.space.table(entry.request),
            places,
        };
        let entries = || batch.entries.iter();
        let new = entries().map(|entry| tokens(entry, entry.places()));
        let mut bytes = store(self.ops, self.host, device, index, new, [&new_kv.act, kv])?;
        if let (Some(encoded), Some(kv)) = (&batch.source, &output.source) {
            let prompts = entries().map(|entry| tokens(entry, 0..entry.encoded()));
            bytes += store(self.ops, self.host, device, index, prompts, [encoded, kv])?;
        }
        let [_, back] = self.links;
        back.record_transfer(began, bytes);
        Ok(bytes)
    }
}

/// Returns the spans of the self-attention per request: cached tokens, then the new ones, if they have keys.
fn attended<'b, X>(
    entries: &[BatchEntry],
    cached: Vec<Vec<Span<'b, X>>>,
    new_kv: Option<&'b X>,
) -> Vec<AttentionSpans<'b, X>> {
    let mut next = 0;
    let entries = entries.iter().zip(cached);
    entries
        .map(|(entry, cached)| {
            next += entry.new;
            let new_kv = new_kv.map(|matrix| Span {
                matrix,
                from: next - entry.new,
                count: entry.new,
            });
            AttentionSpans {
                queries: entry.new,
                cached,
                new_kv,
            }
        })
        .collect()
}

impl<M: Ops> TransferReceiver<M> {
    fn next(&mut self) -> Result<Transferred<M>, EngineError> {
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
            Transferred::Weights(index, weights) if index == layer => Ok(*weights),
            Transferred::Weights(..) | Transferred::Blocks(_) => Err(EngineError::CopyingEnded),
        }
    }

    fn blocks(&mut self) -> Result<StagedBlocks<M>, EngineError> {
        loop {
            match self.next()? {
                Transferred::Blocks(staged) => return Ok(staged),
                Transferred::Weights(index, weights) => self.weights = Some((index, *weights)),
            }
        }
    }

    /// Waits for the remaining transfer: the decoder's first layer, for the next pass.
    fn finish(&mut self) -> Option<Layer<M>> {
        while let Ok(loaded) = self.next() {
            if let Transferred::Weights(index, weights) = loaded {
                self.weights = Some((index, *weights));
            }
        }
        let weights = self
            .weights
            .take()
            .filter(|(index, _)| *index == self.prefetch_layer);
        weights.map(|(_, weights)| weights)
    }
}
