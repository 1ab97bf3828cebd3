//! The committed digits family: what its manifest says of it is so.

use std::path::{Path, PathBuf};

use kaskade_models::idx::LabelledImages;
use kaskade_models::manifest::Manifest;
use kaskade_models::{Device, Inputs, LoadOptions, Loaded, load};

fn family() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/weights")
}

/// The manifest, and the validation and test images.
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

#[test]
fn every_variant_reaches_its_stated_accuracy() {
    let (manifest, [validation, _]) = digits();
    let (requests, labels) = requests(&manifest, &validation);
    for variant in &manifest.variants {
        let directory = family().join(&variant.directory);
        let mut loaded = load(&directory, &Device::flex(), &LoadOptions::default()).unwrap();
        assert_eq!(loaded.info.parameters, variant.parameters, "{}", variant.name);
        for request in &requests {
            assert_eq!(loaded.model.signature().check(request), Ok(()));
        }
        let right = logits(&mut loaded, &requests)
            .iter()
            .zip(&labels)
            .filter(|(logits, label)| best(logits) == usize::from(**label))
            .count();
        // Another processor may round the last bit of a tie another way, and no further.
        let stated = variant.validation_accuracy * labels.len() as f64;
        assert!(
            (right as f64 - stated).abs() <= 1.0,
            "{}: {right} of {} right, stated {stated}",
            variant.name,
            labels.len()
        );
    }
}

#[test]
fn larger_variants_are_more_accurate_and_all_are_small_enough_to_commit() {
    let (manifest, _) = digits();
    assert!(manifest.variants.len() >= 4);
    for pair in manifest.variants.windows(2) {
        assert!(pair[0].parameters < pair[1].parameters, "{pair:?}");
        assert!(
            pair[0].validation_accuracy < pair[1].validation_accuracy,
            "{pair:?}"
        );
    }
    let bytes: u64 = manifest
        .variants
        .iter()
        .map(|variant| family().join(&variant.directory).join("model.safetensors"))
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert!(bytes < 4_000_000, "{bytes} bytes of weights");
}

#[test]
fn one_image_alone_gets_the_answer_it_gets_in_a_batch() {
    let (manifest, [_, test]) = digits();
    let (requests, _) = requests(&manifest, &test);
    for variant in &manifest.variants {
        let directory = family().join(&variant.directory);
        let mut loaded = load(&directory, &Device::flex(), &LoadOptions::default()).unwrap();
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
fn the_first_test_images_get_these_logits() {
    let (manifest, [_, test]) = digits();
    let (requests, _) = requests(&manifest, &test);
    let answers: Vec<(String, Vec<Vec<String>>)> = manifest
        .variants
        .iter()
        .map(|variant| {
            let directory = family().join(&variant.directory);
            let mut loaded = load(&directory, &Device::flex(), &LoadOptions::default()).unwrap();
            let rounded = logits(&mut loaded, &requests[..4])
                .iter()
                .map(|row| row.iter().map(|logit| format!("{logit:.1}")).collect())
                .collect();
            (variant.name.clone(), rounded)
        })
        .collect();
    insta::assert_compact_json_snapshot!(answers);
}
