//! Operations on any device of burn.
//!
//! The device's library decides how matrix products pad and batch, so the last bits of a row may depend on the other
//! rows. Greedy tokens differ from those of the CPU kernels only if two logits are almost equal. A product with bf16
//! or f16 weights rounds its inputs and results to that type, as torch does; sums inside it, and everything between
//! products, are f32. On GPUs, `kernels` replaces chains of burn operations that would be too slow; products with few
//! rows then round nothing.

use std::borrow::Cow;

use burn::tensor::activation::{gelu, gelu_approximate, relu, sigmoid, silu, tanh};
use burn::tensor::{Bytes, DType, Device, IndexingUpdateOp, Int, StreamId, Tensor, TensorData};

use super::{
    Activation, AttentionSpans, Convolution, EncoderAttention, Heads, HostWords, Ops, OpsError,
    PreparedWeight, Rotary, ScoreRules, Span,
};
use crate::ops::elementwise::QUICK_GELU;
use crate::precision::WeightType;
use indices::{indices, signed};
use uploads::{Angles, Uploads};

mod cached_attention;
mod encoders;
mod images;
mod indices;
#[cfg(feature = "gpu")]
mod kernels;
#[cfg(all(test, feature = "wgpu"))]
mod kernels_tests;
mod layout;
#[cfg(test)]
mod tests;
mod uploads;

/// A device of burn.
#[derive(Debug, Clone)]
pub struct Burn {
    device: Device,
    uploads: Uploads,
    /// Stream for transfers. A device allocates memory per stream, so all threads use the same one.
    transfers: StreamId,
    /// Capabilities of this crate's kernels on the device; `None` if they do not run there.
    #[cfg(feature = "gpu")]
    kernels: Option<kernels::Capabilities>,
}

/// Minimum size of a tensor kept in pinned memory, words; biases and norms are smaller.
const HELD: usize = 1 << 14;

/// A linear layer.
#[derive(Debug)]
pub struct BurnLinear {
    weight: Tensor<2>,
    bias: Option<Tensor<2>>,
}

/// Weights of a norm.
#[derive(Debug)]
pub struct BurnNorm {
    gamma: Tensor<2>,
    beta: Option<Tensor<2>>,
    epsilon: f32,
}

/// Returns burn's type for 16-bit weights; `None` for others.
fn half_type(kind: WeightType) -> Option<DType> {
    match kind {
        WeightType::Bf16 => Some(DType::BF16),
        WeightType::F16 => Some(DType::F16),
        WeightType::F32 | WeightType::Q8_0 | WeightType::Q4_0 => None,
    }
}

impl Burn {
    /// Creates the operations on a device.
    pub fn new(device: Device) -> Self {
        Self {
            #[cfg(feature = "gpu")]
            kernels: kernels::of_device(&device),
            device,
            uploads: Uploads::default(),
            transfers: StreamId::allocate(),
        }
    }

    fn tensor(&self, values: Vec<f32>, width: usize) -> Tensor<2> {
        let rows = values.len().checked_div(width).unwrap_or_default();
        Tensor::from_data(TensorData::new(values, [rows, width]), &self.device)
    }

    fn angles(&self, rotary: &Rotary, positions: &[usize]) -> Angles {
        self.uploads.angles(rotary, positions, || {
            let angles = positions
                .iter()
                .flat_map(|position| rotary.frequencies.iter().map(|angle| *position as f32 * angle));
            let scaled = |(sin, cos): (f32, f32)| (sin * rotary.scale, cos * rotary.scale);
            let (sines, cosines): (Vec<f32>, Vec<f32>) = angles.map(|angle| scaled(angle.sin_cos())).unzip();
            let shape = [positions.len(), 1, rotary.frequencies.len()];
            let tensor = |values| Tensor::from_data(TensorData::new(values, shape), &self.device);
            (tensor(sines), tensor(cosines))
        })
    }
}

fn rows(span: &Span<'_, Tensor<2>>) -> Tensor<2> {
    let [_, width] = span.matrix.dims();
    span.matrix
        .clone()
        .slice([span.from..span.from + span.count, 0..width])
}

impl Ops for Burn {
    type Matrix = Tensor<2>;
    type Linear = BurnLinear;
    type Norm = BurnNorm;

    fn upload(&self, values: Vec<f32>, width: usize) -> Tensor<2> {
        self.tensor(values, width)
    }

    fn values<'a>(&self, matrix: &'a Tensor<2>) -> Result<Cow<'a, [f32]>, OpsError> {
        let values = matrix.clone().try_into_vec_as::<f32>();
        values.map(Cow::Owned).map_err(|error| OpsError {
            reason: error.to_string(),
        })
    }

    fn gather(&self, spans: &[Span<'_, Tensor<2>>], width: usize) -> Tensor<2> {
        if spans.is_empty() {
            return self.tensor(Vec::new(), width);
        }
        Tensor::cat(spans.iter().map(rows).collect(), 0)
    }

    fn zeros(&self, rows: usize, width: usize) -> Tensor<2> {
        Tensor::zeros([rows, width], &self.device)
    }

    fn write(&self, target: &mut Tensor<2>, source: &Tensor<2>, rows: &[(usize, usize)]) {
        let [count, _] = source.dims();
        let [from, to] = self.uploads.pairs(rows, || {
            let list =
                |of: fn(&(usize, usize)) -> usize| indices(rows.iter().map(of).collect(), &self.device);
            [list(|row| row.0), list(|row| row.1)]
        });
        let whole = rows.len() == count && rows.iter().enumerate().all(|(index, row)| index == row.0);
        let values = if whole {
            source.clone()
        } else {
            source.clone().select(0, from)
        };
        let places: Tensor<2, Int> = to.reshape([rows.len(), 1]);
        target.inplace(|target| target.scatter_nd(places, values, IndexingUpdateOp::Assign));
    }

    fn prepare(&self, weight: Vec<f32>, inputs: usize, _outputs: usize, kind: WeightType) -> PreparedWeight {
        PreparedWeight::row_major(weight, inputs, kind)
    }

    fn linear(&self, prepared: PreparedWeight, bias: Vec<f32>, inputs: usize, outputs: usize) -> BurnLinear {
        let words = HostWords::Owned(prepared.words);
        self.linear_from_host((prepared.kind, words), bias, inputs, outputs)
    }

    const HAS_DEVICE_MEMORY: bool = true;

    fn hold(&self, words: Vec<u32>) -> HostWords {
        let count = words.len();
        if count < HELD {
            return HostWords::Shared(words.into());
        }
        let mut data = TensorData::from_bytes(Bytes::from_elems(words), [count], DType::U32);
        self.device.staging(std::iter::once(&mut data));
        HostWords::Pinned(data.into_bytes().shared())
    }

    fn linear_from_host(
        &self,
        (kind, words): (WeightType, HostWords),
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> BurnLinear {
        let bytes = match words {
            HostWords::Pinned(bytes) => bytes,
            words => Bytes::from_elems(words.into_vec()),
        };
        let dtype = half_type(kind).unwrap_or(DType::F32);
        let data = TensorData::from_bytes(bytes, [inputs, outputs], dtype);
        let weight = Tensor::from_data(data, (&self.device, dtype));
        BurnLinear {
            weight,
            bias: (!bias.is_empty()).then(|| self.tensor(bias, outputs)),
        }
    }

    fn load(&self, from: &HostWords, _to: &mut [u32]) {
        let bytes = match from {
            HostWords::Pinned(bytes) => bytes.clone(),
            words => Bytes::from_elems(words.words().into_owned()),
        };
        let count = bytes.len() / size_of::<f32>();
        let data = TensorData::from_bytes(bytes, [count], DType::F32);
        drop(Tensor::<1>::from_data(data, &self.device));
        // A device error is reported with the next result.
        let _ = self.finish();
    }

    fn transferring<T>(&self, transfers: impl FnOnce() -> T) -> T {
        self.transfers.executes(transfers)
    }

    fn finish(&self) -> Result<(), OpsError> {
        self.device.sync().map_err(|error| OpsError {
            reason: error.to_string(),
        })
    }

    fn norm(&self, gamma: Vec<f32>, beta: Option<Vec<f32>>, epsilon: f32) -> BurnNorm {
        let width = gamma.len();
        BurnNorm {
            gamma: self.tensor(gamma, width),
            beta: beta.map(|beta| self.tensor(beta, width)),
            epsilon,
        }
    }

    fn normalise(&self, rows: &Tensor<2>, norm: &BurnNorm) -> Tensor<2> {
        #[cfg(feature = "gpu")]
        if self.kernels.is_some() {
            return kernels::normalised(rows, &norm.gamma, norm.beta.as_ref(), norm.epsilon);
        }
        let centred = match norm.beta {
            Some(_) => rows.clone() - rows.clone().mean_dim(1),
            None => rows.clone(),
        };
        let variance = (centred.clone() * centred.clone()).mean_dim(1);
        let scaled = centred / (variance + norm.epsilon).sqrt() * norm.gamma.clone();
        match &norm.beta {
            Some(beta) => scaled + beta.clone(),
            None => scaled,
        }
    }

    fn normalise_heads(&self, rows: &mut Tensor<2>, heads: usize, norm: &BurnNorm) {
        let [count, _] = rows.dims();
        let [_, head_dim] = norm.gamma.dims();
        if count == 0 {
            return;
        }
        let range = [0..count, 0..heads * head_dim];
        let part: Tensor<2> = rows
            .clone()
            .slice(range.clone())
            .reshape([count * heads, head_dim]);
        let normed: Tensor<2> = self.normalise(&part, norm).reshape([count, heads * head_dim]);
        rows.inplace(|rows| rows.slice_assign(range, normed));
    }

    fn multiply(&self, rows: &Tensor<2>, linear: &BurnLinear) -> Tensor<2> {
        #[cfg(feature = "gpu")]
        if let Some(can) = self.kernels
            && let Some(product) = kernels::product(can, rows, &linear.weight, linear.bias.as_ref())
        {
            return product;
        }
        let weight = linear.weight.clone();
        let product = match weight.dtype() {
            DType::F32 => rows.clone().matmul(weight),
            dtype => rows.clone().cast(dtype).matmul(weight).cast(DType::F32),
        };
        match &linear.bias {
            Some(bias) => product + bias.clone(),
            None => product,
        }
    }

    fn scale(&self, rows: &mut Tensor<2>, factors: &BurnNorm) {
        rows.inplace(|rows| rows * factors.gamma.clone());
    }

    fn add(&self, rows: &mut Tensor<2>, other: &Tensor<2>) {
        rows.inplace(|rows| rows + other.clone());
    }

    fn times(&self, rows: &mut Tensor<2>, other: &Tensor<2>) {
        rows.inplace(|rows| rows * other.clone());
    }

    fn add_scaled(&self, rows: &mut Tensor<2>, other: &Tensor<2>, at: &[usize], factors: &[f32]) {
        let indices: Vec<i64> = at.iter().map(|row| signed(*row)).collect();
        let indices = TensorData::new(indices, [at.len()]);
        let indices: Tensor<1, Int> = Tensor::from_data(indices, &self.device);
        let scaled = other.clone() * self.tensor(factors.to_vec(), 1);
        rows.inplace(|rows| rows.select_assign(0, indices, scaled, IndexingUpdateOp::Add));
    }

    fn activate(&self, rows: Tensor<2>, activation: Activation, gated: bool) -> Tensor<2> {
        #[cfg(feature = "gpu")]
        if self.kernels.is_some()
            && let Some(code) = kernels::code_of(activation)
        {
            return kernels::activated(rows, code, gated);
        }
        let of = |x: Tensor<2>| match activation {
            Activation::Relu => relu(x),
            Activation::Gelu => gelu(x),
            Activation::GeluTanh => gelu_approximate(x),
            Activation::Silu => silu(x),
            Activation::Tanh => tanh(x),
            Activation::SquaredRelu => relu(x.clone()) * x,
            Activation::Xielu { above, below, slope } => {
                let (high, low) = (relu(x.clone()), x.clone().clamp_max(0.0));
                let below = (low.clone().exp() - 1.0 - low) * below;
                high.clone() * high * above + below + x * slope
            }
            Activation::ClampedSilu { slope, limit } => {
                let least = x.clamp_max(limit);
                sigmoid(least.clone() * slope) * least
            }
            Activation::Clamp(limit) => x.clamp(-limit, limit),
            Activation::Relu6 => relu(x).clamp_max(6.0),
            Activation::Sigmoid => sigmoid(x),
            Activation::QuickGelu => x.clone() * sigmoid(x * QUICK_GELU),
            Activation::HardSigmoid => relu(x + 3.0).clamp_max(6.0) / 6.0,
            Activation::HardSwish => x.clone() * (relu(x + 3.0).clamp_max(6.0) / 6.0),
        };
        if !gated {
            return of(rows);
        }
        let [count, width] = rows.dims();
        let first = rows.clone().slice([0..count, 0..width / 2]);
        let second = rows.slice([0..count, width / 2..width]);
        match activation {
            Activation::ClampedSilu { limit, .. } => of(first) * (second.clamp(-limit, limit) + 1.0),
            _ => of(first) * second,
        }
    }

    fn rotate(
        &self,
        rows: &mut Tensor<2>,
        heads: usize,
        head_dim: usize,
        rotary: &Rotary,
        positions: &[usize],
    ) {
        let [count, width] = rows.dims();
        let (pairs, turned) = (rotary.frequencies.len(), heads * head_dim);
        if count == 0 || pairs == 0 {
            return;
        }
        let (sines, cosines) = self.angles(rotary, positions);
        #[cfg(feature = "gpu")]
        if self.kernels.is_some() {
            let turned = kernels::rotated(rows, &(sines, cosines), [heads, head_dim], rotary.neighbours);
            rows.inplace(|_| turned);
            return;
        }
        let x: Tensor<3> = rows
            .clone()
            .slice([0..count, 0..turned])
            .reshape([count, heads, head_dim]);
        // One element of each pair, `[rows, heads, pairs]`.
        let element = |second: usize| -> Tensor<3> {
            let part = x.clone().slice([0..count, 0..heads, 0..2 * pairs]);
            if rotary.neighbours {
                let part: Tensor<4> = part.reshape([count, heads, pairs, 2]);
                let part = part.slice([0..count, 0..heads, 0..pairs, second..second + 1]);
                part.reshape([count, heads, pairs])
            } else {
                part.slice([0..count, 0..heads, second * pairs..(second + 1) * pairs])
            }
        };
        let (a, b) = (element(0), element(1));
        let first = a.clone() * cosines.clone() - b.clone() * sines.clone();
        let second = b * cosines + a * sines;
        let both: Tensor<3> = if rotary.neighbours {
            let concat_outputs: Tensor<4> = Tensor::stack(vec![first, second], 3);
            concat_outputs.reshape([count, heads, 2 * pairs])
        } else {
            Tensor::cat(vec![first, second], 2)
        };
        let rest = x.slice([0..count, 0..heads, 2 * pairs..head_dim]);
        let whole = if 2 * pairs < head_dim {
            Tensor::cat(vec![both, rest], 2)
        } else {
            both
        };
        let turned_rows: Tensor<2> = whole.reshape([count, turned]);
        rows.inplace(|rows| rows.slice_assign([0..count, 0..turned], turned_rows));
        debug_assert_eq!(rows.dims(), [count, width]);
    }

    fn attend(
        &self,
        queries: &Tensor<2>,
        requests: &[AttentionSpans<'_, Tensor<2>>],
        heads: &Heads,
        rules: ScoreRules<'_, Tensor<2>>,
    ) -> Tensor<2> {
        // With kernels, this is faster for a single request too.
        #[cfg(feature = "gpu")]
        let together = self.kernels.is_some() || requests.len() > 1;
        #[cfg(not(feature = "gpu"))]
        let together = requests.len() > 1;
        if together && let Some(attended) = self.attend_together(queries, requests, heads, rules) {
            return attended;
        }
        let mut from = 0;
        let answers = requests.iter().map(|request| {
            let count = request.queries;
            from += count;
            let queries = queries
                .clone()
                .slice([from - count..from, 0..heads.query_width()]);
            self.attend_one(queries, request, heads, rules)
        });
        let answers: Vec<Tensor<2>> = answers.collect();
        Tensor::cat(answers, 0)
    }

    fn attend_sequences(
        &self,
        projected: &Tensor<2>,
        sequences: &[&[bool]],
        attention: &EncoderAttention<'_, Tensor<2>>,
    ) -> Tensor<2> {
        encoders::attend_sequences(projected, sequences, attention, &self.device)
    }

    fn convolve(&self, images: &Tensor<2>, convolution: &Convolution, linear: &BurnLinear) -> Tensor<2> {
        if convolution.is_by_pixel() {
            return self.multiply(images, linear);
        }
        self.multiply(&images::windows(images, convolution), linear)
    }

    fn depthwise_convolve(
        &self,
        images: &Tensor<2>,
        convolution: &Convolution,
        weights: &Tensor<2>,
    ) -> Tensor<2> {
        images::depthwise_convolve(images, convolution, weights)
    }

    fn max_pool(&self, images: &Tensor<2>, convolution: &Convolution) -> Tensor<2> {
        images::max_pool(images, convolution)
    }

    fn mean(&self, rows: &Tensor<2>, count: usize) -> Tensor<2> {
        images::by_image(rows, count).mean_dim(1).squeeze_dim(1)
    }

    fn scale_images(&self, rows: &mut Tensor<2>, count: usize, factors: &Tensor<2>) {
        let factors: Tensor<3> = factors.clone().unsqueeze_dim(1);
        let scaled = images::by_image(rows, count) * factors;
        let [height, width] = rows.dims();
        let scaled: Tensor<2> = scaled.reshape([height, width]);
        rows.inplace(|_| scaled);
    }

    fn global_response_norm(&self, rows: &mut Tensor<2>, count: usize, norm: &BurnNorm) {
        let factors = images::responses(rows, count, norm.epsilon) * norm.gamma.clone().unsqueeze() + 1.0;
        let scaled = images::by_image(rows, count) * factors;
        let [height, width] = rows.dims();
        let scaled: Tensor<2> = scaled.reshape([height, width]);
        rows.inplace(|_| match &norm.beta {
            Some(beta) => scaled + beta.clone(),
            None => scaled,
        });
    }

    fn select(&self, matrix: &Tensor<2>, rows: &[usize]) -> Tensor<2> {
        let [count, width] = matrix.dims();
        let missing = rows.iter().any(|row| *row >= count);
        let source = if missing {
            let zeros = Tensor::zeros([1, width], &self.device);
            Tensor::cat(vec![matrix.clone(), zeros], 0)
        } else {
            matrix.clone()
        };
        let rows = rows.iter().map(|row| (*row).min(count)).collect();
        source.select(0, indices(rows, &self.device))
    }

    fn with_width(&self, matrix: Tensor<2>, width: usize) -> Tensor<2> {
        let [rows, columns] = matrix.dims();
        matrix.reshape([(rows * columns).checked_div(width).unwrap_or_default(), width])
    }
}
