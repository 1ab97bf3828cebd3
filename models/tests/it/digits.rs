//! The committed digits family: its accuracy, and a snapshot of its logits.

use std::path::{Path, PathBuf};

use kaskade_models::idx::LabelledImages;
use kaskade_models::{Device, Inputs, LoadOptions, Loaded, load};

fn family() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/weights")
}

/// A variant, with its values in examples/digits/README.md.
struct Variant {
    name: &'static str,
    parameters: u64,
    /// Correct answers on the validation images.
    validation: usize,
    /// Correct answers on the test images.
    test: usize,
}

/// The family, smallest to largest.
const VARIANTS: [Variant; 4] = [
    variant("digits-tiny", 610, [471, 477]),
    variant("digits-small", 9_610, [495, 497]),
    variant("digits-medium", 18_346, [496, 498]),
    variant("digits-large", 892_810, [497, 499]),
];

const fn variant(name: &'static str, parameters: u64, [validation, test]: [usize; 2]) -> Variant {
    Variant {
        name,
        parameters,
        validation,
        test,
    }
}

/// Numbers of training, validation and test images, in file order: the table "Split" of examples/digits/DATA.md.
const SPLIT: [usize; 3] = [797, 500, 500];

/// Scale from a stored intensity, 0 to 16, to an input value.
const RESCALE: f32 = 1.0 / 16.0;

/// Returns the validation and the test images.
fn digits() -> [LabelledImages; 2] {
    let data = family().join("../data");
    let [_, validation, test] =
        LabelledImages::read(&data.join("images.idx3-ubyte"), &data.join("labels.idx1-ubyte"))
            .unwrap()
            .split(SPLIT)
            .unwrap();
    [validation, test]
}

fn loaded(variant: &Variant) -> Loaded {
    load(
        &family().join(variant.name),
        &Device::Cpu,
        &LoadOptions::default(),
    )
    .unwrap()
}

fn requests(images: &LabelledImages) -> (Vec<Inputs>, Vec<u8>) {
    images
        .tensors("image", RESCALE)
        .map(|sample| sample.map(|(image, label)| (vec![image], label)).unwrap())
        .unzip()
}

fn logits(loaded: &mut Loaded, requests: &[Inputs]) -> Vec<Vec<f32>> {
    requests
        .chunks(100)
        .flat_map(|batch| loaded.model.run(batch))
        .map(|answer| answer.unwrap()[0].to_f32().unwrap())
        .collect()
}

fn best(logits: &[f32]) -> usize {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap()
}

fn correct(loaded: &mut Loaded, requests: &[Inputs], labels: &[u8]) -> usize {
    let answers = logits(loaded, requests);
    let answers = answers.iter().zip(labels);
    answers
        .filter(|(logits, label)| best(logits) == usize::from(**label))
        .count()
}

/// Maximum number of answers that differ on another CPU, which may round the last bit of a tie differently.
const ROUNDING: usize = 1;

fn assert_documented(variant: &Variant, correct: usize, documented: usize) {
    assert!(
        correct.abs_diff(documented) <= ROUNDING,
        "{}: {correct} correct, documented {documented}",
        variant.name
    );
}

#[test]
fn every_variant_reaches_its_documented_validation_accuracy() {
    let [validation, _] = digits();
    let (requests, labels) = requests(&validation);
    for variant in &VARIANTS {
        let mut loaded = loaded(variant);
        assert_eq!(loaded.info.parameters, variant.parameters, "{}", variant.name);
        for request in &requests {
            assert_eq!(loaded.model.signature().check(request), Ok(()));
        }
        let correct = correct(&mut loaded, &requests, &labels);
        assert_documented(variant, correct, variant.validation);
    }
}

#[test]
fn every_variant_reaches_its_documented_accuracy_on_held_out_images() {
    let [_, test] = digits();
    let (requests, labels) = requests(&test);
    for variant in &VARIANTS {
        let correct = correct(&mut loaded(variant), &requests, &labels);
        assert_documented(variant, correct, variant.test);
    }
}

#[test]
fn a_single_image_gets_the_same_answer_as_in_a_batch() {
    let [_, test] = digits();
    let (requests, _) = requests(&test);
    for variant in &VARIANTS {
        let mut loaded = loaded(variant);
        let together = logits(&mut loaded, &requests[..33]);
        for (request, together) in requests.iter().zip(together) {
            let alone = logits(&mut loaded, std::slice::from_ref(request)).remove(0);
            assert!(
                alone
                    .iter()
                    .zip(&together)
                    .all(|(alone, together)| (alone - together).abs() < 1e-3)
            );
        }
    }
}

#[test]
fn logits_of_the_first_test_images() {
    let [_, test] = digits();
    let (requests, _) = requests(&test);
    let answers: Vec<(&str, Vec<Vec<String>>)> = VARIANTS
        .iter()
        .map(|variant| {
            let mut loaded = loaded(variant);
            let rounded = logits(&mut loaded, &requests[..4])
                .iter()
                .map(|row| row.iter().map(|logit| format!("{logit:.1}")).collect())
                .collect();
            (variant.name, rounded)
        })
        .collect();
    insta::assert_compact_json_snapshot!(answers);
}
