//! Tensor operations that models need, behind the trait [`Ops`].
//!
//! Two types implement it. [`Cpu`](cpu::Cpu) runs this crate's kernels: their results do not depend on the batch, bit
//! for bit, and weights are packed once. `Burn`, with the feature `burn`, runs on any device of burn, such as a GPU.
//! burn also has a CPU back end, but its matrix products pack the weights on every call, and it takes a third of the
//! build time.

#![expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` and `vectorize` is compiled for the vector extension"
)]

mod activation;
mod attention;
mod block_attention;
#[cfg(feature = "burn")]
pub mod burn;
mod convolution;
pub mod cpu;
mod cpu_layers;
pub(crate) mod elementwise;
mod encoder_attention;
mod epilogue;
mod feed_forward;
mod fused;
mod gemm;
mod layout;
#[cfg(test)]
mod not_finite_tests;
mod op_inputs;
mod packed;
mod pinned_host;
mod pooling;
mod quantised;
pub mod recurrent;
mod rows;
mod self_attention;
mod softmax;

use std::borrow::Cow;

use thiserror::Error;

pub use activation::Activation;
pub use encoder_attention::{DistanceRows, DistanceScores, EncoderAttention, PairScores, SegmentScores};
pub use epilogue::Epilogue;
pub use op_inputs::{AttentionSpans, Convolution, Heads, RelativeBias, Rotary, ScoreRules, Span};
pub use packed::PreparedWeight;
pub(crate) use packed::{from_words, to_words};
pub use pinned_host::HostWords;
pub(crate) use softmax::probabilities;

use crate::checkpoint::transposed;
use crate::precision::WeightType;

/// Failure of the device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the device failed: {reason}")]
pub struct OpsError {
    /// Message of the device.
    pub reason: String,
}

/// Operations on a device. Matrices are `[rows, width]`, f32.
pub trait Ops: Send + Sync + 'static {
    /// A matrix on the device.
    type Matrix: Send + Sync;
    /// A linear layer on the device.
    type Linear: Send + Sync;
    /// A norm on the device.
    type Norm: Send + Sync;

    /// Uploads row-major values as a matrix. The length of `values` must be a multiple of `width`.
    fn upload(&self, values: Vec<f32>, width: usize) -> Self::Matrix;

    /// Returns the memory of a matrix for reuse by the next [`Ops::upload`]; empty if reuse saves nothing.
    fn recycle(&self, matrix: Self::Matrix) -> Vec<f32> {
        drop(matrix);
        Vec::new()
    }

    /// Downloads a matrix's values, row-major.
    ///
    /// # Errors
    /// [`OpsError`] with the message of the device.
    fn values<'a>(&self, matrix: &'a Self::Matrix) -> Result<Cow<'a, [f32]>, OpsError>;

    /// Concatenates spans of rows into one matrix, in order; all spans are `width` wide.
    fn gather(&self, spans: &[Span<'_, Self::Matrix>], width: usize) -> Self::Matrix;

    /// Returns a matrix of zeros.
    fn zeros(&self, rows: usize, width: usize) -> Self::Matrix {
        self.upload(vec![0.0; rows * width], width)
    }

    /// Copies rows of `source` into a matrix of the same width. Each pair of `rows` is a row of `source` and its row
    /// in `target`; a target row occurs at most once.
    fn write(&self, target: &mut Self::Matrix, source: &Self::Matrix, rows: &[(usize, usize)]);

    /// Whether [`Ops::read_output`] can read linear layers, so that an embedding tied to the output head is stored
    /// once.
    const READS_OUTPUTS: bool = false;

    /// Packs the weight of a linear layer, `[inputs, outputs]` row-major, as `kind`, for host memory and for upload.
    /// Falls back to f32 if the device has no kernels for the type, or the type cannot represent the weight.
    fn prepare(&self, weight: Vec<f32>, inputs: usize, outputs: usize, kind: WeightType) -> PreparedWeight;

    /// Packs a weight as [`Ops::prepare`] does, from its transpose `[outputs, inputs]`.
    fn prepare_transposed(
        &self,
        weight: Vec<f32>,
        inputs: usize,
        outputs: usize,
        kind: WeightType,
    ) -> PreparedWeight {
        self.prepare(transposed(&weight, inputs), inputs, outputs, kind)
    }

    /// Writes the weights of one output of a linear layer to `out`, if the device [supports it](Ops::READS_OUTPUTS).
    fn read_output(&self, linear: &Self::Linear, output: usize, out: &mut [f32]) {
        let _ = (linear, output, out);
    }

    /// Creates a linear layer from a packed weight; the bias has `outputs` elements or none.
    fn linear(&self, prepared: PreparedWeight, bias: Vec<f32>, inputs: usize, outputs: usize)
    -> Self::Linear;

    /// Whether the device has its own memory, into which it copies tensors directly from host memory.
    const HAS_DEVICE_MEMORY: bool = false;

    /// Stores a tensor in the kind of host memory from which the device copies fastest, such as pinned memory.
    fn hold(&self, words: Vec<u32>) -> HostWords {
        HostWords::Shared(words.into())
    }

    /// Creates a linear layer as [`Ops::linear`] does, from a weight in host memory.
    fn linear_from_host(
        &self,
        (kind, words): (WeightType, HostWords),
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> Self::Linear {
        let words = words.into_vec();
        self.linear(PreparedWeight { kind, words }, bias, inputs, outputs)
    }

    /// Copies a tensor to the device and drops it there, for measurements. `to` is the copy's target on a device
    /// without memory of its own.
    fn load(&self, from: &HostWords, to: &mut [u32]) {
        to.copy_from_slice(&from.words());
    }

    /// Runs transfers to the device, concurrently with the computations of other threads.
    fn transferring<T>(&self, transfers: impl FnOnce() -> T) -> T {
        transfers()
    }

    /// Blocks until the device has finished the work that this thread submitted.
    ///
    /// # Errors
    /// [`OpsError`] with the message of the device.
    fn finish(&self) -> Result<(), OpsError> {
        Ok(())
    }

    /// Creates a layer norm, or an RMS norm if `beta` is `None`.
    fn norm(&self, gamma: Vec<f32>, beta: Option<Vec<f32>>, epsilon: f32) -> Self::Norm;

    /// Applies a norm to every row.
    fn normalise(&self, rows: &Self::Matrix, norm: &Self::Norm) -> Self::Matrix;

    /// Applies a norm to each of the first `heads` heads of every row separately, in place; the norm is as wide as a
    /// head.
    fn normalise_heads(&self, rows: &mut Self::Matrix, heads: usize, norm: &Self::Norm);

    /// Multiplies rows by a linear layer and adds its bias.
    fn multiply(&self, rows: &Self::Matrix, linear: &Self::Linear) -> Self::Matrix;

    /// Multiplies every row by the weight of a norm, in place, without normalising.
    fn scale(&self, rows: &mut Self::Matrix, factors: &Self::Norm);

    /// Adds `other` to `rows`.
    fn add(&self, rows: &mut Self::Matrix, other: &Self::Matrix);

    /// Multiplies `rows` by `other` of the same shape, element by element, in place.
    fn times(&self, rows: &mut Self::Matrix, other: &Self::Matrix);

    /// Adds row `i` of `other`, multiplied by `factors[i]`, to row `at[i]` of `rows`. No index occurs twice.
    fn add_scaled(&self, rows: &mut Self::Matrix, other: &Self::Matrix, at: &[usize], factors: &[f32]);

    /// Applies the activation to every element. If `gated`, multiplies the activation of each row's first half by its
    /// second half.
    fn activate(&self, rows: Self::Matrix, activation: Activation, gated: bool) -> Self::Matrix;

    /// Applies two linear layers in turn, with [`Ops::activate`] between them.
    fn feed_forward(
        &self,
        rows: &Self::Matrix,
        [up, down]: [&Self::Linear; 2],
        activation: Activation,
        gated: bool,
    ) -> Self::Matrix {
        self.multiply(&self.activate(self.multiply(rows, up), activation, gated), down)
    }

    /// Applies a norm to the rows, then a linear layer.
    fn multiply_normalised(
        &self,
        rows: &Self::Matrix,
        norm: &Self::Norm,
        linear: &Self::Linear,
    ) -> Self::Matrix {
        self.multiply(&self.normalise(rows, norm), linear)
    }

    /// Applies a linear layer and adds `residual`, which has the shape of the result.
    fn multiply_and_add(
        &self,
        rows: &Self::Matrix,
        linear: &Self::Linear,
        residual: &Self::Matrix,
    ) -> Self::Matrix {
        let mut out = self.multiply(rows, linear);
        self.add(&mut out, residual);
        out
    }

    /// Applies [`Ops::feed_forward`] to the rows, after `norm` if there is one, and adds the rows.
    fn feed_forward_residual(
        &self,
        rows: &Self::Matrix,
        norm: Option<&Self::Norm>,
        layers: [&Self::Linear; 2],
        activation: Activation,
        gated: bool,
    ) -> Self::Matrix {
        let normalised = norm.map(|norm| self.normalise(rows, norm));
        let mut out = self.feed_forward(normalised.as_ref().unwrap_or(rows), layers, activation, gated);
        self.add(&mut out, rows);
        out
    }

    /// Applies rotary position embeddings to the first `heads` heads of every row, in place.
    fn rotate(
        &self,
        rows: &mut Self::Matrix,
        heads: usize,
        head_dim: usize,
        rotary: &Rotary,
        positions: &[usize],
    );

    /// Computes attention. The rows of `queries` are grouped by request, in the order of `requests`. A sliding window
    /// extends both ways in requests without new keys.
    fn attend(
        &self,
        queries: &Self::Matrix,
        requests: &[AttentionSpans<'_, Self::Matrix>],
        heads: &Heads,
        rules: ScoreRules<'_, Self::Matrix>,
    ) -> Self::Matrix;

    /// Computes the self-attention of an encoder: every token attends to the visible tokens of its sequence.
    ///
    /// The rows of `projected` are `[queries | keys | values]` of equal width, grouped by sequence. Each entry of
    /// `sequences` is the attention mask of a sequence: true for a visible token.
    fn attend_sequences(
        &self,
        projected: &Self::Matrix,
        sequences: &[&[bool]],
        attention: &EncoderAttention<'_, Self::Matrix>,
    ) -> Self::Matrix;

    /// Computes a convolution: multiplies every window of the images by a linear layer, whose inputs are the window's
    /// pixels row by row, channels interleaved.
    fn convolve(
        &self,
        images: &Self::Matrix,
        convolution: &Convolution,
        linear: &Self::Linear,
    ) -> Self::Matrix;

    /// Computes [`Self::convolve`] with an epilogue. The results are bit-identical to those of the separate
    /// operations.
    fn convolve_with(
        &self,
        images: &Self::Matrix,
        convolution: &Convolution,
        linear: &Self::Linear,
        epilogue: Epilogue<'_, Self::Matrix>,
    ) -> Self::Matrix
    where
        Self: Sized,
    {
        epilogue.apply(self, self.convolve(images, convolution, linear))
    }

    /// Computes a depthwise convolution. `weights` is `[kernel * kernel + 1, channels]`: one row per pixel of the
    /// window, then the bias.
    fn depthwise_convolve(
        &self,
        images: &Self::Matrix,
        convolution: &Convolution,
        weights: &Self::Matrix,
    ) -> Self::Matrix;

    /// Computes max pooling: the maximum of every channel in each window, padding excluded.
    fn max_pool(&self, images: &Self::Matrix, convolution: &Convolution) -> Self::Matrix;

    /// Returns the mean of every `count` consecutive rows.
    fn mean(&self, rows: &Self::Matrix, count: usize) -> Self::Matrix;

    /// Adds the global response normalisation of images of `count` pixels, in place (Woo et al. 2023, section 3): `x *
    /// (gamma * r + 1) + beta`, where `r` is the L2 norm of a channel of the image over the mean L2 norm of its
    /// channels.
    fn global_response_norm(&self, rows: &mut Self::Matrix, count: usize, norm: &Self::Norm);

    /// Multiplies the `count` rows of every image by the image's row of `factors`, in place.
    fn scale_images(&self, rows: &mut Self::Matrix, count: usize, factors: &Self::Matrix);

    /// Copies single rows into one matrix; a row index that is out of range gives zeros.
    fn select(&self, matrix: &Self::Matrix, rows: &[usize]) -> Self::Matrix;

    /// Reshapes a matrix to rows of another width, which must divide the number of values.
    fn with_width(&self, matrix: Self::Matrix, width: usize) -> Self::Matrix;
}
