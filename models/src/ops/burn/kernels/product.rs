//! Products of few rows with a weight: reads the weight once for all rows.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{extents, new_matrix};

/// Maximum number of rows that a thread accumulates.
pub(super) const MAX_ROWS: usize = 8;
/// Columns per cube.
const COLUMNS: usize = 16;
/// Maximum number of parts of a column; their sums are added at the end.
const MAX_PARTS: usize = 64;

pub(super) fn launch(rows: &CubeTensor, weight: &CubeTensor, bias: &CubeTensor, biased: bool) -> CubeTensor {
    let [count, inputs, row_stride] = extents(rows);
    let [_, outputs, weight_stride] = extents(weight);
    let out = new_matrix(rows, count, outputs);
    let units = rows.client.properties().hardware.max_units_per_cube as usize;
    let parts = (units / COLUMNS).clamp(MAX_ROWS, MAX_PARTS);
    few_rows::launch(
        &rows.client,
        CubeCount::Static(outputs.div_ceil(COLUMNS) as u32, 1, 1),
        CubeDim::new_2d(COLUMNS as u32, parts as u32),
        rows.clone().into_tensor_arg(),
        weight.clone().into_tensor_arg(),
        bias.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        inputs,
        outputs,
        row_stride,
        weight_stride,
        count,
        // Three and four rows share a kernel, which sums the last row twice for three.
        count.next_power_of_two(),
        parts,
        biased,
        dtype_to_storage_type(weight.dtype),
    );
    out
}

#[cube(launch)]
fn few_rows<W: Float>(
    rows: &Tensor<f32>,
    weight: &Tensor<W>,
    bias: &Tensor<f32>,
    out: &mut Tensor<f32>,
    inputs: usize,
    outputs: usize,
    row_stride: usize,
    weight_stride: usize,
    count: usize,
    #[comptime] summed: usize,
    #[comptime] parts: usize,
    #[comptime] biased: bool,
    #[define(W)] _dtype: ElemType,
) {
    let lane = UNIT_POS_X as usize;
    let part = UNIT_POS_Y as usize;
    let column = CUBE_POS_X as usize * COLUMNS + lane;
    let mut sums = Array::<f32>::new(summed);
    #[unroll]
    for row in 0..summed {
        sums[row] = 0.0f32;
    }
    if column < outputs {
        let mut input = part;
        // Keeps four reads of the weight in flight.
        while input + 3 * parts < inputs {
            let first = f32::cast_from(weight[input * weight_stride + column]);
            let second = f32::cast_from(weight[(input + parts) * weight_stride + column]);
            let third = f32::cast_from(weight[(input + 2 * parts) * weight_stride + column]);
            let fourth = f32::cast_from(weight[(input + 3 * parts) * weight_stride + column]);
            #[unroll]
            for row in 0..summed {
                let from = usize::min(row, count - 1) * row_stride + input;
                sums[row] = sums[row]
                    + rows[from] * first
                    + rows[from + parts] * second
                    + rows[from + 2 * parts] * third
                    + rows[from + 3 * parts] * fourth;
            }
            input += 4 * parts;
        }
        while input < inputs {
            let value = f32::cast_from(weight[input * weight_stride + column]);
            #[unroll]
            for row in 0..summed {
                sums[row] += rows[usize::min(row, count - 1) * row_stride + input] * value;
            }
            input += parts;
        }
    }
    let mut shared = Shared::<[f32]>::new_slice(summed * COLUMNS * parts);
    #[unroll]
    for row in 0..summed {
        shared[(row * parts + part) * COLUMNS + lane] = sums[row];
    }
    sync_cube();
    // One thread per row and column adds up the parts.
    if part < count && column < outputs {
        let mut sum = 0.0f32;
        for other in 0..parts {
            sum += shared[(part * parts + other) * COLUMNS + lane];
        }
        if biased {
            sum += bias[column];
        }
        out[part * outputs + column] = sum;
    }
}
