use std::collections::HashMap;
use std::io::Write;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

use super::*;

fn file(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    serialize(views, None::<HashMap<String, String>>).unwrap()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn weights(bytes: Vec<u8>) -> Result<Weights, LoadError> {
    Weights::from_bytes("model.safetensors", bytes.into())
}

fn small() -> Vec<u8> {
    file(&[(
        "a.weight",
        Dtype::F32,
        &[2, 3],
        floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    )])
}

#[test]
fn a_tensor_is_taken_once_and_counted() {
    let mut weights = weights(small()).unwrap();
    assert_eq!(
        weights.take("a.weight", &[2, 3]).unwrap(),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
    assert!(matches!(
        weights.take("a.weight", &[2, 3]),
        Err(LoadError::MissingTensor { .. })
    ));
    let totals = weights.finish(&[]).unwrap();
    assert_eq!(
        totals,
        WeightTotals {
            parameters: 6,
            bytes: 24
        }
    );
}

#[test]
fn a_matrix_is_transposed() {
    let values = weights(small())
        .unwrap()
        .take_transposed("a.weight", 3, 2)
        .unwrap();
    assert_eq!(values, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn a_kernel_is_taken_pixel_by_pixel() {
    let shape = [2, 3, 1, 2];
    let numbers: Vec<f32> = (0..12).map(|number| number as f32).collect();
    let bytes = file(&[("k", Dtype::F32, &shape, floats(&numbers))]);
    let values = weights(bytes).unwrap().take_by_pixel("k", &shape, 2).unwrap();
    // Rows: pixel 0 with channels 0, 1, 2, then pixel 1; columns: the two outputs.
    assert_eq!(
        values,
        [0.0, 6.0, 2.0, 8.0, 4.0, 10.0, 1.0, 7.0, 3.0, 9.0, 5.0, 11.0]
    );
}

#[test]
fn quantised_weights_are_refused_where_nothing_computes_with_them() {
    let mut weights = weights(small()).unwrap();
    let refused = weights.request_unquantised(Some(WeightType::Q8_0));
    assert_eq!(refused, Err(WeightType::Q8_0));
    for (asked, found) in [
        (Some(WeightType::Bf16), WeightType::Bf16),
        (None, WeightType::F32),
    ] {
        weights.request_unquantised(asked).unwrap();
        assert_eq!(weights.weight_type(), found);
    }
}

#[test]
fn half_precision_is_widened() {
    let f16 = half::f16::from_f32(0.1).to_le_bytes().to_vec();
    let bf16 = half::bf16::from_f32(0.1).to_le_bytes().to_vec();
    let mut weights = weights(file(&[
        ("h", Dtype::F16, &[1], f16),
        ("b", Dtype::BF16, &[1], bf16),
    ]))
    .unwrap();
    assert_eq!(
        weights.take("h", &[1]).unwrap(),
        [half::f16::from_f32(0.1).to_f32()]
    );
    assert_eq!(
        weights.take("b", &[1]).unwrap(),
        [half::bf16::from_f32(0.1).to_f32()]
    );
}

#[test]
fn each_mismatch_names_the_tensor_and_the_file() {
    let mut small = weights(small()).unwrap();
    assert_eq!(
        small.take("a.weight", &[3, 2]).unwrap_err().to_string(),
        "tensor `a.weight` in `model.safetensors` has shape [2, 3]; the configuration needs [3, 2]"
    );
    assert_eq!(
        small.take("b", &[7]).unwrap_err().to_string(),
        "`model.safetensors` has no tensor `b` (shape [7])"
    );
    let integers = file(&[
        ("ids", Dtype::I64, &[1], vec![0; 8]),
        ("nan", Dtype::F32, &[2], floats(&[0.0, f32::NAN])),
    ]);
    let mut integers = weights(integers).unwrap();
    assert!(
        integers
            .take("ids", &[1])
            .unwrap_err()
            .to_string()
            .contains("`ids` in `model.safetensors` is I64")
    );
    assert!(matches!(
        integers.take("nan", &[2]),
        Err(LoadError::NotFinite { index: 1, .. })
    ));
}

#[test]
fn unused_tensors_are_rejected_except_ignored_buffers() {
    let one = |name: &str| weights(file(&[(name, Dtype::F32, &[1], floats(&[0.0]))])).unwrap();
    assert!(one("bert.embeddings.position_ids").finish(&[]).is_ok());
    assert!(one("bert.pooler.dense.weight").finish(&["bert.pooler."]).is_ok());
    assert_eq!(
        one("extra").finish(&["bert.pooler."]).unwrap_err().to_string(),
        "`model.safetensors` contains one tensor that the architecture does not use: extra"
    );
}

#[test]
fn layer_norms_are_found_by_their_old_names() {
    let old = file(&[
        ("LayerNorm.gamma", Dtype::F32, &[1], floats(&[2.0])),
        ("LayerNorm.beta", Dtype::F32, &[1], floats(&[3.0])),
    ]);
    let mut old = weights(old).unwrap();
    assert_eq!(old.take("LayerNorm.weight", &[1]).unwrap(), [2.0]);
    assert_eq!(old.take("LayerNorm.bias", &[1]).unwrap(), [3.0]);
    assert!(old.finish(&[]).is_ok());
}

#[test]
fn a_file_on_disk_reads_like_one_in_memory() {
    let mut handle = tempfile::tempfile().unwrap();
    handle.write_all(&small()).unwrap();
    let mut weights = Weights::from_file("model.safetensors", handle).unwrap();
    assert_eq!(weights.take("a.weight", &[2, 3]).unwrap().len(), 6);
}

/// Regression: for a repository cloned without Git LFS, the error was "its header length exceeds the limit".
#[test]
fn a_git_lfs_pointer_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n";
    let error = weights(pointer.into()).unwrap_err().to_string();
    assert!(
        error.contains("model.safetensors") && error.contains("git lfs pull"),
        "{error}"
    );
    let mut handle = tempfile::tempfile().unwrap();
    handle.write_all(pointer.as_bytes()).unwrap();
    let of_file = Weights::from_file("model.safetensors", handle);
    assert!(matches!(of_file, Err(LoadError::GitLfsPointer { .. })));
}

#[test]
fn the_prefix_of_a_wrapper_is_stripped_if_all_tensors_have_it() {
    let names = |saved: &[&str]| -> Vec<String> {
        let tensors: Vec<_> = saved
            .iter()
            .map(|name| (*name, Dtype::F32, &[1_usize][..], floats(&[1.0])))
            .collect();
        let mut weights = weights(file(&tensors)).unwrap();
        weights.strip_wrappers();
        weights.raw().into_iter().map(|tensor| tensor.name).collect()
    };
    assert_eq!(names(&["_orig_mod.a", "_orig_mod.b"]), ["a", "b"]);
    assert_eq!(names(&["module._orig_mod.a"]), ["a"]);
    assert_eq!(names(&["module.a", "b"]), ["b", "module.a"]);
}

#[test]
fn forged_headers_are_rejected() {
    let with_header = |json: &str, data: usize| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.extend(vec![0; data]);
        weights(bytes)
    };
    let rejected = [
        with_header("{}", 1),
        with_header("not json", 0),
        with_header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4),
        with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8),
        with_header(
            r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#,
            8,
        ),
        with_header(r#"{"a":{"dtype":"F3","shape":[1],"data_offsets":[0,4]}}"#, 4),
        with_header(&"[".repeat(10_000), 0),
        weights(vec![]),
        weights(vec![1, 2, 3]),
        weights(u64::MAX.to_le_bytes().to_vec()),
        weights(50_u64.to_le_bytes().to_vec()),
    ];
    for (case, result) in rejected.into_iter().enumerate() {
        assert!(
            matches!(result, Err(LoadError::BadWeights { .. })),
            "case {case}: {result:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_truncation_of_a_file_is_accepted(cut in 0_usize..=107) {
        let whole = small();
        prop_assume!(cut < whole.len());
        prop_assert!(weights(whole[..cut].to_vec()).is_err());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), header in 0_u64..64) {
        let mut framed = header.to_le_bytes().to_vec();
        framed.extend(&bytes);
        let _ = weights(framed);
        let _ = weights(bytes);
    }

    #[test]
    fn a_transpose_swaps_rows_and_columns(rows in 1_usize..40, columns in 1_usize..40) {
        let values: Vec<f32> = (0..rows * columns).map(|value| value as f32).collect();
        let expected: Vec<f32> = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| (row, column)))
            .map(|(row, column)| values[row * columns + column])
            .collect();
        prop_assert_eq!(transposed(&values, columns), expected);
    }
}
