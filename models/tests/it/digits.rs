//! The committed digits family: its accuracy, and a snapshot of its logits.

use std::path::{Path, PathBuf};

use kaskade_models::idx::LabelledImages;
use kaskade_models::manifest::{Manifest, ManifestVariant};
use kaskade_models::{Device, Inputs, LoadOptions, Loaded, load};

fn family() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/weights")
}

/// Returns the manifest, and the validation and test images.
fn digits() -> (Manifest, [LabelledImages; 2]) {
    let data = family().join("../data");
    let manifest = Manifest::read(&family()).unwrap();
    let split = manifest.split;
    let [_, validation, test] =
        LabelledImages::read(&data.join("images.idx3-ubyte"), &data.join("labels.idx1-ubyte"))
            .unwrap()
            .split([split.train, split.validation, split.test])
            .unwrap();
    (manifest, [validation, test])
}

fn loaded(variant: &ManifestVariant) -> Loaded {
    let directory = family().join(&variant.directory);
    load(&directory, &Device::Cpu, &LoadOptions::default()).unwrap()
}

fn requests(manifest: &Manifest, images: &LabelledImages) -> (Vec<Inputs>, Vec<u8>) {
    images
        .tensors(&manifest.input.name, manifest.input.rescale)
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

/// Answers that may differ on another processor, which may round the last bit of a tie differently.
const ROUNDING: usize = 1;

#[test]
fn every_variant_reaches_the_validation_accuracy_of_its_manifest() {
    let (manifest, [validation, _]) = digits();
    let (requests, labels) = requests(&manifest, &validation);
    for variant in &manifest.variants {
        let mut loaded = loaded(variant);
        assert_eq!(loaded.info.parameters, variant.parameters, "{}", variant.name);
        for request in &requests {
            assert_eq!(loaded.model.signature().check(request), Ok(()));
        }
        let correct = correct(&mut loaded, &requests, &labels);
        let stated = (variant.validation_accuracy * labels.len() as f64).round() as usize;
        assert!(
            correct.abs_diff(stated) <= ROUNDING,
            "{}: {correct} of {} correct, stated {stated}",
            variant.name,
            labels.len()
        );
    }
}

/// Correct answers of each variant on the held-out images: the column "test" of examples/digits/README.md.
const CORRECT_ON_TEST: [(&str, usize); 4] = [
    ("digits-tiny", 477),
    ("digits-small", 497),
    ("digits-medium", 498),
    ("digits-large", 499),
];

#[test]
fn larger_variants_reach_their_documented_accuracy_on_held_out_images() {
    let (manifest, [_, test]) = digits();
    let (requests, labels) = requests(&manifest, &test);
    assert_eq!(manifest.variants.len(), CORRECT_ON_TEST.len());
    let mut parameters = 0;
    for (variant, (name, documented)) in manifest.variants.iter().zip(CORRECT_ON_TEST) {
        assert_eq!(variant.name, name);
        let mut loaded = loaded(variant);
        assert!(loaded.info.parameters > parameters, "{name} is not larger");
        parameters = loaded.info.parameters;
        let correct = correct(&mut loaded, &requests, &labels);
        assert!(
            correct.abs_diff(documented) <= ROUNDING,
            "{name}: {correct} correct, documented {documented}"
        );
    }
}

#[test]
fn a_single_image_gets_the_same_answer_as_in_a_batch() {
    let (manifest, [_, test]) = digits();
    let (requests, _) = requests(&manifest, &test);
    for variant in &manifest.variants {
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
    let (manifest, [_, test]) = digits();
    let (requests, _) = requests(&manifest, &test);
    let answers: Vec<(String, Vec<Vec<String>>)> = manifest
        .variants
        .iter()
        .map(|variant| {
            let mut loaded = loaded(variant);
            let rounded = logits(&mut loaded, &requests[..4])
                .iter()
                .map(|row| row.iter().map(|logit| format!("{logit:.1}")).collect())
                .collect();
            (variant.name.clone(), rounded)
        })
        .collect();
    insta::assert_compact_json_snapshot!(answers);
}
