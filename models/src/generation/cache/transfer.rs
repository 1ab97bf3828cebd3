//! The transfer thread: loads weights and blocks of the next layer while the current one is computed.
//!
//! The thread's jobs are known at the beginning of a step, in the order in which they are needed. There are two
//! buffers for blocks and two for a layer's weights (§4.2.1: double buffering); a job starts when a buffer of its kind
//! is free. The next layer's weights are split into one part per mini-batch, so that the link is used evenly and a
//! large layer does not delay the blocks after it.

use std::sync::mpsc::{Receiver, Sender};

use kaskade_policy::hybrid_cache::{Kind, Traffic};

use super::block_cache::BlockSlice;
use super::block_cache::HostCache;
use super::link::Link;
use crate::generation::layers::host_layer::HostLayer;
use crate::generation::layers::layer::Layer;
use crate::ops::{HostWords, Ops};

/// A transfer to the device.
#[derive(Debug, Clone)]
pub(crate) enum TransferJob<'a> {
    /// Part `part` of `of` parts of a layer's weights; the last part completes the layer.
    Weights {
        layer: usize,
        stored: &'a HostLayer,
        part: usize,
        of: usize,
    },
    /// Blocks of a mini-batch in a layer.
    Blocks { layer: usize, slices: &'a [BlockSlice] },
}

/// A completed transfer.
pub(crate) enum Transferred<M: Ops> {
    Weights(usize, Box<Layer<M>>),
    Blocks(StagedBlocks<M>),
}

/// Blocks of a mini-batch in a layer on the device; the slices of each kind are stacked in request order.
pub(crate) struct StagedBlocks<M: Ops> {
    pub(crate) act: M::Matrix,
    pub(crate) kv: M::Matrix,
}

/// Free buffers; each message represents one buffer.
pub(crate) struct Buffers {
    pub(crate) weights: Receiver<()>,
    pub(crate) blocks: Receiver<Buffer>,
}

/// Memory for a mini-batch's blocks, reused because allocating it would take as long as the copy.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    act: Vec<f32>,
    kv: Vec<f32>,
}

impl<M: Ops> StagedBlocks<M> {
    /// Returns the buffer after use of the blocks.
    pub(crate) fn free(self, ops: &M) -> Buffer {
        Buffer {
            act: ops.recycle(self.act),
            kv: ops.recycle(self.kv),
        }
    }
}

/// Runs the jobs in order until they are done or the receiver is dropped. Returns the number of transferred bytes.
pub(crate) fn copy<M: Ops>(
    ops: &M,
    link: &Link,
    host: &HostCache,
    jobs: &[TransferJob<'_>],
    buffers: &Buffers,
    done: &Sender<Transferred<M>>,
) -> Traffic {
    let mut traffic = Traffic::default();
    let mut parts = Vec::new();
    for job in jobs {
        let loaded = match job {
            TransferJob::Weights {
                layer,
                stored,
                part,
                of,
            } => {
                if *part == 0 {
                    if buffers.weights.recv().is_err() {
                        break;
                    }
                    parts = Vec::new();
                }
                let Some(weights) = part_of_layer(ops, link, stored, (*part, *of), &mut parts) else {
                    continue;
                };
                traffic.weights += stored.bytes();
                Transferred::Weights(*layer, Box::new(weights))
            }
            TransferJob::Blocks { layer, slices } => {
                let Ok(buffer) = buffers.blocks.recv() else {
                    break;
                };
                Transferred::Blocks(stage(ops, link, host, *layer, slices, buffer, &mut traffic))
            }
        };
        if done.send(loaded).is_err() {
            break;
        }
    }
    traffic
}

/// Transfers part `part` of `of` parts of a layer's weights. Returns the layer after the last part. A device with its
/// own memory copies the whole layer with the last part, directly from where it is.
fn part_of_layer<M: Ops>(
    ops: &M,
    link: &Link,
    stored: &HostLayer,
    (part, of): (usize, usize),
    parts: &mut Vec<Vec<u32>>,
) -> Option<Layer<M>> {
    let is_last = part + 1 == of;
    if M::HAS_DEVICE_MEMORY {
        return is_last.then(|| {
            link.transfer(stored.bytes(), || {
                let layer = stored.layer(ops, stored.tensors().to_vec());
                wait(ops);
                layer
            })
        });
    }
    let until = |part: usize| stored.bytes() * part as u64 / of as u64;
    let (from, to) = (until(part), until(part + 1));
    link.transfer(to - from, || copy_weights(stored, parts, to));
    is_last.then(|| {
        let tensors = std::mem::take(parts).into_iter();
        stored.layer(ops, tensors.map(HostWords::Owned).collect())
    })
}

/// Waits until a transfer has completed, so that its duration is known. A device error is reported with the next
/// computation.
fn wait<M: Ops>(ops: &M) {
    let _ = ops.finish();
}

/// Copies a layer's tensors up to its first `until` bytes.
fn copy_weights(stored: &HostLayer, parts: &mut Vec<Vec<u32>>, until: u64) {
    let until = until as usize / size_of::<u32>();
    let mut before = 0;
    for (index, tensor) in stored.tensors().iter().enumerate() {
        let tensor = tensor.words();
        if parts.len() == index {
            parts.push(Vec::with_capacity(tensor.len()));
        }
        if let Some(part) = parts.get_mut(index) {
            let to = until.saturating_sub(before).min(tensor.len());
            part.extend_from_slice(tensor.get(part.len()..to).unwrap_or_default());
        }
        before += tensor.len();
        if before > until {
            break;
        }
    }
}

/// Transfers a mini-batch's blocks of one layer to the device.
pub(crate) fn stage<M: Ops>(
    ops: &M,
    link: &Link,
    host: &HostCache,
    layer: usize,
    slices: &[BlockSlice],
    buffer: Buffer,
    traffic: &mut Traffic,
) -> StagedBlocks<M> {
    let mut bring = |kind: Kind, memory: Vec<f32>| {
        let wanted = slices.iter().filter(|slice| slice.block.kind == kind);
        let bytes: u64 = wanted.map(|slice| host.slice_bytes(layer, slice)).sum();
        match kind {
            Kind::Act => traffic.act += bytes,
            Kind::Kv => traffic.kv += bytes,
        }
        link.transfer(bytes, || {
            let staged = ops.upload(host.copy(layer, kind, slices, memory), host.width(kind, layer));
            wait(ops);
            staged
        })
    };
    // Activations come first, because KV Gen can start on them while keys and values are needed later.
    StagedBlocks {
        act: bring(Kind::Act, buffer.act),
        kv: bring(Kind::Kv, buffer.kv),
    }
}
