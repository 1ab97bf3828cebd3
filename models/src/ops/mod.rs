//! The arithmetic that a decoder needs, behind a trait: what the engine asks of a device.
//!
//! Two implement it. [`Cpu`](cpu::Cpu) is the processor, with products whose bits do not depend on the batch and weights
//! packed once; [`Burn`](burn::Burn) is any device of burn's, a GPU among them. burn's tensors alone would do on the
//! processor too, but its products pack the weights again on every call, which at the batch sizes of decoding costs more than the
//! product.

mod attention;
pub mod burn;
pub mod cpu;
pub(crate) mod elementwise;
mod gemm;
mod rows;

use std::borrow::Cow;

use thiserror::Error;

/// The device failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the device failed: {reason}")]
pub struct OpsError {
    /// What it said.
    pub reason: String,
}

/// The feed-forward layer's activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The rectifier.
    Relu,
    /// GELU by the error function.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// Heads of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heads {
    /// Heads of the queries.
    pub queries: usize,
    /// Heads of keys and values, each shared by as many query heads as it takes; divides `queries`.
    pub keys: usize,
    /// Extent of a head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
}

impl Heads {
    /// Extent of a query.
    pub fn query_width(&self) -> usize {
        self.queries * self.head_dim
    }

    /// Extent of a key and of a value each.
    pub fn key_width(&self) -> usize {
        self.keys * self.head_dim
    }
}

/// Rotary positions (Su et al. 2021, "RoFormer", section 3.4).
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Angle per position of every pair of elements, radians; pairs beyond stay as they are.
    pub frequencies: Vec<f32>,
    /// Pairs are neighbours (GPT-J) instead of an element of each half (Llama).
    pub neighbours: bool,
}

impl Rotary {
    /// Elements of a head that turn.
    pub fn rotary_dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Positions of the two elements of a pair within a head.
    pub fn pair(&self, index: usize) -> (usize, usize) {
        if self.neighbours {
            (2 * index, 2 * index + 1)
        } else {
            (index, index + self.frequencies.len())
        }
    }
}

/// Relative positions (Raffel et al. 2020, "T5", section 2.1): what a score gains by how far its key is from its query.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeBias {
    /// Distances that have a gain of their own, on either side; what is further away has that of the furthest.
    pub max_distance: usize,
    /// `[heads, 2 * max_distance + 1]`, from a key `max_distance` tokens before its query to one as far behind it.
    pub values: Vec<f32>,
}

impl RelativeBias {
    /// Distances with a gain of their own on both sides, and that of the query itself: the width of the table.
    pub fn width(&self) -> usize {
        2 * self.max_distance + 1
    }
}

/// Some rows of a matrix.
#[derive(Debug)]
pub struct Span<'a, X> {
    /// The matrix.
    pub matrix: &'a X,
    /// The first row.
    pub from: usize,
    /// How many.
    pub count: usize,
}

impl<X> Clone for Span<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Span<'_, X> {}

/// What a request's queries attend to.
pub struct AttentionSpans<'a, X> {
    /// How many queries it has.
    pub queries: usize,
    /// Keys and values that all of them see, in order; rows `[keys | values]`. Those of tokens in the cache, or all there are.
    pub cached: Vec<Span<'a, X>>,
    /// Keys and values of the queries' own tokens, each of which sees itself and the ones before. Absent where every query sees the
    /// same: in an encoder, whose first query is then that of the first key, and in cross-attention.
    pub new_kv: Option<Span<'a, X>>,
}

/// What a device computes. Matrices are `[rows, width]`, f32.
pub trait Ops: Send + Sync + 'static {
    /// A matrix on the device.
    type Matrix: Send + Sync;
    /// A linear layer on the device.
    type Linear: Send + Sync;
    /// A norm on the device.
    type Norm: Send + Sync;

    /// Row-major values as a matrix on the device. `values` is a whole number of rows.
    fn upload(&self, values: Vec<f32>, width: usize) -> Self::Matrix;

    /// A matrix that is not needed any more, as memory for [`Ops::upload`] to be filled again; empty where that saves nothing.
    fn recycle(&self, matrix: Self::Matrix) -> Vec<f32> {
        drop(matrix);
        Vec::new()
    }

    /// A matrix's values, row-major.
    ///
    /// # Errors
    /// [`OpsError`] with what the device says went wrong.
    fn values<'a>(&self, matrix: &'a Self::Matrix) -> Result<Cow<'a, [f32]>, OpsError>;

    /// A copy of several spans under each other, all `width` wide.
    fn gather(&self, spans: &[Span<'_, Self::Matrix>], width: usize) -> Self::Matrix;

    /// Writes a span into a matrix of the same width, from row `at` on.
    fn write(&self, target: &mut Self::Matrix, at: usize, source: Span<'_, Self::Matrix>);

    /// The weight of a linear layer, `[inputs, outputs]` row-major, as it is kept in the host's memory and sent to the device.
    fn prepare(&self, weight: Vec<f32>, inputs: usize, outputs: usize) -> Vec<f32>;

    /// A linear layer of a prepared weight; the bias has `outputs` elements or none.
    fn linear(&self, prepared: Vec<f32>, bias: Vec<f32>, inputs: usize, outputs: usize) -> Self::Linear;

    /// A layer norm; one of root mean squares, which shifts nothing, if `beta` is absent.
    fn norm(&self, gamma: Vec<f32>, beta: Option<Vec<f32>>, epsilon: f32) -> Self::Norm;

    /// The norm of every row.
    fn normalise(&self, rows: &Self::Matrix, norm: &Self::Norm) -> Self::Matrix;

    /// The product with a linear layer.
    fn multiply(&self, rows: &Self::Matrix, linear: &Self::Linear) -> Self::Matrix;

    /// Adds `other` to `rows`.
    fn add(&self, rows: &mut Self::Matrix, other: &Self::Matrix);

    /// The activation of every element; where `gated`, that of the first half of each row times the second half.
    fn activate(&self, rows: Self::Matrix, activation: Activation, gated: bool) -> Self::Matrix;

    /// Turns the first `heads` heads of extent `head_dim` of every row by its position.
    fn rotate(
        &self,
        rows: &mut Self::Matrix,
        heads: usize,
        head_dim: usize,
        rotary: &Rotary,
        positions: &[usize],
    );

    /// Attention: the rows of `queries` are those of the first request, the second, and so on. Scores gain what the table `position_bias`
    /// of [`RelativeBias`] says, if there is one.
    fn attend(
        &self,
        queries: &Self::Matrix,
        requests: &[AttentionSpans<'_, Self::Matrix>],
        heads: &Heads,
        position_bias: Option<&Self::Matrix>,
    ) -> Self::Matrix;
}
