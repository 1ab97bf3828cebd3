use super::*;
use crate::architectures::registry::{LoadOptions, load as load_model, partitioning};
use crate::generation::fixtures::{DECODERS, folder};
use crate::precision::WeightType;
use crate::runtime::loaded::Loaded;
use crate::runtime::usage::USAGE;
use crate::test_support::{assert_close, assert_partitioning, chained};

/// Loads a partition of a small random checkpoint saved by transformers, with weights of type `dtype`, or of the
/// file's type.
fn loaded(name: &str, partition: Partition, dtype: Option<WeightType>) -> Result<Loaded, LoadError> {
    let options = LoadOptions {
        partition,
        dtype,
        ..LoadOptions::default()
    };
    load_model(&folder(name), &Device::Cpu, &options)
}

fn model(name: &str, index: u32, of: u32) -> Result<Box<dyn Model>, LoadError> {
    Ok(loaded(name, Partition::new(index, of).unwrap(), None)?.model)
}

fn asking(ids: &[i64]) -> Inputs {
    vec![Tensor::from_i64("input_ids", &[ids.len()], ids).unwrap()]
}

/// Checkpoints of [`DECODERS`] that cannot be split: encoder-decoders, and models whose layers depend on more than the
/// previous layer's hidden states.
const NOT_SPLIT: [&str; 14] = [
    "t5",
    "t5-v1_1",
    "umt5",
    "long-t5",
    "t5gemma",
    "led",
    "bart",
    "mbart",
    "pegasus",
    "marian",
    "m2m-100",
    "blenderbot",
    "gemma4-small",
    "gemma3n",
];

#[test]
fn chained_partitions_equal_the_whole_model() {
    let requests = [
        asking(&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]),
        asking(&[7]),
        asking(&[2, 7, 1, 8]),
    ];
    let one = Tensor::from_i64("max_tokens", &[1], &[1]).unwrap();
    let to_whole = requests
        .clone()
        .map(|inputs| [inputs, vec![one.clone()]].concat());
    let kinds = [WeightType::Bf16, WeightType::Q8_0, WeightType::Q4_0];
    for name in DECODERS.iter().filter(|name| !NOT_SPLIT.contains(name)) {
        for dtype in std::iter::once(None).chain(kinds.map(Some)) {
            let load = |partition| loaded(name, partition, dtype);
            let mut whole = chained(load, 1, &to_whole).unwrap();
            for outputs in &mut whole {
                // The last partition does not receive the prompt.
                outputs.retain(|output| output.name != USAGE);
            }
            for of in [2, 3] {
                let what = format!("{name} in {of}, {dtype:?}");
                match chained(load, of, &requests) {
                    Ok(split) => assert_close(&what, &whole, &split),
                    Err(LoadError::TooManyPartitions { blocks: 2, .. }) if of == 3 => {}
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
}

#[test]
fn models_that_cannot_be_split_say_so() {
    for name in NOT_SPLIT {
        assert!(DECODERS.contains(&name), "{name}");
        let refused = model(name, 0, 2).err();
        assert!(
            matches!(refused, Some(LoadError::NotPartitioned { of: 2, .. })),
            "{name}: {refused:?}"
        );
    }
}

#[test]
fn layers_and_width_are_known_without_the_weights() {
    let ggufs = ["gguf/llama", "gguf/gpt2", "gguf/falcon", "gguf/bloom"];
    let names = DECODERS.iter().filter(|name| !NOT_SPLIT.contains(name));
    for name in names.chain(&ggufs) {
        let known = partitioning(&folder(name)).unwrap().expect(name);
        assert_partitioning(name, |partition| loaded(name, partition, None), known);
    }
    for name in NOT_SPLIT {
        assert_eq!(partitioning(&folder(name)).unwrap(), None, "{name}");
    }
}

#[test]
fn partitions_count_the_weights_that_they_hold() {
    let bytes = |name: &str, index, of| {
        let info = loaded(name, Partition::new(index, of).unwrap(), None)
            .unwrap()
            .info;
        (info.parameters, info.weight_bytes)
    };
    // 96 tokens, 24 wide: the tied head shares the matrix of the embedding.
    let (parameters, whole) = bytes("gpt2", 0, 1);
    assert_eq!(whole, 4 * parameters);
    let halves = bytes("gpt2", 0, 2).1 + bytes("gpt2", 1, 2).1;
    // The last partition has its own copy of the embedding, and both partitions keep the final norm.
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
