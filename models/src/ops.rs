//! Tensor operations that models need, behind the trait [`Ops`].
//!
//! Two types implement it. [`Cpu`](cpu::Cpu) uses kernels whose bits do not depend on the batch, with weights packed
//! once. `Burn`, with the feature `burn`, runs on any device of burn, such as a GPU. burn would work on the CPU too, but
//! its products pack the weights on every call, and its CPU back end is a third of a build.

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
pub use encoder_attention::{DistanceRows, DistanceScores, EncoderAttention, KindScores, PairScores};
pub use epilogue::Epilogue;
pub use op_inputs::{AttentionSpans, Convolution, Heads, RelativeBias, Rotary, ScoreRules, Span};
pub use packed::PreparedWeight;
pub(crate) use packed::{from_words, to_words};
pub use pinned_host::HostWords;
pub(crate) use softmax::probabilities;

use crate::checkpoint::transposed;
use crate::precision::WeightType;

/// The device failed.
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

    /// Uploads row-major values as a matrix. `values` is a whole number of rows.
    fn upload(&self, values: Vec<f32>, width: usize) -> Self::Matrix;

    /// Returns the memory of a matrix for the next [`Ops::upload`]; empty if reuse saves nothing.
    fn recycle(&self, matrix: Self::Matrix) -> Vec<f32> {
        drop(matrix);
        Vec::new()
    }

    /// Downloads a matrix's values, row-major.
    ///
    /// # Errors
    /// [`OpsError`] with the message of the device.
    fn values<'a>(&self, matrix: &'a Self::Matrix) -> Result<Cow<'a, [f32]>, OpsError>;

    /// Copies several spans into one matrix, in order; all are `width` wide.
    fn gather(&self, spans: &[Span<'_, Self::Matrix>], width: usize) -> Self::Matrix;

    /// Returns a matrix of zeros.
    fn zeros(&self, rows: usize, width: usize) -> Self::Matrix {
        self.upload(vec![0.0; rows * width], width)
    }

    /// Copies rows of a matrix into another one of the same width: each pair is a row of `source` and its row in `target`,
    /// which occurs once.
    fn write(&self, target: &mut Self::Matrix, source: &Self::Matrix, rows: &[(usize, usize)]);

    /// Whether [`Ops::read_output`] reads linear layers, so that an embedding and a head of the same weights are held once.
    const READS_OUTPUTS: bool = false;

    /// Prepares the weight of a linear layer, `[inputs, outputs]` row-major, for host memory and for upload, in a type. A
    /// device that has no kernels for the type, or a type that cannot represent the weight, gives f32.
    fn prepare(&self, weight: Vec<f32>, inputs: usize, outputs: usize, kind: WeightType) -> PreparedWeight;

    /// Prepares a weight as [`Ops::prepare`] does, from its transpose `[outputs, inputs]`.
    fn prepare_transposed(
        &self,
        weight: Vec<f32>,
        inputs: usize,
        outputs: usize,
        kind: WeightType,
    ) -> PreparedWeight {
        self.prepare(transposed(&weight, inputs), inputs, outputs, kind)
    }

    /// Writes the weights of an output of a linear layer, if its memory [can be read](Ops::READS_OUTPUTS).
    fn read_output(&self, linear: &Self::Linear, output: usize, out: &mut [f32]) {
        let _ = (linear, output, out);
    }

    /// Creates a linear layer from a prepared weight; the bias has `outputs` elements or none.
    fn linear(&self, prepared: PreparedWeight, bias: Vec<f32>, inputs: usize, outputs: usize)
    -> Self::Linear;

    /// Whether the device has memory of its own, into which it copies by itself.
    const OWN_MEMORY: bool = false;

    /// Keeps a tensor in the host memory that the device copies from fastest.
    fn hold(&self, words: Vec<u32>) -> HostWords {
        HostWords::Shared(words.into())
    }

    /// Creates a linear layer as [`Ops::linear`] does, from a weight in host memory.
    fn linear_of(
        &self,
        (kind, words): (WeightType, HostWords),
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> Self::Linear {
        let words = words.into_vec();
        self.linear(PreparedWeight { kind, words }, bias, inputs, outputs)
    }

    /// Copies a tensor to the device and drops it there; `to` stands for the memory of a device that has none of its own. For
    /// measurements.
    fn load(&self, from: &HostWords, to: &mut [u32]) {
        to.copy_from_slice(&from.words());
    }

    /// Runs transfers to the device, beside what other threads compute on it.
    fn transferring<T>(&self, transfers: impl FnOnce() -> T) -> T {
        transfers()
    }

    /// Waits until the device has done what this thread has asked for.
    ///
    /// # Errors
    /// [`OpsError`] with the message of the device.
    fn finish(&self) -> Result<(), OpsError> {
        Ok(())
    }

    /// Creates a layer norm, or an RMS norm if `beta` is `None`.
    fn norm(&self, gamma: Vec<f32>, beta: Option<Vec<f32>>, epsilon: f32) -> Self::Norm;

    /// Normalises every row.
    fn normalise(&self, rows: &Self::Matrix, norm: &Self::Norm) -> Self::Matrix;

    /// Normalises each of the first `heads` heads of every row by itself, in place; the norm is as wide as a head.
    fn normalise_heads(&self, rows: &mut Self::Matrix, heads: usize, norm: &Self::Norm);

    /// Multiplies rows by a linear layer and adds its bias.
    fn multiply(&self, rows: &Self::Matrix, linear: &Self::Linear) -> Self::Matrix;

    /// Multiplies every row by the factors of a norm, in place, without normalising it.
    fn scale(&self, rows: &mut Self::Matrix, factors: &Self::Norm);

    /// Adds `other` to `rows`.
    fn add(&self, rows: &mut Self::Matrix, other: &Self::Matrix);

    /// Multiplies every element of `rows` by that of `other`, of the same shape.
    fn times(&self, rows: &mut Self::Matrix, other: &Self::Matrix);

    /// Adds each row of `other`, multiplied by its factor, to the row of `rows` with the index in `at`. No index occurs twice.
    fn add_scaled(&self, rows: &mut Self::Matrix, other: &Self::Matrix, at: &[usize], factors: &[f32]);

    /// Applies the activation to every element. If `gated`, multiplies the activation of each row's first half by its
    /// second half.
    fn activate(&self, rows: Self::Matrix, activation: Activation, gated: bool) -> Self::Matrix;

    /// Applies two linear layers in turn, and between them [`Ops::activate`].
    fn feed_forward(
        &self,
        rows: &Self::Matrix,
        [up, down]: [&Self::Linear; 2],
        activation: Activation,
        gated: bool,
    ) -> Self::Matrix {
        self.multiply(&self.activate(self.multiply(rows, up), activation, gated), down)
    }

    /// Applies a linear layer to the normalised rows.
    fn multiply_normalised(
        &self,
        rows: &Self::Matrix,
        norm: &Self::Norm,
        linear: &Self::Linear,
    ) -> Self::Matrix {
        self.multiply(&self.normalise(rows, norm), linear)
    }

    /// Applies a linear layer and adds `residual`, of the shape of the result.
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

    /// Applies [`Ops::feed_forward`] to the rows, normalised if there is a norm, and adds the rows.
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

    /// Applies the rotary embedding to the first `heads` heads of every row, by its position.
    fn rotate(
        &self,
        rows: &mut Self::Matrix,
        heads: usize,
        head_dim: usize,
        rotary: &Rotary,
        positions: &[usize],
    );

    /// Computes attention. The rows of `queries` are grouped by request, in the order of `requests`. A window reaches
    /// both ways in requests without new keys.
    fn attend(
        &self,
        queries: &Self::Matrix,
        requests: &[AttentionSpans<'_, Self::Matrix>],
        heads: &Heads,
        rules: ScoreRules<'_, Self::Matrix>,
    ) -> Self::Matrix;

    /// Computes the self-attention of an encoder: every token attends to the visible tokens of its sequence.
    ///
    /// The rows of `projected` are `[queries | keys | values]` of equal width, grouped by sequence. `sequences` holds one
    /// entry per token of a sequence: true if the token is visible.
    fn attend_sequences(
        &self,
        projected: &Self::Matrix,
        sequences: &[&[bool]],
        attention: &EncoderAttention<'_, Self::Matrix>,
    ) -> Self::Matrix;

    /// Multiplies every window of the images by a linear layer, whose inputs are the window's pixels row by row, each
    /// with its channels.
    fn convolve(
        &self,
        images: &Self::Matrix,
        convolution: &Convolution,
        linear: &Self::Linear,
    ) -> Self::Matrix;

    /// As [`Self::convolve`], with an epilogue. The bits are those of the single operations.
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

    /// Multiplies every channel of the windows by weights of its own (a depthwise convolution). `weights` is
    /// `[kernel * kernel + 1, channels]`: a row per pixel of the window, and the bias.
    fn convolve_channels(
        &self,
        images: &Self::Matrix,
        convolution: &Convolution,
        weights: &Self::Matrix,
    ) -> Self::Matrix;

    /// Returns the largest value of every channel in the windows; the border does not count.
    fn pool_largest(&self, images: &Self::Matrix, convolution: &Convolution) -> Self::Matrix;

    /// Returns the mean of every `count` rows.
    fn mean(&self, rows: &Self::Matrix, count: usize) -> Self::Matrix;

    /// Adds the response normalisation of images of `count` pixels, in place (Woo et al. 2023, section 3):
    /// `x * (gamma * r + 1) + beta`, where `r` is the length of a channel of the image over the mean length of its
    /// channels.
    fn normalise_responses(&self, rows: &mut Self::Matrix, count: usize, norm: &Self::Norm);

    /// Multiplies the `count` rows of every image by its row of `factors`, in place.
    fn scale_images(&self, rows: &mut Self::Matrix, count: usize, factors: &Self::Matrix);

    /// Copies single rows into one matrix; a row that the matrix does not have is zeros.
    fn select(&self, matrix: &Self::Matrix, rows: &[usize]) -> Self::Matrix;

    /// Returns the same values as rows of another width, which divides their number.
    fn with_width(&self, matrix: Self::Matrix, width: usize) -> Self::Matrix;
}
