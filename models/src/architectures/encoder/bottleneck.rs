//! Blocks of `MobileBERT` (Sun et al. 2020, "`MobileBERT`: a Compact Task-Agnostic BERT for Resource-Limited
//! Devices"): attention and feed-forwards that are narrower than the hidden states.
//!
//! `MobileBERT`'s norm is a scale and a shift per element, so it is folded into the preceding layers; only the
//! residual inputs are scaled at run time. The bottleneck's input layers are linear, and are folded into the following
//! ones.

use kaskade_policy::plan::Partition;

use super::{BlockConfig, of_partition};
use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{Activation, EncoderAttention, Ops, Span};

/// Dimensions of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::architectures) struct BottleneckConfig {
    /// Hidden size between blocks.
    pub width: usize,
    /// Hidden size inside a block.
    pub inner: usize,
    /// Number of attention heads; divides `inner`.
    pub heads: usize,
    /// Intermediate size of a feed-forward.
    pub intermediate_size: usize,
    /// Number of feed-forwards, at least 1.
    pub feed_forwards: usize,
    /// Activation of the feed-forwards.
    pub activation: Activation,
}

/// One block.
pub(in crate::architectures) struct Bottleneck<O: Ops> {
    config: BottleneckConfig,
    projections: O::Linear,
    output: O::Linear,
    /// Layer that computes the residual input of the attention.
    input: O::Linear,
    feed_forwards: Vec<FeedForward<O>>,
    /// Output layer of the bottleneck.
    widened: O::Linear,
    /// Scale of the residual input of `widened`.
    kept: O::Norm,
}

struct FeedForward<O: Ops> {
    layers: [O::Linear; 2],
    /// Scale of the residual input.
    kept: O::Norm,
}

/// A linear layer in host memory: weights `[inputs, outputs]`, row-major, and biases.
pub(in crate::architectures) struct Affine {
    weight: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
}

/// Scale and shift that replace a norm.
pub(in crate::architectures) struct Shift {
    factors: Vec<f32>,
    shifts: Vec<f32>,
}

impl Shift {
    /// Takes the scale `{prefix}.weight` and the shift `{prefix}.bias`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Returns the scale for [`Ops::scale`].
    pub(in crate::architectures) fn factors<O: Ops>(self, ops: &O) -> O::Norm {
        ops.norm(self.factors, None, 0.0)
    }
}

impl Affine {
    /// Takes the linear layer `{prefix}`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
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

    /// Folds a scale into the layer, and also the shift if `shifted`.
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

    /// Merges this layer and `next` into one.
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

    /// Merges layers with the same input into one, with their outputs concatenated.
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
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take), and [`LoadError::TooManyPartitions`].
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
        // The folded projections are larger than the layers that they replace.
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

    /// Computes the block, like [`Block::forward`](super::Block::forward).
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
