//! Index tensors on a device.

use burn::tensor::{Device, Int, Tensor, TensorData};

pub(super) fn indices(rows: Vec<usize>, device: &Device) -> Tensor<1, Int> {
    let rows: Vec<i64> = rows.into_iter().map(signed).collect();
    let count = rows.len();
    Tensor::from_data(TensorData::new(rows, [count]), device)
}

pub(super) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
