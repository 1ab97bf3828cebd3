//! Weight types: the committed families as stored, converted while loading, and from quantised directories.

use std::path::{Path, PathBuf};

use kaskade_models::generation::SamplingOptions;
use kaskade_models::{
    Device, Generation, Inputs, LoadError, LoadOptions, Loaded, QuantiseError, Tensor, WeightType,
    architecture, load, quantise,
};

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(path)
}

fn loaded(dir: &Path, dtype: Option<WeightType>) -> Loaded {
    let options = LoadOptions {
        dtype,
        generation: Generation {
            sampling: SamplingOptions {
                max_tokens: Some(24),
                ..SamplingOptions::default()
            },
            ..Generation::default()
        },
        ..LoadOptions::default()
    };
    load(dir, &Device::Cpu, &options).unwrap()
}

fn request(text: &str) -> Inputs {
    vec![Tensor::from_texts("text", &[text]).unwrap()]
}

/// Returns a classifier's logits for texts of different lengths.
fn logits(loaded: &mut Loaded) -> Vec<Vec<f32>> {
    let texts = [
        "a warm , funny and moving film",
        "dull",
        "the plot is thin , but the two leads carry it with wit and a great deal of charm",
    ];
    let answers = loaded.model.run(&texts.map(request)).into_iter();
    answers
        .map(|answer| {
            answer
                .unwrap()
                .iter()
                .find(|output| output.name == "logits")
                .unwrap()
                .to_f32()
                .unwrap()
        })
        .collect()
}

/// Returns the tokens of a language model and their probabilities.
fn continued(loaded: &mut Loaded) -> (Vec<i64>, Vec<f32>) {
    let outputs = loaded
        .model
        .run(&[request("KING RICHARD III:\nMy lord, ")])
        .remove(0)
        .unwrap();
    let of = |name: &str| outputs.iter().find(|output| output.name == name).unwrap();
    (
        of("tokens").to_i64().unwrap(),
        of("probabilities").to_f32().unwrap(),
    )
}

fn largest_difference(one: &[Vec<f32>], other: &[Vec<f32>]) -> f32 {
    let pairs = one.iter().flatten().zip(other.iter().flatten());
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn an_encoder_answers_in_every_type_and_its_memory_follows() {
    let dir = example("sentiment/weights/sentiment-mini");
    let mut wide = loaded(&dir, Some(WeightType::F32));
    let expected = logits(&mut wide);
    // Stored in f16, which f32 represents exactly, so the logits are bit-identical.
    let mut stored = loaded(&dir, None);
    assert_eq!(logits(&mut stored), expected);
    let mut least = wide.info.weight_bytes;
    assert_eq!(wide.info.parameters, stored.info.parameters);
    for (dtype, most) in [
        (WeightType::Bf16, 0.05),
        (WeightType::Q8_0, 0.05),
        (WeightType::Q4_0, 1.0),
    ] {
        let mut converted = loaded(&dir, Some(dtype));
        let difference = largest_difference(&logits(&mut converted), &expected);
        assert!(difference > 0.0 && difference < most, "{dtype}: {difference}");
        assert!(converted.info.weight_bytes < least, "{dtype}");
        least = converted.info.weight_bytes;
    }
    let share = |loaded: &Loaded| loaded.info.weight_bytes as f64 / wide.info.weight_bytes as f64;
    // Norms and biases stay f32.
    assert!((0.5..0.51).contains(&share(&stored)), "{}", share(&stored));
    assert!((0.26..0.28).contains(&share(&loaded(&dir, Some(WeightType::Q8_0)))));
}

#[test]
fn a_language_model_answers_in_every_type() {
    let dir = example("shakespeare/weights/shakespeare-base");
    let mut wide = loaded(&dir, Some(WeightType::F32));
    let (tokens, probabilities) = continued(&mut wide);
    let mut stored = loaded(&dir, None);
    assert_eq!(continued(&mut stored), (tokens.clone(), probabilities.clone()));
    assert!(stored.info.weight_bytes < wide.info.weight_bytes * 6 / 10);
    for (dtype, most) in [(WeightType::Q8_0, 0.02), (WeightType::Q4_0, 0.3)] {
        let mut converted = loaded(&dir, Some(dtype));
        let (first, found) = continued(&mut converted);
        // Only the first token's context does not depend on the weight type.
        assert_eq!(first[0], tokens[0], "{dtype}");
        assert!((found[0] - probabilities[0]).abs() < most, "{dtype}: {found:?}");
        assert!(converted.info.weight_bytes < stored.info.weight_bytes, "{dtype}");
    }
}

#[test]
fn a_quantised_directory_answers_like_its_original_in_that_type() {
    let folder = tempfile::tempdir().unwrap();
    for (index, dtype) in [WeightType::Q8_0, WeightType::Q4_0].into_iter().enumerate() {
        let from = example("sentiment/weights/sentiment-mini");
        let to = folder.path().join(format!("encoder-{index}"));
        let report = quantise(&from, &to, dtype).unwrap();
        assert!(report.matrices > 20 && report.others > 20, "{report:?}");
        assert!(report.bytes_after < report.bytes_before * 6 / 10, "{report:?}");
        let (mut here, mut there) = (loaded(&from, Some(dtype)), loaded(&to, None));
        assert_eq!(logits(&mut there), logits(&mut here), "{dtype}");
        assert_eq!(there.info.weight_bytes, here.info.weight_bytes, "{dtype}");
        assert_eq!(there.info.parameters, here.info.parameters, "{dtype}");

        // GPT-2 stores matrices as `[inputs, outputs]`.
        let from = example("shakespeare/weights/shakespeare-base");
        let to = folder.path().join(format!("decoder-{index}"));
        quantise(&from, &to, dtype).unwrap();
        let (mut here, mut there) = (loaded(&from, Some(dtype)), loaded(&to, None));
        assert_eq!(continued(&mut there), continued(&mut here), "{dtype}");
        assert_eq!(there.info.weight_bytes, here.info.weight_bytes, "{dtype}");
    }
}

/// Routers are copied, experts are quantised.
#[test]
fn a_quantised_mixture_of_experts_answers_like_its_original_in_that_type() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["mixtral", "qwen2-moe", "phimoe", "ernie-moe", "deepseek-v2"];
    let kinds = [WeightType::Q8_0, WeightType::Q4_0];
    for (name, kind) in names.into_iter().flat_map(|name| kinds.map(|kind| (name, kind))) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let to = folder.path().join(format!("{name}-{kind}"));
        let report = quantise(&from, &to, kind).unwrap();
        assert!(report.matrices > 20, "{report:?}");
        let (mut here, mut there) = (loaded(&from, Some(kind)), loaded(&to, None));
        assert_eq!(continued(&mut there), continued(&mut here), "{name}, {kind}");
        assert_eq!(there.info.weight_bytes, here.info.weight_bytes, "{name}, {kind}");
    }
}

/// An incomplete directory would make the next run fail.
#[test]
fn nothing_remains_of_a_directory_that_could_not_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    std::fs::create_dir(&from).unwrap();
    for entry in std::fs::read_dir(example("sentiment/weights/sentiment-pico")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), from.join(entry.file_name())).unwrap();
    }
    let missing = from.join("notes.txt");
    std::os::unix::fs::symlink("no-such-file", &missing).unwrap();
    let to = folder.path().join("quantised");
    let refused = quantise(&from, &to, WeightType::Q8_0).unwrap_err();
    assert!(matches!(refused, QuantiseError::Write { .. }), "{refused}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    std::fs::remove_file(missing).unwrap();
    quantise(&from, &to, WeightType::Q8_0).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_quantised_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let from = example("sentiment/weights/sentiment-pico");
    let to = folder.path().join("quantised");
    let refused = quantise(&from, &to, WeightType::Bf16).unwrap_err();
    assert!(
        matches!(refused, QuantiseError::NotQuantised(WeightType::Bf16)),
        "{refused}"
    );
    quantise(&from, &to, WeightType::Q8_0).unwrap();
    let refused = quantise(&from, &to, WeightType::Q8_0).unwrap_err();
    assert!(matches!(refused, QuantiseError::Exists { .. }), "{refused}");
    // A directory inside the checkpoint would be copied into itself.
    let copy = folder.path().join("copy");
    std::fs::create_dir_all(copy.join("inner")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), copy.join(file)).unwrap();
    }
    for inside in ["quantised", "inner/quantised", "new/quantised"] {
        let refused = quantise(&copy, &copy.join(inside), WeightType::Q8_0).unwrap_err();
        assert!(matches!(refused, QuantiseError::Inside { .. }), "{refused}");
        assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 3);
    }
    let refused = quantise(&to, &folder.path().join("again"), WeightType::Q4_0).unwrap_err();
    assert!(matches!(refused, QuantiseError::Already { .. }), "{refused}");
    let config = to.join("config.json");
    let other = std::fs::read_to_string(&config)
        .unwrap()
        .replace("\"kaskade\"", "\"hqq\"");
    std::fs::write(&config, other).unwrap();
    let refused = load(&to, &Device::Cpu, &LoadOptions::default()).err().unwrap();
    assert!(
        matches!(&refused, LoadError::BadKey { key, .. } if key == "quant_method"),
        "{refused}"
    );
    let refused = architecture(&to).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("gptq, awq, bitnet and bitsandbytes are read"),
        "{refused}"
    );
}

/// Weights of published schemes have the type that the configuration states, or the requested one; their tensors of codes and
/// scales are not counted.
#[test]
fn a_published_quantised_checkpoint_is_converted_to_every_type() {
    for (name, stored, kind) in [
        ("gpt-oss-mxfp4", WeightType::Bf16, WeightType::Q8_0),
        ("deepseek-v3-fp8", WeightType::F32, WeightType::Bf16),
        ("gpt2-gptq", WeightType::F32, WeightType::Q4_0),
    ] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let (mut default, mut same) = (loaded(&dir, None), loaded(&dir, Some(stored)));
        assert_eq!(continued(&mut default), continued(&mut same), "{name}");
        assert_eq!(default.info.weight_bytes, same.info.weight_bytes, "{name}");
        let mut converted = loaded(&dir, Some(kind));
        assert_eq!(converted.info.parameters, default.info.parameters, "{name}");
        assert!(converted.info.weight_bytes < default.info.weight_bytes, "{name}");
        assert!(!continued(&mut converted).0.is_empty(), "{name}");
        let refused = quantise(&dir, &dir.join("again"), WeightType::Q8_0).unwrap_err();
        assert!(matches!(refused, QuantiseError::Already { .. }), "{refused}");
    }
}

/// Compares a family's largest model with its quantised copies, as served by `examples/precisions`.
#[test]
fn copies_of_the_digits_model_are_smaller_and_almost_as_accurate() {
    let dir = example("digits/weights/digits-large");
    let bytes = [None, Some(WeightType::Q8_0), Some(WeightType::Q4_0)]
        .map(|dtype| loaded(&dir, dtype).info.weight_bytes);
    assert!(
        bytes[1] < bytes[0] * 6 / 10 && bytes[2] < bytes[1] * 6 / 10,
        "{bytes:?}"
    );
}
