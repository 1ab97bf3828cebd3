//! Rotary embeddings: one thread per element.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{extents, new_matrix};

const UNITS: usize = 256;

pub(super) fn launch(
    x: &CubeTensor,
    sines: &CubeTensor,
    cosines: &CubeTensor,
    [heads, head_dim]: [usize; 2],
    neighbours: bool,
) -> CubeTensor {
    let [count, width, stride] = extents(x);
    let pairs = sines.meta.shape()[2];
    let out = new_matrix(x, count, width);
    let cubes = (count * width).div_ceil(UNITS) as u32;
    rotation::launch(
        &x.client,
        CubeCount::Static(cubes, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        x.clone().into_tensor_arg(),
        sines.clone().into_tensor_arg(),
        cosines.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        count * width,
        width,
        stride,
        heads * head_dim,
        head_dim,
        pairs,
        neighbours,
    );
    out
}

#[cube(launch)]
fn rotation(
    x: &Tensor<f32>,
    sines: &Tensor<f32>,
    cosines: &Tensor<f32>,
    out: &mut Tensor<f32>,
    elements: usize,
    width: usize,
    stride: usize,
    turned: usize,
    head_dim: usize,
    pairs: usize,
    #[comptime] neighbours: bool,
) {
    let place = ABSOLUTE_POS;
    if place < elements {
        let row = place / width;
        let column = place % width;
        let here = row * stride + column;
        let mut value = x[here];
        let at = column % head_dim;
        if column < turned && at < 2 * pairs {
            let mut pair = at;
            let mut is_second = at >= pairs;
            let mut apart = pairs;
            if neighbours {
                pair = at / 2;
                is_second = at % 2 == 1;
                apart = 1;
            } else if is_second {
                pair = at - pairs;
            }
            let sine = sines[row * pairs + pair];
            let cosine = cosines[row * pairs + pair];
            if is_second {
                value = value * cosine + x[here - apart] * sine;
            } else {
                value = value * cosine - x[here + apart] * sine;
            }
        }
        out[place] = value;
    }
}
