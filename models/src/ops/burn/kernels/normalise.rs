//! Layer norm and RMS norm: one cube per row.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::reduce::sum_of_units;
use super::{extents, new_matrix};

pub(super) fn launch(
    x: &CubeTensor,
    gamma: &CubeTensor,
    beta: &CubeTensor,
    epsilon: f32,
    centred: bool,
) -> CubeTensor {
    let [count, width, stride] = extents(x);
    let out = new_matrix(x, count, width);
    if count == 0 || width == 0 {
        return out;
    }
    let units: usize = if width <= 128 { 32 } else { 256 };
    norm::launch(
        &x.client,
        CubeCount::Static(count as u32, 1, 1),
        CubeDim::new_1d(units as u32),
        x.clone().into_tensor_arg(),
        gamma.clone().into_tensor_arg(),
        beta.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        width,
        stride,
        epsilon,
        centred,
        units,
    );
    out
}

#[cube(launch)]
fn norm(
    x: &Tensor<f32>,
    gamma: &Tensor<f32>,
    beta: &Tensor<f32>,
    out: &mut Tensor<f32>,
    width: usize,
    stride: usize,
    epsilon: f32,
    #[comptime] centred: bool,
    #[comptime] units: usize,
) {
    let row = CUBE_POS_X as usize;
    let unit = UNIT_POS_X as usize;
    let from = row * stride;
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut mean = 0.0f32;
    if centred {
        let mut sum = 0.0f32;
        let mut at = unit;
        while at < width {
            sum += x[from + at];
            at += units;
        }
        mean = sum_of_units(sum, &mut shared, units) / f32::cast_from(width as u32);
    }
    let mut squares = 0.0f32;
    let mut at = unit;
    while at < width {
        let value = x[from + at] - mean;
        squares += value * value;
        at += units;
    }
    let squares = sum_of_units(squares, &mut shared, units);
    let deviation = f32::sqrt(squares / f32::cast_from(width as u32) + epsilon);
    let mut at = unit;
    while at < width {
        let mut value = (x[from + at] - mean) / deviation * gamma[at];
        if centred {
            value += beta[at];
        }
        out[row * width + at] = value;
        at += units;
    }
}
