//! Blocks of `MobileBERT` (Sun et al. 2020, "`MobileBERT`: a Compact Task-Agnostic BERT for Resource-Limited Devices"): attention and
//! feed-forward layers that are narrower than the vectors of the tokens.
//!
//! What it calls a norm is a factor and a shift of every element, so that it is folded into the layers before it; only what a sum
//! keeps is scaled at run time. The layers into the bottleneck are linear, and are folded into those after them.

use kaskade_policy::plan::Partition;

use super::{BlockConfig, of_partition};
use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{Activation, EncoderAttention, Ops, Span};

/// Sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::architectures) struct BottleneckConfig {
    /// Size of the vectors between blocks.
    pub width: usize,
    /// Size of the vectors within a block.
    pub inner: usize,
    /// Number of attention heads; divides the inner size.
    pub heads: usize,
    /// Size between the two layers of a feed-forward layer.
    pub intermediate_size: usize,
    /// Number of feed-forward layers, at least 1.
    pub feed_forwards: usize,
    /// Their activation.
    pub activation: Activation,
}

/// One block.
pub(in crate::architectures) struct Bottleneck<O: Ops> {
    config: BottleneckConfig,
    projections: O::Linear,
    output: O::Linear,
    /// What the attention is added to.
    input: O::Linear,
    feed_forwards: Vec<FeedForward<O>>,
    /// Layer out of the bottleneck.
    widened: O::Linear,
    /// Factors of what that is added to.
    kept: O::Norm,
}

struct FeedForward<O: Ops> {
    layers: [O::Linear; 2],
    /// Factors of what they are added to.
    kept: O::Norm,
}

/// A linear layer in host memory: weights `[inputs, outputs]`, row-major, and biases.
pub(in crate::architectures) struct Affine {
    weight: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
}

/// What stands in for a norm: factors and shifts.
pub(in crate::architectures) struct Shift {
    factors: Vec<f32>,
    shifts: Vec<f32>,
}

impl Shift {
    /// Takes the factors `{prefix}.weight` and the shifts `{prefix}.bias`.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take<O: Ops>(
        layers: &mut Layers<'_, O>,
        prefix: &str,
        width: usize,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            factors: layers.weights.take(&format!("{prefix}.weight"), &[width])?,
            shifts: layers.weights.take(&format!("{prefix}.bias"), &[width])?,
        })
    }

    /// Returns the factors for [`Ops::scale`].
    pub(in crate::architectures) fn factors<O: Ops>(self, ops: &O) -> O::Norm {
        ops.norm(self.factors, None, 0.0)
    }
}

impl Affine {
    /// Takes the linear layer `{prefix}`.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take<O: Ops>(
        layers: &mut Layers<'_, O>,
        prefix: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, LoadError> {
        let weight = format!("{prefix}.weight");
        Ok(Self {
            weight: layers.weights.take_transposed(&weight, inputs, outputs)?,
            bias: layers.weights.take(&format!("{prefix}.bias"), &[outputs])?,
            inputs,
        })
    }

    /// Multiplies the outputs by the factors; and adds the shifts, if `shifted`.
    pub(in crate::architectures) fn scaled(mut self, by: &Shift, shifted: bool) -> Self {
        for row in self.weight.chunks_mut(self.bias.len().max(1)) {
            for (weight, factor) in row.iter_mut().zip(&by.factors) {
                *weight *= factor;
            }
        }
        for (bias, (factor, shift)) in self.bias.iter_mut().zip(by.factors.iter().zip(&by.shifts)) {
            *bias = *bias * factor + if shifted { *shift } else { 0.0 };
        }
        self
    }

    /// Returns the layer that does this one and then `next`.
    fn then(&self, next: &Self) -> Self {
        let outputs = next.bias.len().max(1);
        let product = |row: &[f32], bias: Option<&[f32]>| -> Vec<f32> {
            let mut sums: Vec<f64> = match bias {
                Some(bias) => bias.iter().map(|bias| f64::from(*bias)).collect(),
                None => vec![0.0; outputs],
            };
            for (value, weights) in row.iter().zip(next.weight.chunks(outputs)) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += f64::from(*value) * f64::from(*weight);
                }
            }
            sums.into_iter().map(|sum| sum as f32).collect()
        };
        let rows = self.weight.chunks(self.bias.len().max(1));
        Self {
            weight: rows.flat_map(|row| product(row, None)).collect(),
            bias: product(&self.bias, Some(&next.bias)),
            inputs: self.inputs,
        }
    }

    /// Returns layers of the same input as one, whose outputs are theirs, in order.
    fn beside(parts: &[Self], inputs: usize) -> Self {
        let mut weight = Vec::with_capacity(parts.iter().map(|part| part.weight.len()).sum());
        for row in 0..inputs {
            for part in parts {
                let outputs = part.bias.len();
                weight.extend(
                    part.weight
                        .get(row * outputs..(row + 1) * outputs)
                        .unwrap_or_default(),
                );
            }
        }
        Self {
            weight,
            bias: parts.iter().flat_map(|part| part.bias.iter().copied()).collect(),
            inputs,
        }
    }

    /// Uploads the layer.
    pub(in crate::architectures) fn upload<O: Ops>(self, layers: &mut Layers<'_, O>) -> O::Linear {
        let outputs = self.bias.len();
        layers.upload_folded(self.weight, self.bias, self.inputs, outputs)
    }
}

impl<O: Ops> Bottleneck<O> {
    /// Takes the blocks of a partition from a checkpoint.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take), and [`LoadError::TooManyPartitions`].
    pub(in crate::architectures) fn take_all(
        layers: &mut Layers<'_, O>,
        config: BottleneckConfig,
        blocks: &[BlockConfig],
        partition: Partition,
    ) -> Result<Vec<Self>, LoadError> {
        let blocks = of_partition(blocks, partition, layers.weights.file())?.iter();
        blocks
            .map(|block| Self::take(layers, config, &block.prefix))
            .collect()
    }

    fn take(layers: &mut Layers<'_, O>, config: BottleneckConfig, prefix: &str) -> Result<Self, LoadError> {
        let BottleneckConfig { width, inner, .. } = config;
        let at = |name: &str| format!("{prefix}.{name}");
        let mut entry = |name: &str| {
            let dense = Affine::take(layers, &at(&format!("bottleneck.{name}.dense")), width, inner)?;
            let norm = Shift::take(layers, &at(&format!("bottleneck.{name}.LayerNorm")), inner)?;
            Ok::<_, LoadError>(dense.scaled(&norm, true))
        };
        let (input, shared) = (entry("input")?, entry("attention")?);
        let mut projection = |name: &str, inputs| Affine::take(layers, &at(name), inputs, inner);
        let query = shared.then(&projection("attention.self.query", inner)?);
        let key = shared.then(&projection("attention.self.key", inner)?);
        let value = projection("attention.self.value", width)?;
        let output = projection("attention.output.dense", inner)?;
        let norm = Shift::take(layers, &at("attention.output.LayerNorm"), inner)?;
        let mut feed_forwards = Vec::new();
        for place in 1..config.feed_forwards {
            let prefix = at(&format!("ffn.{}.", place - 1));
            feed_forwards.push(FeedForward::take(layers, config, &prefix)?);
        }
        feed_forwards.push(FeedForward::take(layers, config, &at(""))?);
        // The folded projections are larger than the layers that were taken.
        let (folded, taken) = (3 * width * inner, 2 * inner * (width + inner));
        layers.weights.count_prepared(taken, folded * size_of::<f32>());
        let widened = Affine::take(layers, &at("output.bottleneck.dense"), inner, width)?;
        let last = Shift::take(layers, &at("output.bottleneck.LayerNorm"), width)?;
        Ok(Self {
            config,
            projections: Affine::beside(&[query, key, value], width).upload(layers),
            output: output.scaled(&norm, true).upload(layers),
            input: input.scaled(&norm, false).upload(layers),
            feed_forwards,
            widened: widened.scaled(&last, true).upload(layers),
            kept: last.factors(layers.ops),
        })
    }

    /// Computes the block, as [`Block::forward`](super::Block::forward).
    pub(in crate::architectures) fn forward(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
    ) -> O::Matrix {
        let BottleneckConfig {
            width, inner, heads, ..
        } = self.config;
        let attention = EncoderAttention {
            heads,
            scale: 1.0 / ((inner / heads.max(1)) as f32).sqrt(),
            window: None,
            leading: None,
            position_bias: None,
            distances: None,
            pairs: None,
            kinds: None,
        };
        let projected = ops.multiply(x, &self.projections);
        let attended = ops.attend_sequences(&projected, sequences, &attention);
        let mut states = ops.multiply(&attended, &self.output);
        ops.add(&mut states, &ops.multiply(x, &self.input));
        for FeedForward { layers, kept } in &self.feed_forwards {
            let [up, down] = layers;
            let mut fed = ops.feed_forward(&states, [up, down], self.config.activation, false);
            ops.scale(&mut states, kept);
            ops.add(&mut fed, &states);
            states = fed;
        }
        let count: usize = sequences.iter().map(|mask| mask.len()).sum();
        let whole = Span {
            matrix: x,
            from: 0,
            count,
        };
        let mut kept = ops.gather(&[whole], width);
        ops.scale(&mut kept, &self.kept);
        ops.add(&mut kept, &ops.multiply(&states, &self.widened));
        kept
    }
}

impl<O: Ops> FeedForward<O> {
    fn take(layers: &mut Layers<'_, O>, config: BottleneckConfig, prefix: &str) -> Result<Self, LoadError> {
        let (inner, between) = (config.inner, config.intermediate_size);
        let up = layers.linear(&format!("{prefix}intermediate.dense"), inner, between)?;
        let down = Affine::take(layers, &format!("{prefix}output.dense"), between, inner)?;
        let norm = Shift::take(layers, &format!("{prefix}output.LayerNorm"), inner)?;
        let down = down.scaled(&norm, true).upload(layers);
        Ok(Self {
            layers: [up, down],
            kept: norm.factors(layers.ops),
        })
    }
}
