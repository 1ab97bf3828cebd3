use std::path::Path;

use super::*;
use crate::architectures::registry::{LoadOptions, load as load_model};
use crate::precision::WeightType;

/// A partition of a small random model saved by transformers.
fn model(name: &str, index: u32, of: u32) -> Result<Box<dyn Model>, LoadError> {
    converted(name, index, of, None)
}

/// The same with weights of another type than those of the file.
fn converted(
    name: &str,
    index: u32,
    of: u32,
    dtype: Option<WeightType>,
) -> Result<Box<dyn Model>, LoadError> {
    let options = LoadOptions {
        partition: Partition::new(index, of).unwrap(),
        dtype,
        ..LoadOptions::default()
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    Ok(load_model(&folder, &Device::Cpu, &options)?.model)
}

fn asking(ids: &[i64]) -> Inputs {
    vec![Tensor::from_i64("input_ids", &[ids.len()], ids).unwrap()]
}

fn values(outputs: &Outputs, name: &str) -> Vec<f32> {
    let output = outputs.iter().find(|output| output.name == name).unwrap();
    output.to_f32().unwrap()
}

fn tokens(outputs: &Outputs) -> Vec<i64> {
    let output = outputs.iter().find(|output| output.name == "tokens").unwrap();
    output.to_i64().unwrap()
}

/// Models of which every layer has an attention.
const ATTENDING: &[&str] = &[
    "gpt2",
    "opt",
    "llama",
    "gptj",
    "mistral-window",
    "qwen2",
    "qwen3",
    "phi3",
    "gpt-neox",
    "gemma2",
    "gemma3",
    "gemma",
    "granite",
    "olmo",
    "olmo2",
    "olmo3",
    "stablelm",
    "starcoder2",
    "phi",
    "smollm3",
    "cohere",
    "cohere2",
    "falcon",
    "falcon-new",
    "gpt-neo",
    "bloom",
    "mpt",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
    "falcon-rw",
    "opt-350m",
    "cohere-norms",
    "olmo-clipped",
    "glm4",
    "glm4-moe-lite",
    "codegen",
    "openai-gpt",
    "xglm",
    "modernbert-decoder",
    "vaultgemma",
    "nemotron",
    "hunyuan",
    "hunyuan-moe",
    "minimax-m2",
    "dots1",
    "nanochat",
    "cwm",
    "apertus",
    "ministral3",
    "gpt-bigcode",
    "granite-moe",
    "gpt-oss",
    "ernie-moe",
    "phimoe",
    "deepseek-v2",
    "deepseek-v3",
    "solar-open",
    "youtu",
    "minicpm3",
    "jais2",
    "hyperclovax",
    "granite-moe-shared",
    "granite-swa",
    "granite-moe-swa",
    "flex-olmo",
    "mellum",
    "exaone-moe",
    "afmoe",
    "biogpt",
    "gpt-oss-mxfp4",
    "deepseek-v3-fp8",
    "qwen2-gptq",
    "llama-nf4",
    "bitnet",
    "gemma3-vision",
    "mistral3",
    "qwen2-5-vl",
    "qwen3-vl-moe",
    "smolvlm",
    "llama4",
    "gemma4",
];

/// Models with recurrent layers.
const RECURRENT: [&str; 12] = [
    "lfm2",
    "lfm2-moe",
    "qwen3-next",
    "qwen3-5",
    "granite-hybrid",
    "falcon-h1",
    "nemotron-h",
    "mamba",
    "mamba2",
    "jamba",
    "bamba",
    "qwen3-5-moe",
];

#[test]
fn chained_partitions_equal_the_whole_model() {
    for name in ATTENDING.iter().copied().chain(RECURRENT) {
        let requests = [
            asking(&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]),
            asking(&[7]),
            asking(&[2, 7, 1, 8]),
        ];
        let one = Tensor::from_i64("max_tokens", &[1], &[1]).unwrap();
        let whole = requests
            .iter()
            .map(|inputs| [inputs.clone(), vec![one.clone()]].concat());
        let whole = whole.collect::<Vec<_>>();
        let kinds = [WeightType::Bf16, WeightType::Q8_0, WeightType::Q4_0];
        let types = std::iter::once(None).chain(kinds.map(Some));
        for (of, dtype) in types.into_iter().flat_map(|dtype| [(2, dtype), (3, dtype)]) {
            let whole = converted(name, 0, 1, dtype).unwrap().run(&whole);
            let Ok(mut first) = converted(name, 0, of, dtype) else {
                continue;
            };
            let mut carried: Vec<Inputs> = first.run(&requests).into_iter().map(Result::unwrap).collect();
            for index in 1..of {
                let mut next = converted(name, index, of, dtype).unwrap();
                carried = next.run(&carried).into_iter().map(Result::unwrap).collect();
            }
            for (split, whole) in carried.iter().zip(&whole) {
                let whole = whole.as_ref().unwrap();
                assert_eq!(tokens(split), tokens(whole), "{name} in {of}, {dtype:?}");
                for what in ["probabilities", "confidence"] {
                    let (split, whole) = (values(split, what), values(whole, what));
                    let off = split
                        .iter()
                        .zip(&whole)
                        .map(|(a, b)| (a - b).abs())
                        .fold(0.0, f32::max);
                    assert!(
                        off < 1e-5 && split.len() == 1,
                        "{name} in {of}, {dtype:?}: {what} is off by {off}"
                    );
                }
            }
        }
    }
}

#[test]
fn partitions_count_the_weights_that_they_hold() {
    let bytes = |name: &str, index, of| {
        let options = LoadOptions {
            partition: Partition::new(index, of).unwrap(),
            ..LoadOptions::default()
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let info = load_model(&folder, &Device::Cpu, &options).unwrap().info;
        (info.parameters, info.weight_bytes)
    };
    // 96 tokens, 24 wide: the tied head and the embedding are one matrix.
    let (parameters, whole) = bytes("gpt2", 0, 1);
    assert_eq!(whole, 4 * parameters);
    let halves = bytes("gpt2", 0, 2).1 + bytes("gpt2", 1, 2).1;
    // The last partition has a copy of it, and every partition keeps the final norm.
    assert_eq!(halves, whole + 4 * (96 * 24 + 2 * 24));
    let (parameters, separate) = bytes("gptj", 0, 1);
    assert_eq!(separate, 4 * parameters);
}

#[test]
fn an_invalid_request_to_a_partition_fails_alone() {
    let mut first = model("gpt2", 0, 2).unwrap();
    let long = asking(&[1; 97]);
    let foreign = asking(&[1, 96]);
    let good = asking(&[1, 2]);
    let results = first.run(&[long, foreign, good]);
    assert!(
        matches!(
            results.as_slice(),
            [Err(_), Err(ModelError::BadInput { .. }), Ok(_)]
        ),
        "{results:?}"
    );
    let mut last = model("gpt2", 1, 2).unwrap();
    let rejected = last.run(&[asking(&[1])]);
    assert!(
        matches!(rejected.as_slice(), [Err(ModelError::UnknownInput { .. })]),
        "{rejected:?}"
    );
    let many = model("gpt2", 0, 50).err();
    assert!(
        matches!(many, Some(LoadError::TooManyPartitions { of: 50, .. })),
        "{many:?}"
    );
}
