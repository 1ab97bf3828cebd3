//! Compares GGUF files with transformers on the dequantised weights: `models/fixtures/make_gguf_fixtures.py`.

use kaskade_policy::plan::Partition;

use super::{generate, resident};
use crate::checkpoint::Checkpoint;
use crate::decoder::registry;
use crate::decoder::weights::Decoder;
use crate::generation::fixtures;
use crate::precision::WeightType;

/// At least one file per architecture, several for variants.
const FILES: [&str; 24] = [
    "llama",
    "llama-q4",
    "llama-parts",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2moe",
    "qwen3moe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi2",
    "phi3",
    "starcoder2",
    "stablelm",
    "gpt2",
    "falcon",
    "falcon-new",
    "bloom",
    "olmo2",
    "granite",
    "smollm3",
    "command-r",
    "cohere2",
];

fn checkpoint(name: &str) -> Checkpoint {
    fixtures::checkpoint(&format!("gguf/{name}"))
}

fn decoder(name: &str, kind: Option<WeightType>) -> Decoder {
    let mut checkpoint = checkpoint(name);
    checkpoint.weights.request(kind);
    registry::read_decoder(checkpoint).unwrap()
}

/// Returns the maximum difference between the logits of a model and those of transformers, and the maximum logit.
fn difference(decoder: &Decoder, cases: &[fixtures::Case]) -> [f32; 2] {
    let mut engine = resident(decoder);
    let (mut largest, mut range) = (0.0_f32, 0.0_f32);
    for case in cases {
        let logits = fixtures::score(&mut engine, case);
        let sampled = logits.iter().map(|row| row.iter().step_by(7));
        let sampled = sampled.zip(&case.sampled_logits);
        let pairs = sampled.flat_map(|(actual, expected)| actual.zip(expected));
        let last = logits.last().unwrap().iter().zip(&case.last_logits);
        for (actual, expected) in pairs.chain(last) {
            largest = largest.max((actual - expected).abs());
            range = range.max(expected.abs());
        }
    }
    [largest, range]
}

#[test]
fn logits_and_tokens_of_gguf_files_match_transformers() {
    for name in FILES {
        let cases = fixtures::cases(&format!("gguf/{name}"));
        let decoder = decoder(name, Some(WeightType::F32));
        let [largest, _] = difference(&decoder, &cases);
        println!("{name}: logits differ by {largest:e} at most");
        assert!(largest < 1e-4, "{name}: logits differ by {largest}");
        let prompts: Vec<Vec<u32>> = cases.iter().map(|case| case.prompt.clone()).collect();
        let answers = generate(&mut resident(&decoder), &prompts, 64);
        for (answer, case) in answers.iter().zip(&cases) {
            assert_eq!(answer, &case.tokens, "{name}");
        }
    }
}

#[test]
fn weights_stay_in_the_type_of_most_of_them() {
    for (name, kind) in [
        ("llama", WeightType::Q8_0),
        ("llama-q4", WeightType::Q4_0),
        ("llama-parts", WeightType::F16),
        ("qwen3", WeightType::Bf16),
        ("qwen3moe", WeightType::Bf16),
    ] {
        let decoder = decoder(name, None);
        assert_eq!(decoder.weight_type, kind, "{name}");
        let [largest, range] = difference(&decoder, &fixtures::cases(&format!("gguf/{name}")));
        println!("{name} in {kind}: {}", largest / range);
        // Kernels round activations to 16 bits, and embeddings of `q4_0` are rounded to `q8_0`.
        let most = match kind {
            WeightType::F16 => 1e-4,
            WeightType::Q8_0 => 0.001,
            _ => 0.05,
        };
        assert!(largest < most * range, "{name}: {largest} of {range}");
    }
}

#[test]
fn a_gguf_file_has_a_tokenizer_and_a_chat_template() {
    let checkpoint = checkpoint("llama");
    assert_eq!(checkpoint.name, "llama");
    assert_eq!(checkpoint.generation.eos_token_ids, Some(vec![0]));
    let tokenizer = tokenizers::Tokenizer::from_bytes(&checkpoint.tokenizer.unwrap().json).unwrap();
    let whole = std::fs::read(fixtures::folder("llama2").join("tokenizer.json")).unwrap();
    let whole = tokenizers::Tokenizer::from_bytes(whole).unwrap();
    for text in ["The other hour, at 9:30!", "a</s>b\nc", ""] {
        let ids =
            |tokenizer: &tokenizers::Tokenizer| tokenizer.encode(text, true).unwrap().get_ids().to_vec();
        assert_eq!(ids(&tokenizer), ids(&whole));
    }
    let message = crate::checkpoint::chat_template::Message {
        role: "user".into(),
        content: "hi".into(),
        ..Default::default()
    };
    assert_eq!(
        checkpoint
            .chat
            .render(&[message], &[], &serde_json::Map::new())
            .unwrap(),
        "hi</s>"
    );
}

#[test]
fn partitions_of_gguf_files_have_their_layers() {
    for (name, layers) in [("llama", 1), ("llama-parts", 1), ("gemma3", 3)] {
        for index in 0..2 {
            let partition = Partition::new(index, 2).unwrap();
            let (part, _) = registry::read_partition(checkpoint(name), partition).unwrap();
            assert_eq!(part.layers.len(), layers, "{name}");
        }
    }
}

#[test]
fn gguf_files_are_checkpoints_that_are_not_quantised_again() {
    let folder = fixtures::folder("gguf/llama");
    assert!(crate::checkpoint::is_checkpoint(&folder.join("model.gguf")));
    assert!(crate::checkpoint::is_checkpoint(&folder));
    assert!(!crate::checkpoint::is_checkpoint(&folder.join("expected.json")));
    let missing = Checkpoint::open(&folder.join("none.gguf")).err().unwrap();
    assert!(
        missing.to_string().contains("none.gguf` does not exist"),
        "{missing}"
    );
    assert_eq!(crate::architecture(&folder).unwrap(), "LlamaForCausalLM");
    let to = tempfile::tempdir().unwrap();
    let refused = crate::quantise(&folder, &to.path().join("to"), WeightType::Q8_0).unwrap_err();
    assert!(matches!(refused, crate::QuantiseError::Gguf { .. }), "{refused}");
}

#[test]
fn tensors_that_the_architecture_lacks_are_named() {
    let mut bytes = std::fs::read(fixtures::folder("gguf/llama/model.gguf")).unwrap();
    let name = b"blk.1.ffn_up.weight";
    let place = bytes
        .windows(name.len())
        .position(|window| window == name)
        .unwrap();
    bytes[place + 10] = b'x';
    let checkpoint = Checkpoint::from_gguf("model.gguf", bytes).unwrap();
    let error = registry::read_decoder(checkpoint).unwrap_err().to_string();
    assert!(error.contains("model.layers.1.mlp.up_proj.weight"), "{error}");
}
