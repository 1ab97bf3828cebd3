use super::*;

#[test]
fn bytes_that_do_not_fill_the_shape_are_rejected() {
    let error = Tensor::from_f32("x", &[2, 2], &[1.0, 2.0, 3.0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor `x` has 12 bytes, but shape [2, 2] of FP32 takes 16"
    );
}

#[test]
fn an_overflowing_shape_is_rejected() {
    let tensor = Tensor {
        name: "x".into(),
        shape: vec![usize::MAX, 2],
        datatype: Datatype::U8,
        data: Bytes::new(),
    };
    assert!(matches!(tensor.checked(), Err(TensorError::Overflow { .. })));
}

#[test]
fn the_first_non_finite_element_is_named() {
    let tensor = Tensor::from_f32("x", &[3], &[0.0, f32::NAN, f32::INFINITY]).unwrap();
    assert!(matches!(
        tensor.check_finite(),
        Err(TensorError::NotFinite { index: 1, .. })
    ));
}

#[test]
fn a_non_finite_element_is_found_in_any_block_and_type() {
    for index in [0, 1_023, 1_024, 2_047, 2_500] {
        let mut values = vec![1.0_f32; 2_501];
        values[index] = f32::NEG_INFINITY;
        let single = Tensor::from_f32("x", &[2_501], &values).unwrap();
        let typed = |datatype, data: Vec<u8>| Tensor {
            datatype,
            data: data.into(),
            ..single.clone()
        };
        let double = values.iter().flat_map(|value| f64::from(*value).to_le_bytes());
        let half = values
            .iter()
            .flat_map(|value| half::f16::from_f32(*value).to_le_bytes());
        let brain = values
            .iter()
            .flat_map(|value| half::bf16::from_f32(*value).to_le_bytes());
        for tensor in [
            typed(Datatype::F64, double.collect()),
            typed(Datatype::F16, half.collect()),
            typed(Datatype::Bf16, brain.collect()),
            single.clone(),
        ] {
            match tensor.check_finite() {
                Err(TensorError::NotFinite {
                    index: found, value, ..
                }) => {
                    assert_eq!((found, value.as_str()), (index, "-inf"));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let whole = Tensor::from_f32("x", &[2_501], &[f32::MAX; 2_501]).unwrap();
    assert_eq!(whole.check_finite(), Ok(()));
}

#[test]
fn texts_round_trip() {
    let texts = ["", "sea", "雪 and light"];
    let tensor = Tensor::from_texts("text", &texts).unwrap().checked().unwrap();
    assert_eq!(tensor.to_texts().unwrap(), texts);
}

#[test]
fn inconsistent_element_lengths_are_rejected() {
    let bytes = |shape: &[usize], data: &[u8]| Tensor {
        name: "text".into(),
        shape: shape.to_vec(),
        datatype: Datatype::Bytes,
        data: data.to_vec().into(),
    };
    for (shape, data) in [
        (vec![1], &[][..]),
        (vec![0], &[0][..]),
        (vec![1], &[1, 0, 0][..]),
        (vec![1], &[2, 0, 0, 0, 7][..]),
        (vec![1], &[255, 255, 255, 255, 7][..]),
        (vec![1], &[1, 0, 0, 0, 7, 7][..]),
        (vec![2], &[1, 0, 0, 0, 7][..]),
    ] {
        let rejected = bytes(&shape, data).checked();
        assert!(
            matches!(rejected, Err(TensorError::WrongElements { .. })),
            "{shape:?} {data:?}"
        );
    }
    let not_text = bytes(&[1], &[1, 0, 0, 0, 0xff]).checked().unwrap();
    assert!(matches!(
        not_text.to_texts(),
        Err(TensorError::NotText { index: 0, .. })
    ));
}

#[test]
fn every_datatype_round_trips_by_name() {
    for datatype in Datatype::ALL {
        assert_eq!(Datatype::from_name(datatype.name()), Ok(datatype));
    }
    assert!(Datatype::from_name("FP8").is_err());
}
