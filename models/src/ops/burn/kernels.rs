//! GPU kernels for burn's back ends. Each replaces a chain of burn operations, because submitting a small operation
//! takes the host longer than running it takes the GPU.
//!
//! Kernels compute in f32, and read 16-bit weights directly.

#![allow(
    clippy::indexing_slicing,
    clippy::too_many_arguments,
    clippy::used_underscore_binding,
    reason = "a kernel reads memory of the GPU by index, its arguments are its matrices and their extents, and cubecl uses the types \
              that define it"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DType, Dispatch, DispatchDevice, Shape, backend_extension};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_cubecl::Cube;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

mod activate;
mod attend;
mod large;
mod normalise;
mod product;
mod reduce;
mod rotate;

pub(super) use activate::code_of;
pub(super) use attend::Extent as AttentionExtent;

/// Operations of back ends that run these kernels.
#[backend_extension(Cube)]
pub(super) trait Kernels: Backend {
    /// Computes `rows` `[m, inputs]` times `weight` `[inputs, outputs]` of any float type, plus `bias` `[1, outputs]`
    /// if `biased`.
    fn product(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        biased: bool,
    ) -> FloatTensor<Self>;

    /// Computes many `rows` `[m, inputs]` times `weight` `[inputs, outputs]` of any float type; with `bulk`, uses bulk
    /// copies where possible.
    fn large_product(rows: FloatTensor<Self>, weight: FloatTensor<Self>, bulk: bool) -> FloatTensor<Self>;

    /// Applies an RMS norm to the rows of `x`; with `centred`, a layer norm with `beta`.
    fn normalised(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
        centred: bool,
    ) -> FloatTensor<Self>;

    /// Applies rotary embeddings to the first `heads` heads of the rows of `x`, with angles `[rows, 1, pairs]`.
    fn rotated(
        x: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        heads: usize,
        head_dim: usize,
        neighbours: bool,
    ) -> FloatTensor<Self>;

    /// Applies the activation with this code; with `gated`, to the first half of each row, times the second half.
    fn activated(x: FloatTensor<Self>, code: u32, gated: bool) -> FloatTensor<Self>;

    /// Computes attention of `queries` to the visible tokens of `lines`; `ranges` holds the first and the last of
    /// them.
    fn attended(
        queries: FloatTensor<Self>,
        lines: FloatTensor<Self>,
        ranges: IntTensor<Self>,
        extent: AttentionExtent,
    ) -> FloatTensor<Self>;
}

impl Kernels for Cube {
    fn product(rows: CubeTensor, weight: CubeTensor, bias: CubeTensor, biased: bool) -> CubeTensor {
        product::launch(&row_major(rows), &row_major(weight), &row_major(bias), biased)
    }

    fn large_product(rows: CubeTensor, weight: CubeTensor, bulk: bool) -> CubeTensor {
        large::launch(row_major(rows), &weight, bulk)
    }

    fn normalised(
        x: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        epsilon: f32,
        centred: bool,
    ) -> CubeTensor {
        normalise::launch(
            &row_major(x),
            &row_major(gamma),
            &row_major(beta),
            epsilon,
            centred,
        )
    }

    fn rotated(
        x: CubeTensor,
        sines: CubeTensor,
        cosines: CubeTensor,
        heads: usize,
        head_dim: usize,
        neighbours: bool,
    ) -> CubeTensor {
        let (sines, cosines) = (into_contiguous(sines), into_contiguous(cosines));
        rotate::launch(&row_major(x), &sines, &cosines, [heads, head_dim], neighbours)
    }

    fn activated(x: CubeTensor, code: u32, gated: bool) -> CubeTensor {
        activate::launch(&row_major(x), code, gated)
    }

    fn attended(
        queries: CubeTensor,
        lines: CubeTensor,
        ranges: CubeTensor,
        extent: AttentionExtent,
    ) -> CubeTensor {
        attend::launch(
            &row_major(queries),
            &row_major(lines),
            &into_contiguous(ranges),
            extent,
        )
    }
}

/// Makes the elements of each row of a matrix contiguous; rows may have a stride.
fn row_major(matrix: CubeTensor) -> CubeTensor {
    let strides = matrix.meta.strides();
    if strides.last() == Some(&1) && !matrix.meta.is_tiled() {
        matrix
    } else {
        into_contiguous(matrix)
    }
}

/// Returns rows, columns and row stride of a matrix.
fn extents(matrix: &CubeTensor) -> [usize; 3] {
    let shape = matrix.meta.shape();
    [shape[0], shape[1], matrix.meta.strides()[0]]
}

/// Allocates an uninitialised f32 matrix on the device of another one.
fn new_matrix(of: &CubeTensor, rows: usize, width: usize) -> CubeTensor {
    empty_device_contiguous_dtype(
        of.client.clone(),
        of.device.clone(),
        Shape::new([rows, width]),
        DType::F32,
    )
}

/// Capabilities of a device with kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capabilities {
    /// Whether products can use bulk copies.
    bulk: bool,
}

/// Returns the capabilities of a device; `None` if kernels do not run on it.
pub(super) fn of_device(device: &Device) -> Option<Capabilities> {
    static CHECKED: Mutex<Vec<(Device, bool)>> = Mutex::new(Vec::new());
    if !matches!(device.as_dispatch(), DispatchDevice::Cube(_)) {
        return None;
    }
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, bulk)) = checked.iter().find(|(known, _)| known == device) {
        return Some(Capabilities { bulk: *bulk });
    }
    let bulk = multiplies_by_bulk_copies(device);
    checked.push((device.clone(), bulk));
    Some(Capabilities { bulk })
}

/// Checks products with bulk copies against the simplest kernel, so that a compiler bug cannot affect results.
fn multiplies_by_bulk_copies(device: &Device) -> bool {
    let matrix = |rows: usize, width: usize| -> Tensor<2> {
        let number = |place: usize| (place * 7919 % 1000) as f32 / 500.0 - 1.0;
        let values: Vec<f32> = (0..rows * width).map(number).collect();
        Tensor::from_data(TensorData::new(values, [rows, width]), device)
    };
    let agrees = || {
        let types = [DType::F32, DType::BF16].into_iter();
        types.filter(|dtype| device.supports_dtype(*dtype)).all(|dtype| {
            let (rows, weight) = (matrix(200, 256), matrix(256, 144).cast(dtype));
            let [ours, simplest] =
                [true, false].map(|bulk| large_product(&rows, &weight, bulk).try_into_vec_as::<f32>());
            let (Ok(ours), Ok(simplest)) = (ours, simplest) else {
                return false;
            };
            let mut pairs = ours.iter().zip(&simplest);
            // Sums of 256 products whose inputs are rounded in the same way.
            ours.len() == simplest.len() && pairs.all(|(one, other)| (one - other).abs() < 0.05)
        })
    };
    let agree = catch_unwind(AssertUnwindSafe(agrees)).unwrap_or(false);
    tracing::debug!(
        agree,
        "products by bulk copies were compared with the simplest ones"
    );
    agree
}

fn large_product(rows: &Tensor<2>, weight: &Tensor<2>, bulk: bool) -> Tensor<2> {
    let (rows, weight) = (rows.clone().into_dispatch(), weight.clone().into_dispatch());
    Tensor::from_dispatch(<Dispatch as Kernels>::large_product(rows, weight, bulk))
}

/// Computes rows times a weight of any float type, plus a bias; `None` without rows.
pub(super) fn product(
    can: Capabilities,
    rows: &Tensor<2>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<2>>,
) -> Option<Tensor<2>> {
    let [count, inputs] = rows.dims();
    if count == 0 || inputs == 0 {
        return None;
    }
    if count > product::MAX_ROWS {
        let product = large_product(rows, weight, can.bulk);
        return Some(match bias {
            Some(bias) => product + bias.clone(),
            None => product,
        });
    }
    let product = <Dispatch as Kernels>::product(
        rows.clone().into_dispatch(),
        weight.clone().into_dispatch(),
        bias.unwrap_or(rows).clone().into_dispatch(),
        bias.is_some(),
    );
    Some(Tensor::from_dispatch(product))
}

/// Applies a norm to every row.
pub(super) fn normalised(
    x: &Tensor<2>,
    gamma: &Tensor<2>,
    beta: Option<&Tensor<2>>,
    epsilon: f32,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::normalised(
        x.clone().into_dispatch(),
        gamma.clone().into_dispatch(),
        beta.unwrap_or(gamma).clone().into_dispatch(),
        epsilon,
        beta.is_some(),
    ))
}

/// Applies rotary embeddings to the first `heads` heads.
pub(super) fn rotated(
    x: &Tensor<2>,
    angles: &(Tensor<3>, Tensor<3>),
    [heads, head_dim]: [usize; 2],
    neighbours: bool,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::rotated(
        x.clone().into_dispatch(),
        angles.0.clone().into_dispatch(),
        angles.1.clone().into_dispatch(),
        heads,
        head_dim,
        neighbours,
    ))
}

/// Applies an activation that [has a kernel](code_of).
pub(super) fn activated(x: Tensor<2>, code: u32, gated: bool) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::activated(x.into_dispatch(), code, gated))
}

/// Computes attention of decoding requests to padded keys and values.
pub(super) fn attended(
    queries: Tensor<2>,
    lines: Tensor<2>,
    ranges: Tensor<1, Int>,
    extent: AttentionExtent,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::attended(
        queries.into_dispatch(),
        lines.into_dispatch(),
        ranges.into_dispatch(),
        extent,
    ))
}
