//! Activation kernels, plain and gated: one thread per element of the result.

use std::f32::consts::FRAC_1_SQRT_2;

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{extents, new_matrix};
use crate::ops::Activation;

const UNITS: usize = 256;
const GELU: u32 = 0;
const GELU_TANH: u32 = 1;
const SILU: u32 = 2;
const RELU: u32 = 3;

/// Returns the code of an activation; `None` if it has no kernel.
pub(in crate::ops::burn) fn code_of(activation: Activation) -> Option<u32> {
    match activation {
        Activation::Gelu => Some(GELU),
        Activation::GeluTanh => Some(GELU_TANH),
        Activation::Silu => Some(SILU),
        Activation::Relu => Some(RELU),
        _ => None,
    }
}

pub(super) fn launch(x: &CubeTensor, code: u32, gated: bool) -> CubeTensor {
    let [count, width, stride] = extents(x);
    let columns = if gated { width / 2 } else { width };
    let out = new_matrix(x, count, columns);
    if count * columns == 0 {
        return out;
    }
    activation::launch(
        &x.client,
        CubeCount::Static((count * columns).div_ceil(UNITS) as u32, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        x.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        count * columns,
        columns,
        stride,
        code,
        gated,
    );
    out
}

#[cube(launch)]
fn activation(
    x: &Tensor<f32>,
    out: &mut Tensor<f32>,
    elements: usize,
    columns: usize,
    stride: usize,
    #[comptime] code: u32,
    #[comptime] gated: bool,
) {
    let place = ABSOLUTE_POS;
    if place < elements {
        let here = place / columns * stride + place % columns;
        let value = x[here];
        let mut result = f32::max(value, 0.0f32);
        if comptime!(code == GELU) {
            result = 0.5f32 * value * (1.0f32 + Erf::erf(value * FRAC_1_SQRT_2));
        } else if comptime!(code == GELU_TANH) {
            let inner = 0.797_884_6f32 * (value + 0.044_715f32 * value * value * value);
            result = 0.5f32 * value * (1.0f32 + f32::tanh(inner));
        } else if comptime!(code == SILU) {
            result = value / (1.0f32 + f32::exp(-value));
        }
        if gated {
            result *= x[here + columns];
        }
        out[place] = result;
    }
}
