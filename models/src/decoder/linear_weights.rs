//! Weights of linear layers and norms in host memory, as in the checkpoint.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::checkpoint::{LoadError, Weights, transposed};
use crate::ops::Ops;
use crate::ops::cpu::Cpu;
use crate::precision::{WeightType, decode, encode};

/// Weight `[inputs, outputs]` of a linear layer, row-major, and its bias, empty without one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinearWeights {
    /// Weight as f32; empty if it is encoded.
    pub weight: Vec<f32>,
    /// Weight in a type other than f32, which keeps a model in host memory as small as its file: by output if the type
    /// is quantised, else row-major.
    encoded: Option<(WeightType, Vec<u8>)>,
    /// Whether the weight is the transpose of the model's embedding, which is stored once; `weight` is then empty.
    pub(crate) shared: bool,
    /// The bias.
    pub bias: Vec<f32>,
    /// Input size.
    pub inputs: usize,
    /// Output size.
    pub outputs: usize,
}

/// Weights of a norm; an RMS norm if `beta` is `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NormWeights {
    /// Scale (weight).
    pub gamma: Vec<f32>,
    /// Offset (bias).
    pub beta: Option<Vec<f32>>,
}

impl LinearWeights {
    /// Returns the number of elements of weight and bias, without a shared weight.
    pub(crate) fn elements(&self) -> usize {
        let weight = if self.shared {
            0
        } else {
            self.inputs * self.outputs
        };
        weight + self.bias.len()
    }

    /// Encodes the weight as a type that can represent it.
    #[must_use]
    pub(super) fn stored_as(mut self, kind: WeightType) -> Self {
        let kind = kind.for_rows(self.inputs, &self.weight);
        if kind == WeightType::F32 || self.encoded.is_some() || self.shared {
            return self;
        }
        let weight = std::mem::take(&mut self.weight);
        let bytes = if kind.is_quantised() {
            encode(&transposed(&weight, self.outputs), kind)
        } else {
            encode(&weight, kind)
        };
        self.encoded = Some((kind, bytes));
        self
    }

    /// Decodes the weight, if it is encoded.
    #[must_use]
    pub(crate) fn decoded(mut self) -> Self {
        if let Some((kind, bytes)) = self.encoded.take() {
            let mut weight = vec![0.0; self.inputs * self.outputs];
            decode(&bytes, kind, &mut weight);
            self.weight = if kind.is_quantised() {
                transposed(&weight, self.inputs)
            } else {
                weight
            };
        }
        self
    }

    /// Returns the memory of weight and bias if the weight has this type, without a shared weight, bytes.
    pub(crate) fn bytes(&self, kind: WeightType) -> usize {
        if self.shared {
            return size_of_val(self.bias.as_slice());
        }
        let kind = match &self.encoded {
            Some((kind, _)) => *kind,
            None => kind.for_rows(self.inputs, &self.weight),
        };
        kind.bytes(self.inputs * self.outputs) + size_of_val(self.bias.as_slice())
    }

    /// Takes the linear layer `{name}.weight` in torch's layout `[outputs, inputs]`, with `{name}.bias` if `bias`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub fn take(
        weights: &mut Weights,
        name: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            encoded: None,
            shared: false,
            weight: weights.take_transposed(&format!("{name}.weight"), inputs, outputs)?,
            bias: bias_of(weights, name, outputs, bias)?,
            inputs,
            outputs,
        })
    }

    /// Takes a linear layer with bias whose weight is stored as `[inputs, outputs]`, as in GPT-2.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn take_input_major(
        weights: &mut Weights,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            encoded: None,
            shared: false,
            weight: weights.take_input_major(&format!("{name}.weight"), inputs, outputs)?,
            bias: bias_of(weights, name, outputs, true)?,
            inputs,
            outputs,
        })
    }

    /// Creates a layer with the weight `[inputs, outputs]`; the bias may be empty.
    pub(super) fn input_major(weight: Vec<f32>, bias: Vec<f32>, inputs: usize) -> Self {
        Self {
            outputs: weight.len() / inputs.max(1),
            weight,
            bias,
            inputs,
            ..Self::default()
        }
    }

    /// Creates a head whose weight is the transpose of the model's embedding `[outputs, inputs]`, which is stored
    /// once.
    pub(super) fn shared(inputs: usize, outputs: usize) -> Self {
        Self {
            shared: true,
            inputs,
            outputs,
            ..Self::default()
        }
    }

    /// Creates a head whose weight is a copy of the embedding `[outputs, inputs]`.
    pub(super) fn tied(embedding: &[f32], inputs: usize) -> Self {
        Self {
            encoded: None,
            shared: false,
            weight: transposed(embedding, inputs),
            bias: Vec::new(),
            inputs,
            outputs: embedding.len() / inputs.max(1),
        }
    }

    /// Concatenates the outputs of two layers with the same inputs.
    #[must_use]
    pub(crate) fn concat_outputs(self, other: &Self) -> Self {
        let (left, right) = (self.outputs.max(1), other.outputs.max(1));
        let rows = self.weight.chunks(left).zip(other.weight.chunks(right));
        Self {
            encoded: None,
            shared: false,
            weight: rows
                .flat_map(|(left, right)| left.iter().chain(right))
                .copied()
                .collect(),
            bias: [self.bias, other.bias.clone()].concat(),
            inputs: self.inputs,
            outputs: self.outputs + other.outputs,
        }
    }

    /// Concatenates the outputs of layers with the same inputs; returns an empty layer for none.
    pub(super) fn concatenated(layers: Vec<Self>) -> Self {
        let all = layers
            .into_iter()
            .reduce(|first, second| first.concat_outputs(&second));
        all.unwrap_or_default()
    }

    /// Applies the layer, without bias, to rows of inputs; returns rows of outputs.
    pub(super) fn of_rows(self, rows: Vec<f32>) -> Vec<f32> {
        let weight = Cpu.prepare(self.weight, self.inputs, self.outputs, WeightType::F32);
        let linear = Cpu.linear(weight, Vec::new(), self.inputs, self.outputs);
        let rows = Cpu.upload(rows, self.inputs);
        Cpu.recycle(Cpu.multiply(&rows, &linear))
    }

    /// Merges this layer, which has no bias, and the next one into one layer.
    pub(super) fn then(self, next: Self) -> Self {
        Self {
            bias: next.bias.clone(),
            inputs: self.inputs,
            outputs: next.outputs,
            weight: next.of_rows(self.weight),
            ..Self::default()
        }
    }

    /// Splits a layer by outputs; the first part has `outputs` of them.
    pub fn split(self, outputs: usize) -> (Self, Self) {
        let rows = || self.weight.chunks(self.outputs.max(1));
        let part = |range: std::ops::Range<usize>| Self {
            encoded: None,
            shared: false,
            weight: rows()
                .flat_map(|row| row.get(range.clone()).unwrap_or_default())
                .copied()
                .collect(),
            bias: self.bias.get(range.clone()).unwrap_or_default().to_vec(),
            inputs: self.inputs,
            outputs: range.len(),
        };
        (part(0..outputs), part(outputs..self.outputs))
    }

    /// Reorders outputs that alternate between `parts` parts, `size` outputs at a time, so that each part is
    /// contiguous. GPT-NeoX stores query, key and value of a head side by side.
    #[must_use]
    pub(crate) fn by_part(self, size: usize, parts: usize) -> Self {
        let (size, parts) = (size.max(1), parts.max(1));
        if parts == 1 {
            return self;
        }
        let reorder = |row: &[f32], to: &mut Vec<f32>| {
            for part in 0..parts {
                if size == 1 {
                    to.extend(row.iter().skip(part).step_by(parts));
                } else {
                    let chunks = row.chunks(size).skip(part).step_by(parts);
                    chunks.for_each(|chunk| to.extend_from_slice(chunk));
                }
            }
        };
        let mut weight = Vec::with_capacity(self.weight.len());
        for row in self.weight.chunks(self.outputs.max(1)) {
            reorder(row, &mut weight);
        }
        let mut bias = Vec::with_capacity(self.bias.len());
        reorder(&self.bias, &mut bias);
        Self { weight, bias, ..self }
    }

    /// Reorders outputs of groups, each with `queries` queries, a key and a value of `size` outputs, so that queries,
    /// keys and values are contiguous. Falcon's new architecture stores them in groups.
    #[must_use]
    pub(super) fn by_group(self, size: usize, queries: usize) -> Self {
        self.by_parts(&[queries * size, size, size])
    }

    /// Reorders outputs of groups, each with parts of these sizes, so that each part is contiguous.
    #[must_use]
    pub(super) fn by_parts(self, sizes: &[usize]) -> Self {
        let each = sizes.iter().sum::<usize>().max(1);
        let reorder = |row: &[f32], to: &mut Vec<f32>| {
            let mut from = 0;
            for size in sizes {
                for group in row.chunks(each) {
                    to.extend_from_slice(group.get(from..from + size).unwrap_or_default());
                }
                from += size;
            }
        };
        let mut weight = Vec::with_capacity(self.weight.len());
        for row in self.weight.chunks(self.outputs.max(1)) {
            reorder(row, &mut weight);
        }
        let mut bias = Vec::with_capacity(self.bias.len());
        reorder(&self.bias, &mut bias);
        Self { weight, bias, ..self }
    }

    /// Repeats every output `count` times.
    #[must_use]
    pub(super) fn repeated_outputs(self, count: usize) -> Self {
        let repeat = |values: &[f32]| -> Vec<f32> {
            let each = values.iter().flat_map(|value| std::iter::repeat_n(*value, count));
            each.collect()
        };
        Self {
            weight: repeat(&self.weight),
            bias: repeat(&self.bias),
            outputs: self.outputs * count,
            ..self
        }
    }

    /// Pads each group of `size` outputs with zeros to `padded`.
    #[must_use]
    pub(super) fn padded_outputs(self, size: usize, padded: usize) -> Self {
        let pad = |values: &[f32]| -> Vec<f32> {
            let groups = values.chunks(size.max(1));
            let each =
                groups.flat_map(|group| group.iter().copied().chain(std::iter::repeat(0.0)).take(padded));
            each.collect()
        };
        Self {
            weight: pad(&self.weight),
            bias: pad(&self.bias),
            outputs: self.outputs / size.max(1) * padded,
            ..self
        }
    }

    /// Adds inputs with zero weights after each group of `size` inputs, which then has `padded` of them.
    #[must_use]
    pub(super) fn padded_inputs(self, size: usize, padded: usize) -> Self {
        let groups = self.weight.chunks((size * self.outputs).max(1));
        let length = padded * self.outputs;
        let weight =
            groups.flat_map(|group| group.iter().copied().chain(std::iter::repeat(0.0)).take(length));
        Self {
            weight: weight.collect(),
            inputs: self.inputs / size.max(1) * padded,
            ..self
        }
    }

    /// Multiplies the weights by a factor for the inputs, and every output by its own factor.
    #[must_use]
    pub(super) fn scaled(mut self, input: f32, output: impl Fn(usize) -> f32) -> Self {
        let factors: Vec<f32> = (0..self.outputs).map(output).collect();
        for row in self.weight.chunks_mut(self.outputs.max(1)) {
            for (weight, factor) in row.iter_mut().zip(&factors) {
                *weight *= input * factor;
            }
        }
        for (bias, factor) in self.bias.iter_mut().zip(&factors) {
            *bias *= factor;
        }
        self
    }

    pub(super) fn random(rng: &mut ChaCha8Rng, inputs: usize, outputs: usize, biased: bool) -> Self {
        let deviation = (3.0 / inputs as f32).sqrt();
        let mut draw = |count: usize, scale: f32| {
            (0..count)
                .map(|_| rng.random_range(-1.0..1.0_f32) * scale)
                .collect()
        };
        Self {
            encoded: None,
            shared: false,
            weight: draw(inputs * outputs, deviation),
            bias: if biased { draw(outputs, 0.1) } else { Vec::new() },
            inputs,
            outputs,
        }
    }
}

fn bias_of(weights: &mut Weights, name: &str, outputs: usize, bias: bool) -> Result<Vec<f32>, LoadError> {
    if bias {
        weights.take(&format!("{name}.bias"), &[outputs])
    } else {
        Ok(Vec::new())
    }
}

impl NormWeights {
    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.gamma.len() + self.beta.as_ref().map_or(0, Vec::len)
    }

    /// Takes the layer norm `{name}.weight` and `{name}.bias`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub fn take(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gamma: weights.take(&format!("{name}.weight"), &[width])?,
            beta: Some(weights.take(&format!("{name}.bias"), &[width])?),
        })
    }

    /// Takes the RMS norm `{name}.weight`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn take_rms(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gamma: weights.take(&format!("{name}.weight"), &[width])?,
            beta: None,
        })
    }

    /// Takes the layer norm `{name}.weight`, with zero offsets.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(crate) fn take_unbiased(weights: &mut Weights, name: &str, width: usize) -> Result<Self, LoadError> {
        Ok(Self {
            gamma: weights.take(&format!("{name}.weight"), &[width])?,
            // `None` would mean an RMS norm.
            beta: Some(vec![0.0; width]),
        })
    }

    /// Returns a layer norm with unit weight.
    pub(super) fn plain(width: usize) -> Self {
        Self {
            gamma: vec![1.0; width],
            beta: Some(vec![0.0; width]),
        }
    }

    /// Returns an RMS norm with unit weight.
    pub(super) fn plain_rms(width: usize) -> Self {
        Self {
            gamma: vec![1.0; width],
            beta: None,
        }
    }

    /// Normalises a vector in place; without offsets, by its root mean square.
    pub(super) fn apply(&self, vector: &mut [f32], epsilon: f32) {
        let count = vector.len().max(1) as f32;
        let mean = match self.beta {
            Some(_) => vector.iter().sum::<f32>() / count,
            None => 0.0,
        };
        let variance = vector.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count;
        let scale = 1.0 / (variance + epsilon).sqrt();
        for (value, gamma) in vector.iter_mut().zip(&self.gamma) {
            *value = (*value - mean) * scale * gamma;
        }
        for (value, beta) in vector.iter_mut().zip(self.beta.iter().flatten()) {
            *value += beta;
        }
    }

    /// Adds a constant to the weights; Gemma stores them minus 1.
    #[must_use]
    pub(crate) fn plus(mut self, offset: f32) -> Self {
        self.gamma.iter_mut().for_each(|gamma| *gamma += offset);
        self
    }

    pub(super) fn random(rng: &mut ChaCha8Rng, width: usize, rms: bool) -> Self {
        let mut draw = |around: f32| (0..width).map(|_| around + rng.random_range(-0.1..0.1)).collect();
        Self {
            gamma: draw(1.0),
            beta: (!rms).then(|| draw(0.0)),
        }
    }
}
