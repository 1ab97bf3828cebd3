//! Attention of few new tokens to many cached tokens: one cube per new token and head.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::{largest_of_units, sum_of_units};
use super::{extents, new_matrix};

const UNITS: usize = 256;
/// Maximum number of scores that a cube holds.
const MAX_TOKENS: usize = 8192;
/// Maximum number of new tokens per request; for more, keys and values would be read too often.
const MAX_QUERIES: usize = 16;

/// Dimensions of an attention.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops::burn) struct Extent {
    /// Requests, new tokens per request, and tokens per request, all padded.
    pub(in crate::ops::burn) padded: [usize; 3],
    /// Query heads and key heads.
    pub(in crate::ops::burn) heads: [usize; 2],
    pub(in crate::ops::burn) head_dim: usize,
    pub(in crate::ops::burn) scale: f32,
}

impl Extent {
    /// Returns whether the kernel supports these dimensions.
    pub(in crate::ops::burn) fn has_kernel(&self) -> bool {
        let [batch, new, tokens] = self.padded;
        let sized = batch > 0 && new > 0 && tokens > 0;
        sized && new <= MAX_QUERIES && tokens <= MAX_TOKENS && self.head_dim <= UNITS
    }
}

pub(super) fn launch(
    queries: &CubeTensor,
    lines: &CubeTensor,
    ranges: &CubeTensor,
    extent: Extent,
) -> CubeTensor {
    let Extent {
        padded: [batch, new, tokens],
        heads: [heads, keys],
        head_dim,
        scale,
    } = extent;
    let [_, _, query_stride] = extents(queries);
    let [_, width, line_stride] = extents(lines);
    let out = new_matrix(queries, batch * new, heads * head_dim);
    attention::launch(
        &queries.client,
        CubeCount::Static((batch * new) as u32, heads as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        queries.clone().into_tensor_arg(),
        lines.clone().into_tensor_arg(),
        ranges.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        new,
        tokens,
        heads / keys.max(1),
        query_stride,
        line_stride,
        width / 2,
        scale,
        head_dim,
        tokens.next_power_of_two().clamp(1024, MAX_TOKENS),
        dtype_to_storage_type(ranges.dtype),
    );
    out
}

#[cube(launch)]
fn attention<I: Int>(
    queries: &Tensor<f32>,
    lines: &Tensor<f32>,
    ranges: &Tensor<I>,
    out: &mut Tensor<f32>,
    new: usize,
    tokens: usize,
    shared_by: usize,
    query_stride: usize,
    line_stride: usize,
    values_from: usize,
    scale: f32,
    #[comptime] head_dim: usize,
    #[comptime] most: usize,
    #[define(I)] _dtype: ElemType,
) {
    let query = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let heads = CUBE_COUNT_Y as usize;
    let unit = UNIT_POS_X as usize;
    let request = query / new;
    let first = u32::cast_from(ranges[2 * query]) as usize;
    let last = u32::cast_from(ranges[2 * query + 1]) as usize;
    let of_head = head / shared_by * head_dim;
    let lines_from = request * tokens * line_stride + of_head;

    let mut own = Shared::<[f32]>::new_slice(head_dim);
    let mut scores = Shared::<[f32]>::new_slice(most);
    let mut partial = Shared::<[f32]>::new_slice(UNITS);
    if unit < head_dim {
        own[unit] = queries[query * query_stride + head * head_dim + unit] * scale;
    }
    sync_cube();

    let mut largest = f32::min_value();
    let mut token = first + unit;
    while token <= last {
        let from = lines_from + token * line_stride;
        let mut score = 0.0f32;
        for at in 0..head_dim {
            score += own[at] * lines[from + at];
        }
        scores[token - first] = score;
        largest = f32::max(largest, score);
        token += UNITS;
    }
    let largest = largest_of_units(largest, &mut partial, UNITS);

    let count = last - first + 1;
    let mut sum = 0.0f32;
    let mut place = unit;
    while place < count {
        let weight = f32::exp(scores[place] - largest);
        scores[place] = weight;
        sum += weight;
        place += UNITS;
    }
    let sum = sum_of_units(sum, &mut partial, UNITS);

    // Each group of threads sums the values of some of the tokens.
    let groups = UNITS / head_dim;
    let group = unit / head_dim;
    let at = unit % head_dim;
    let mut value = 0.0f32;
    if group < groups {
        let mut place = group;
        while place < count {
            let line = lines_from + (first + place) * line_stride + values_from;
            value += scores[place] * lines[line + at];
            place += groups;
        }
    }
    partial[unit] = value;
    sync_cube();
    if unit < head_dim {
        let mut total = 0.0f32;
        for other in 0..groups {
            total += partial[other * head_dim + unit];
        }
        out[(query * heads + head) * head_dim + unit] = total / sum;
    }
}
