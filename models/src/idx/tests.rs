use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn encode(shape: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, UNSIGNED_BYTE, u8::try_from(shape.len()).unwrap()];
    bytes.extend(shape.iter().flat_map(|extent| extent.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// Builds images `[count, height, width]` with increasing pixel values, and `count` labels.
fn image_set(count: u32, height: u32, width: u32) -> LabelledImages {
    let pixels: Vec<u8> = (0..count * height * width).map(|pixel| pixel as u8).collect();
    let labels: Vec<u8> = (0..count).map(|label| label as u8).collect();
    LabelledImages::parse(
        ("images", &encode(&[count, height, width], &pixels)),
        ("labels", &encode(&[count], &labels)),
    )
    .unwrap()
}

proptest! {
    #[test]
    fn what_is_written_is_read(shape in vec(0_u32..6, 1..5), seed in any::<u8>()) {
        let elements = shape.iter().product::<u32>();
        let data: Vec<u8> = (0..elements).map(|element| (element as u8).wrapping_add(seed)).collect();
        let idx = Idx::parse("x", &encode(&shape, &data)).unwrap();
        prop_assert_eq!(idx.shape, shape.iter().map(|extent| *extent as usize).collect::<Vec<_>>());
        prop_assert_eq!(idx.data, data);
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..64)) {
        let _ = Idx::parse("x", &bytes);
    }

    #[test]
    fn a_forged_header_is_refused_without_allocating(shape in vec(any::<u32>(), 1..8), data in vec(any::<u8>(), 0..16)) {
        let bytes = encode(&shape, &data);
        let announced = shape.iter().try_fold(1_u64, |product, extent| product.checked_mul(u64::from(*extent)));
        match Idx::parse("x", &bytes) {
            Ok(idx) => prop_assert_eq!(Some(idx.data.len() as u64), announced),
            Err(IdxError::TooLarge { .. }) => {
                let large = announced.is_none_or(|elements| elements > MAX_BYTES);
                prop_assert!(large);
            }
            Err(IdxError::WrongLength { .. }) => prop_assert_ne!(announced, Some(data.len() as u64)),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn every_truncation_is_refused(shape in vec(1_u32..4, 1..4), cut in any::<prop::sample::Index>()) {
        let whole = encode(&shape, &vec![1; shape.iter().product::<u32>() as usize]);
        let part = &whole[..cut.index(whole.len())];
        let rejected = matches!(
            Idx::parse("x", part),
            Err(IdxError::BadMagic { .. } | IdxError::WrongLength { .. })
        );
        prop_assert!(rejected);
    }

    #[test]
    fn a_split_keeps_every_image_with_its_label(parts in (0_usize..5, 0_usize..5, 0_usize..5)) {
        let set = image_set(12, 2, 3);
        let split = set.split([parts.0, parts.1, parts.2]).unwrap();
        let joined: Vec<_> = split.iter().flat_map(LabelledImages::iter).collect();
        let first: Vec<_> = set.iter().take(parts.0 + parts.1 + parts.2).collect();
        prop_assert_eq!(joined, first);
    }
}

#[test]
fn each_mismatch_names_the_file() {
    let parse = |bytes: &[u8]| Idx::parse("f", bytes).unwrap_err().to_string();
    assert!(parse(&[0x1f, 0x8b, 8, 0]).ends_with("gunzip it first"));
    assert!(parse(&[]).starts_with("`f` begins with []"));
    // Type 0x0d is f32; the second case has no dimensions.
    assert!(parse(&[0, 0, 0x0d, 1, 0, 0, 0, 0]).starts_with("`f` begins with [00, 00, 0d, 01]"));
    assert!(parse(&[0, 0, 8, 0, 7]).starts_with("`f` begins with [00, 00, 08, 00]"));
    assert_eq!(
        parse(&encode(&[2, 2], &[1, 2, 3])),
        "`f` has 15 bytes, but its header states 16"
    );
    assert_eq!(
        parse(&encode(&[2], &[1, 2, 3])),
        "`f` has 11 bytes, but its header states 10"
    );
    assert!(parse(&encode(&[u32::MAX; 3], &[])).contains("limit of 1073741824 bytes"));
}

#[test]
fn images_and_labels_must_match() {
    let join = |images: &[u8], labels: &[u8]| {
        LabelledImages::parse(("i", images), ("l", labels))
            .unwrap_err()
            .to_string()
    };
    let one = encode(&[1, 1, 2], &[1, 2]);
    assert_eq!(
        join(&one, &encode(&[2], &[0, 1])),
        "`i` has 1 images and `l` 2 labels; the numbers must be equal"
    );
    assert!(join(&encode(&[1], &[0]), &one).starts_with("`i` has shape [1]; images must be"));
    assert!(join(&encode(&[1, 0, 2], &[]), &encode(&[1], &[0])).starts_with("`i` has shape [1, 0, 2]"));
    assert!(join(&one, &one).starts_with("`l` has shape [1, 1, 2]; labels must be"));
}

#[test]
fn a_split_larger_than_the_set_is_rejected() {
    assert!(matches!(
        image_set(3, 1, 1).split([2, usize::MAX]),
        Err(IdxError::SplitTooLarge {
            needed: usize::MAX,
            images: 3,
            ..
        })
    ));
}

#[test]
fn tensors_are_rescaled_and_shaped() {
    let (tensor, label) = image_set(2, 1, 2).tensors("image", 0.5).nth(1).unwrap().unwrap();
    assert_eq!((tensor.shape.as_slice(), label), ([1, 1, 2].as_slice(), 1));
    assert_eq!(tensor.to_f32().unwrap(), [1.0, 1.5]);
}

#[test]
fn a_missing_file_is_named() {
    let error = Idx::read(Path::new("/nowhere/images")).unwrap_err();
    assert!(error.to_string().starts_with("cannot read `/nowhere/images`"));
}

#[test]
fn the_committed_digits_are_complete() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/data");
    let digits =
        LabelledImages::read(&data.join("images.idx3-ubyte"), &data.join("labels.idx1-ubyte")).unwrap();
    assert_eq!((digits.len(), digits.size()), (1797, (8, 8)));
    assert!(
        digits
            .iter()
            .all(|(pixels, label)| label < 10 && pixels.iter().all(|pixel| *pixel <= 16))
    );
}
