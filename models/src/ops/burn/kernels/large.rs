//! Products of many rows with a weight, by cubek's matrix products: in the type of the weight, with f32 sums and
//! results.
//!
//! burn would either autotune about twenty kernels per shape and compile each of them, or take the simplest one. The
//! kernel here was the fastest of nine for a BERT-Base on an H200; it needs the bulk copies of Hopper and later GPUs,
//! and aligned rows.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy as Kernel;
use cubek::matmul::routine::BlueprintStrategy::Inferred;
use cubek::matmul::strategy::Strategy;
use cubek::std::InputBinding;

use super::{extents, new_matrix};

/// Alignment of the rows of all three matrices that bulk copies need, elements.
const ALIGNED: usize = 16;
/// Minimum number of rows; fewer do not fill a tile.
const MIN_ROWS: usize = 64;

/// False once a product with bulk copies failed, for example because the GPU is too old.
static HAS_BULK_COPIES: AtomicBool = AtomicBool::new(true);

/// Computes the product; with `bulk`, by the kernel with bulk copies if the shapes allow it.
pub(super) fn launch(rows: CubeTensor, weight: &CubeTensor, bulk: bool) -> CubeTensor {
    let [count, inputs, _] = extents(&rows);
    let [_, outputs, _] = extents(weight);
    let out = new_matrix(&rows, count, outputs);
    let rows = if rows.dtype == weight.dtype {
        rows
    } else {
        cast(rows, weight.dtype)
    };
    let aligned = inputs.is_multiple_of(ALIGNED) && outputs.is_multiple_of(ALIGNED);
    let kernel = Strategy::MultiLevel(Kernel::SpecializedTmaMma(Inferred(().into())));
    if bulk && aligned && count >= MIN_ROWS && HAS_BULK_COPIES.load(Relaxed) {
        if multiply(&kernel, &rows, weight, &out) {
            return out;
        }
        HAS_BULK_COPIES.store(false, Relaxed);
    }
    // The simplest kernel supports all shapes.
    multiply(&Strategy::Auto, &rows, weight, &out);
    out
}

/// Submits a product; returns false if the kernel does not support the matrices.
fn multiply(kernel: &Strategy, rows: &CubeTensor, weight: &CubeTensor, out: &CubeTensor) -> bool {
    let stored = |tensor: &CubeTensor| dtype_to_storage_type(tensor.dtype);
    let binding = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), stored(tensor));
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems {
        lhs: stored(rows),
        rhs: stored(weight),
        out: dtype_to_storage_type(DType::F32),
    });
    let launched = launch_ref(
        kernel,
        &out.client,
        binding(rows),
        binding(weight),
        out.clone().binding(),
        &mut types,
    );
    if let Err(error) = &launched {
        tracing::debug!(?error, "a product is left to another kernel");
    }
    launched.is_ok()
}
