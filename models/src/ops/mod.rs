//! Tensor operations that models need, behind the trait [`Ops`].
//!
//! Two types implement it. [`Cpu`](cpu::Cpu) uses kernels whose bits do not depend on the batch, with weights packed
//! once. `Burn`, with the feature `burn`, runs on any device of burn, such as a GPU. burn would work on the CPU too, but
//! its products pack the weights on every call, and its CPU back end is a third of a build.

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
mod host_words;
mod layout;
#[cfg(test)]
mod not_finite_tests;
mod packed;
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
pub use host_words::HostWords;
pub use packed::PreparedWeight;
pub(crate) use packed::{from_words, to_words};
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

/// Attention heads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Heads {
    /// Number of query heads.
    pub queries: usize,
    /// Number of key and value heads; divides `queries`, and each is shared by `queries / keys` query heads.
    pub keys: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl Heads {
    /// Size of a query.
    pub(crate) fn query_width(&self) -> usize {
        self.queries * self.head_dim
    }

    /// Size of a key, and of a value.
    pub(crate) fn key_width(&self) -> usize {
        self.keys * self.head_dim
    }
}

/// Rotary position embedding (Su et al. 2021, "RoFormer", section 3.4).
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Angle per position of every pair of elements, radians; further elements are not rotated.
    pub frequencies: Vec<f32>,
    /// Whether pairs are adjacent elements (GPT-J) instead of one element of each half (Llama).
    pub neighbours: bool,
    /// Factor of the rotated elements, 1 unless the scaling of the positions has one (the attention factor of `YaRN`).
    pub scale: f32,
}

impl Rotary {
    /// Indices of the two elements of a pair within a head.
    pub fn pair(&self, index: usize) -> (usize, usize) {
        if self.neighbours {
            (2 * index, 2 * index + 1)
        } else {
            (index, index + self.frequencies.len())
        }
    }
}

/// Relative position bias (Raffel et al. 2020, "T5", section 2.1): added to a score by the distance of key and query.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeBias {
    /// Largest distance with its own value, on either side; larger distances use the value of this one.
    pub max_distance: usize,
    /// `[heads, 2 * max_distance + 1]`, from a key `max_distance` tokens before its query to one as far after it.
    pub values: Vec<f32>,
}

impl RelativeBias {
    /// Number of distances: both sides, and zero.
    pub fn width(&self) -> usize {
        2 * self.max_distance + 1
    }
}

/// A range of rows of a matrix.
#[derive(Debug)]
pub struct Span<'a, X> {
    /// The matrix.
    pub matrix: &'a X,
    /// First row.
    pub from: usize,
    /// Number of rows.
    pub count: usize,
}

impl<X> Clone for Span<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Span<'_, X> {}

/// Keys and values that a request's queries attend to.
pub struct AttentionSpans<'a, X> {
    /// Number of queries.
    pub queries: usize,
    /// Keys and values visible to all queries, in order; rows `[keys | values]`. Those of cached tokens, or all.
    pub cached: Vec<Span<'a, X>>,
    /// Keys and values of the queries' own tokens; each sees itself and earlier ones. `None` if every query sees the
    /// same: in an encoder, where the first query has the position of the first key, and in cross-attention.
    pub new_kv: Option<Span<'a, X>>,
}

/// How scores of an attention are computed beyond the scaled product of query and key.
#[derive(Debug)]
pub struct ScoreRules<'a, X> {
    /// Table of a [`RelativeBias`], added to the scores.
    pub position_bias: Option<&'a X>,
    /// Number of last tokens that a token sees, itself included; where tokens see later ones too, the distance up to which they
    /// see each other. `None`: all.
    pub window: Option<usize>,
    /// Size of the chunks of tokens, of which a token sees its own only; `None`: all.
    pub chunk: Option<usize>,
    /// Soft cap: a score `s` becomes `cap * tanh(s / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// One score per query head, `[heads, 1]`, that takes part in the softmax without a value (gpt-oss).
    pub sinks: Option<&'a X>,
}

impl<X> Default for ScoreRules<'_, X> {
    fn default() -> Self {
        Self {
            position_bias: None,
            window: None,
            chunk: None,
            softcap: None,
            sinks: None,
        }
    }
}

impl<X> ScoreRules<'_, X> {
    /// Returns the position of the first token that the one at `position` sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        let chunk = self.chunk.unwrap_or(usize::MAX).max(1);
        let last = (position + 1).saturating_sub(window);
        last.max(position - position % chunk)
    }

    /// Returns the tokens, of `count`, that the one at `position` sees if it sees later ones too.
    pub(crate) fn visible_around(&self, position: usize, count: usize) -> std::ops::Range<usize> {
        let window = self.window.unwrap_or(usize::MAX);
        let end = position.saturating_add(window).saturating_add(1).min(count);
        position.saturating_sub(window).min(end)..end
    }
}

impl<X> Clone for ScoreRules<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for ScoreRules<'_, X> {}

/// Images in a matrix `[batch * height * width, channels]`, and the square window that a convolution moves over them.
/// Around the images are zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Rows of an image.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
    /// Side of the window, pixels; at least 1.
    pub kernel: usize,
    /// Pixels from one window to the next, in both directions; at least 1.
    pub stride: usize,
    /// Pixels around an image that windows may cover: above, left, below, right.
    pub border: [usize; 4],
}

impl Convolution {
    /// A window whose centre moves over all pixels of images, with a border of half the window.
    pub(crate) fn centred([height, width, channels]: [usize; 3], kernel: usize, stride: usize) -> Self {
        Self {
            height,
            width,
            channels,
            kernel,
            stride,
            border: [kernel / 2; 4],
        }
    }

    /// Height and width of the result; 0 if no window fits.
    pub fn result(&self) -> [usize; 2] {
        let [top, left, bottom, right] = self.border;
        let windows = |side: usize| match side.checked_sub(self.kernel) {
            Some(rest) => rest / self.stride.max(1) + 1,
            None => 0,
        };
        [
            windows(self.height + top + bottom),
            windows(self.width + left + right),
        ]
    }

    /// Number of values in a window.
    pub(crate) fn window(&self) -> usize {
        self.kernel * self.kernel * self.channels
    }

    /// Whether a window is one pixel, and every pixel has one.
    pub(crate) fn is_by_pixel(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.border == [0; 4]
    }
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
