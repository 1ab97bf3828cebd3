//! Samples the costs of a layer on this device and link, for the policy's predictions (§4.3, Figure 11).

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kaskade_policy::hybrid_cache::{Costs, Kind, Sample, Split, fit};

use super::engine::{Engine, LayerPlacement};
use super::error::EngineError;
use super::sampling::greedy;
use crate::generation::cache::link::Link;
use crate::generation::layers::layer::{ContextSpans, Layer};
use crate::generation::layers::recurrent::RecurrentMixer;
use crate::ops::{AttentionSpans, HostWords, Ops, Span};

/// Number of runs per size: at least the minimum, more while runs are short. The median counts.
const ROUNDS: std::ops::Range<usize> = 3..25;
/// Measurement time per size beyond the minimum number of runs; longer than typical disturbances by other processes.
const WINDOW: Duration = Duration::from_millis(500);
/// Number of copies of the data that are measured in turn, so that they come from memory and not from CPU caches.
const COPIES: usize = 3;
/// Number of elements that the load thread transfers at a time.
const CHUNK_ELEMENTS: usize = 1 << 18;
/// Number of chunks that the load thread transfers in turn: more than CPU caches hold, as in a step.
const CHUNKS: usize = 64;

/// Workload to measure costs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Number of requests that decode together.
    pub requests: usize,
    /// Requests per mini-batch.
    pub mini_batch: usize,
    /// Average tokens per request.
    pub tokens: usize,
}

/// Measured costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredCosts {
    /// Costs of a step, per layer.
    pub costs: Costs,
    /// Number of mini-batches of the workload.
    pub mini_batches: usize,
}

impl MeasuredCosts {
    /// Returns the predicted duration of a decode step with a split, seconds.
    pub fn step_s(&self, split: &Split, layers: usize) -> f64 {
        split.step_s(&self.costs, layers, self.mini_batches)
    }
}

impl<M: Ops> Engine<M> {
    /// Measures the costs of a layer under a workload: `T_kv_gen`, `T_load_kv` and the others, as linear functions of
    /// the number of blocks.
    ///
    /// # Errors
    /// [`EngineError::Costs`] if no line fits the samples.
    pub fn measure(&self, load: &Workload) -> Result<MeasuredCosts, EngineError> {
        let block_tokens = self.space.block_tokens();
        let mini_batch = load.mini_batch.clamp(1, load.requests.max(1));
        let mini_batches = load.requests.div_ceil(mini_batch).max(1);
        let uploaded;
        let mut decoder = self.placements.iter().skip(self.placements.len() - self.layers());
        // Measures a layer with a cache, if there is any.
        let first = decoder.clone().next();
        let layer = match decoder.find(|placement| placement.has_attention()).or(first) {
            Some(LayerPlacement::Resident(layer)) => layer,
            Some(LayerPlacement::Streamed(stored)) => {
                uploaded = stored.layer(&self.ops, stored.tensors().to_vec());
                &uploaded
            }
            None => return Err(EngineError::CopyingEnded),
        };
        let [link, _] = &self.links;
        let max_blocks = (mini_batch * load.tokens).div_ceil(block_tokens).max(8);
        let sizes = [max_blocks / 8, max_blocks / 4, max_blocks / 2, max_blocks].map(|size| size.max(1));
        let loading = |kind: Kind| {
            let bytes = self.host.widths().block_bytes(kind);
            let samples = sizes.map(|blocks| Sample {
                blocks: blocks as f64,
                // Like blocks, which are gathered and transferred from there.
                seconds: self.load_s(link, &HostWords::Owned(words(bytes * blocks as u64))),
            });
            fit(&samples)
        };
        // Samples the link alone, and the device while the link is busy, as in a step.
        let (load_kv, load_act) = (loading(Kind::Kv)?, loading(Kind::Act)?);
        let load_weights_s = self.weights_s(link);
        let (kv_gen, forward, head_s) = self.while_link_is_busy(link, || -> Result<_, EngineError> {
            let kv_gen = sizes.map(|blocks| Sample {
                blocks: blocks as f64,
                seconds: self.generate_s(layer, blocks),
            });
            let mut forward = Vec::new();
            for part in [1, 2, 4] {
                let tokens = (load.tokens * part / 4).max(1);
                let blocks = mini_batches * (mini_batch * tokens).div_ceil(block_tokens);
                forward.push(Sample {
                    blocks: blocks as f64,
                    seconds: mini_batches as f64 * self.forward_s(layer, mini_batch, tokens)?,
                });
            }
            Ok((kv_gen, forward, self.head_s(load.requests)?))
        })?;
        // The cost of the cache may be too small to measure; then the line is constant.
        let forward = fit(&forward).or_else(|_| fit(&with_mean_seconds(&forward)))?;
        Ok(MeasuredCosts {
            costs: Costs {
                load_weights_s,
                kv_gen: fit(&kv_gen)?,
                load_kv,
                load_act,
                forward,
                head_s,
            },
            mini_batches,
        })
    }

    /// Returns the duration of KV Gen for separate blocks: gathered and projected, as in a step.
    fn generate_s(&self, layer: &Layer<M>, blocks: usize) -> f64 {
        let ctx = self.ctx();
        let (ops, model_config) = (ctx.ops, ctx.model_config);
        let (count, width) = (self.space.block_tokens(), model_config.act_width());
        let rows = blocks * count;
        let loaded = [(); COPIES].map(|()| ops.upload(vec![0.1; rows * width], width));
        let mut rotation = loaded.iter().cycle();
        let positions: Vec<usize> = (0..rows).map(|row| row % model_config.context.max(1)).collect();
        median_s(|| {
            let matrix = rotation.next();
            let spans = (0..blocks).filter_map(|block| {
                let from = block * count;
                matrix.map(|matrix| Span { matrix, from, count })
            });
            let acts = ops.gather(&spans.collect::<Vec<_>>(), width);
            drop(layer.generate(ctx, &acts, &positions));
            // A device error is reported below, when results are read.
            let _ = ops.finish();
        })
    }

    /// Returns the duration of a layer for `requests` requests with `tokens` cached tokens each, without KV Gen.
    fn forward_s(&self, layer: &Layer<M>, requests: usize, tokens: usize) -> Result<f64, EngineError> {
        let ctx = self.ctx();
        let (ops, model_config) = (ctx.ops, ctx.model_config);
        let mut x = ops.upload(vec![0.1; requests * model_config.width], model_config.width);
        let width = model_config.kv_width_of(layer.is_local());
        let kvs = [(); COPIES].map(|()| ops.upload(vec![0.1; requests * tokens * width], width));
        let mut rotation = kvs.iter().cycle();
        let positions = vec![tokens.min(model_config.context.saturating_sub(1)); requests];
        // With cross-attention, half of the tokens count as the prompt; the total number of keys is the same.
        let prompt = layer.cross.as_ref().map_or(0, |_| tokens / 2);
        let recurrent = layer.recurrent.as_ref();
        let state = vec![0.0; recurrent.map_or(0, RecurrentMixer::state_elements)];
        let mut states = vec![state; recurrent.map_or(0, |_| requests)];
        let mut failed = None;
        let seconds = median_s(|| {
            let new_kv = layer.project(ctx, &x, &positions);
            let kv = rotation.next();
            let self_spans = (0..requests).map(|request| {
                let new = new_kv.kv.as_ref().map(|matrix| Span {
                    matrix,
                    from: request,
                    count: 1,
                });
                attended(kv, request * tokens + prompt, tokens - prompt, new)
            });
            let self_spans: Vec<AttentionSpans<'_, M::Matrix>> = self_spans.collect();
            let prompts = (0..requests).map(|request| attended(kv, request * tokens, prompt, None));
            let prompts: Vec<AttentionSpans<'_, M::Matrix>> = prompts.collect();
            let past = ContextSpans {
                self_spans: &self_spans,
                prompts: &prompts,
                states: states.iter_mut().map(Vec::as_mut_slice).collect(),
            };
            let computed = layer.forward(ctx, &mut x, &positions, &new_kv.act, past);
            failed = computed.and_then(|()| ops.finish()).err().or(failed.take());
        });
        failed.map_or(Ok(seconds), |error| Err(error.into()))
    }

    /// Returns the duration of transferring a layer's weights, averaged over all layers; resident layers count as
    /// zero.
    fn weights_s(&self, link: &Link) -> f64 {
        let layers = self.layers().max(1) as f64;
        match self.streamed_bytes() {
            0 => 0.0,
            bytes => self.load_s(link, &self.ops.hold(words((bytes as f64 / layers) as u64))),
        }
    }

    /// Returns the duration of transferring a tensor.
    fn load_s(&self, link: &Link, source: &HostWords) -> f64 {
        let mut target = words(source.bytes());
        link.drain();
        self.ops.transferring(|| {
            median_s(|| link.transfer(source.bytes(), || self.ops.load(source, &mut target)))
        })
    }

    /// Runs work while transfers keep the link busy.
    fn while_link_is_busy<T>(&self, link: &Link, work: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let transfers = || self.ops.transferring(|| self.transfer_until(link, &stop));
            let thread = std::thread::Builder::new().name("sampling".into());
            let started = thread.spawn_scoped(scope, transfers);
            let _stop = Stop(&stop);
            let done = work();
            drop(started);
            done
        })
    }

    fn transfer_until(&self, link: &Link, stop: &AtomicBool) {
        let sources = [(); CHUNKS].map(|()| self.ops.hold(vec![0; CHUNK_ELEMENTS]));
        let mut targets = vec![0; CHUNKS * CHUNK_ELEMENTS];
        while !stop.load(Ordering::Relaxed) {
            for (from, to) in sources.iter().zip(targets.chunks_mut(CHUNK_ELEMENTS)) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                link.transfer(from.bytes(), || self.ops.load(from, to));
            }
        }
    }

    fn head_s(&self, requests: usize) -> Result<f64, EngineError> {
        let width = self.decoder.model_config.width;
        let x = self.ops.upload(vec![0.1; requests * width], width);
        let mut failed = None;
        let seconds = median_s(|| match self.logits(&x) {
            Ok(rows) => rows.iter().for_each(|logits| _ = black_box(greedy(logits))),
            Err(error) => failed = Some(error),
        });
        failed.map_or(Ok(seconds), |error| Err(error.into()))
    }
}

/// Returns the keys and values of one query: rows of a matrix, and a new one.
fn attended<'a, X>(
    kv: Option<&'a X>,
    from: usize,
    count: usize,
    new_kv: Option<Span<'a, X>>,
) -> AttentionSpans<'a, X> {
    let cached = kv.map(|matrix| Span { matrix, from, count });
    AttentionSpans {
        queries: 1,
        cached: cached.into_iter().collect(),
        new_kv,
    }
}

/// Sets the flag when dropped, also by a panic, so that the thread that checks it ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a tensor of this size.
fn words(bytes: u64) -> Vec<u32> {
    vec![0; bytes as usize / size_of::<u32>()]
}

fn median_s(mut work: impl FnMut()) -> f64 {
    let (window, mut seconds) = (Instant::now(), Vec::with_capacity(ROUNDS.end));
    while seconds.len() < ROUNDS.start || (seconds.len() < ROUNDS.end && window.elapsed() < WINDOW) {
        let began = Instant::now();
        work();
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}

/// Replaces the duration of every sample by the mean.
fn with_mean_seconds(samples: &[Sample]) -> Vec<Sample> {
    let mean = samples.iter().map(|sample| sample.seconds).sum::<f64>() / samples.len().max(1) as f64;
    let at_mean = |sample: &Sample| Sample {
        seconds: mean,
        ..*sample
    };
    samples.iter().map(at_mean).collect()
}
