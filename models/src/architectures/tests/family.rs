//! Compares every encoder family with transformers, whole and in partitions, on the checkpoints in `models/fixtures`.

use std::path::{Path, PathBuf};

use kaskade_policy::plan::Partition;

use crate::architectures::registry::*;
use crate::checkpoint::LoadError;
use crate::device::Device;
use crate::runtime::loaded::Task;
use crate::runtime::model::Inputs;
use crate::runtime::tensor::Tensor;
use crate::selftest::fixtures::Fixture;
use crate::tasks::entities::{self, AggregationStrategy};
use crate::test_support::{assert_close, assert_partitioning, chained};

const FAMILIES: &[&str] = &[
    "timm-dinov2",
    "timm-dinov2-registers",
    "embedding-gemma",
    "dinov3",
    "dinov3-gated",
    "timm-vit-clip",
    "timm-deit3",
    "timm-beit",
    "timm-eva",
    "timm-eva-normalised",
    "clip-text",
    "clip-vision",
    "siglip-text",
    "siglip-vision",
    "jina-bert",
    "timm-vit",
    "longformer",
    "longformer-token-classification",
    "longformer-question-answering",
    "gte",
    "gte-new",
    "jina-embeddings-v3",
    "ultrabert",
    "ultrabert-question-answering",
    "eurobert",
    "eurobert-mean",
    "eurobert-token-classification",
    "mobilebert",
    "mobilebert-token-classification",
    "data2vec-vision",
    "megatron-bert",
    "rembert",
    "big-bird",
    "big-bird-question-answering",
    "esm",
    "esm-absolute",
    "esm-token-classification",
    "t5-encoder",
    "t5-tokens",
    "umt5-encoder",
    "umt5-tokens",
    "squeezebert",
    "convbert",
    "convbert-question-answering",
    "xlnet",
    "xlnet-question-answering",
    "xlnet-token-classification",
    "luke",
    "fnet",
    "fnet-question-answering",
    "beit",
    "beit-shared",
    "distilbert",
    "distilbert-question-answering",
    "roberta",
    "roberta-question-answering",
    "xlm-roberta",
    "camembert",
    "electra",
    "electra-question-answering",
    "albert",
    "mpnet",
    "deberta",
    "deberta-v2",
    "deberta-v3",
    "deberta-v2-convolution",
    "xlm-roberta-xl",
    "i-bert",
    "dpr",
    "modernbert",
    "modernbert-mean",
    "modernbert-question-answering",
    "deit",
    "deit-distilled",
    "data2vec-text",
    "roberta-prelayernorm",
    "ernie",
    "nomic-bert",
    "nomic-bert-experts",
    "vit-msn",
    "vit-features",
    "dinov2-features",
    "dinov2",
    "dinov2-registers",
    "clip",
    "metaclip-2-classification",
    "ijepa",
    "siglip",
    "roformer",
    "roformer-question-answering",
    "llama-classification",
    "gpt2-classification",
    "bert-token-classification",
    "roberta-token-classification",
    "distilbert-token-classification",
    "electra-token-classification",
    "modernbert-token-classification",
    "llama-token-classification",
    "gpt2-token-classification",
    "privacy-filter",
    "xlm",
    "xlm-question-answering",
    "flaubert",
    "layoutlm",
];

/// Families that cannot be partitioned.
const WHOLE: &[&str] = &[
    "chinese-clip",
    "metaclip-2",
    "timm-swin",
    "timm-swinv2",
    "timm-mixer",
    "timm-repvgg",
    "timm-resmlp",
    "timm-densenet",
    "timm-inception",
    "timm-mobilevit",
    "timm-mobilevitv2",
    "timm-vgg",
    "timm-vgg-norms",
    "timm-mobilenetv4",
    "dinov3-convnext",
    "timm-convnext-nano",
    "clip-dual",
    "siglip-dual",
    "timm-resnet",
    "timm-bottleneck",
    "timm-resnet-d",
    "timm-resnet-groups",
    "timm-resnet-rescaled",
    "timm-resnet-squeezing",
    "timm-convnextv2",
    "timm-lcnet",
    "timm-tinynet",
    "timm-mobilenetv1",
    "timm-convnext",
    "timm-mobilenetv3",
    "timm-efficientnet",
    "mobilevit",
    "mobilevitv2",
    "pvt",
    "pvt-v2",
    "segformer",
    "resnet",
    "resnet-basic",
    "convnext",
    "convnextv2",
    "swin",
    "swinv2",
    "bart-classification",
    "mbart-classification",
    "plbart-classification",
    "t5-classification",
    "umt5-classification",
    "regnet",
    "regnet-x",
    "mobilenet-v1",
    "mobilenet-v2",
    "mobilenet-v2-torch",
    "efficientnet",
    "efficientnet-max",
    "hiera",
    "poolformer",
    "cvt",
    "cvt-windows",
    "bit",
    "bit-bottleneck",
    "hgnet-v2",
    "textnet",
    "swiftformer",
    "focalnet",
    "focalnet-overlapping",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn fixture(name: &'static str) -> Fixture {
    let read = |file: &str| -> &'static [u8] { std::fs::read(folder(name).join(file)).unwrap().leak() };
    Fixture {
        name,
        config: read("config.json"),
        weights: read("model.safetensors"),
        tokenizer: folder(name)
            .join("tokenizer.json")
            .is_file()
            .then(|| read("tokenizer.json")),
        expected: read("expected.json"),
    }
}

#[test]
fn every_family_matches_transformers() {
    let mut failures = Vec::new();
    for &name in FAMILIES.iter().chain(WHOLE) {
        match fixture(name).compare(&Device::Cpu) {
            Ok(parity) if parity.largest_difference < 1e-4 && parity.largest_padding_difference < 1e-5 => {
                println!("{name}: {parity:?}");
            }
            other => failures.push(format!("{name}: {other:?}")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_family_can_be_split() {
    for &name in FAMILIES {
        let fixture = fixture(name);
        let requests: Vec<Inputs> = fixture
            .cases()
            .unwrap()
            .into_iter()
            .map(|case| case.inputs)
            .collect();
        let load = |partition| {
            let options = LoadOptions {
                partition,
                ..LoadOptions::default()
            };
            load_checkpoint(fixture.checkpoint().unwrap(), &Device::Cpu, &options)
        };
        let of = |partitions| chained(load, partitions, &requests).unwrap();
        assert_close(name, &of(1), &of(2));
    }
}

#[test]
fn families_that_cannot_be_split_say_so() {
    for &name in WHOLE {
        let options = LoadOptions {
            partition: Partition::new(0, 2).unwrap(),
            ..LoadOptions::default()
        };
        let refused = load_checkpoint(fixture(name).checkpoint().unwrap(), &Device::Cpu, &options);
        assert!(
            matches!(refused.err().unwrap(), LoadError::NotPartitioned { .. }),
            "{name}"
        );
    }
}

#[test]
fn layers_and_width_are_known_without_the_weights() {
    for &name in FAMILIES {
        let known = partitioning(&folder(name)).unwrap().expect(name);
        let load = |partition| {
            let options = LoadOptions {
                partition,
                ..LoadOptions::default()
            };
            load(&folder(name), &Device::Cpu, &options)
        };
        assert_partitioning(name, load, known);
    }
    for &name in WHOLE {
        assert_eq!(partitioning(&folder(name)).unwrap(), None, "{name}");
    }
}

#[test]
fn what_an_architecture_cannot_do_is_refused_by_its_key() {
    for (name, key, value) in [
        ("deberta-v2-convolution", "conv_kernel_size", "4"),
        ("deberta-v2-convolution", "conv_groups", "3"),
        ("dpr", "projection_dim", "8"),
        ("i-bert", "quant_mode", "true"),
        ("i-bert", "hidden_act", "\"relu\""),
        ("deberta", "talking_head", "true"),
        ("deberta", "relative_attention", "false"),
        ("deberta-v3", "position_buckets", "1"),
        ("modernbert", "classifier_pooling", "\"last\""),
        ("roberta", "pad_token_id", "50"),
        ("albert", "num_hidden_groups", "7"),
        ("mpnet", "relative_attention_num_buckets", "3"),
        ("electra", "position_embedding_type", "\"relative_key\""),
        ("distilbert", "problem_type", "\"regression\""),
        ("resnet", "layer_type", "\"wide\""),
        ("convnext", "depths", "[1]"),
        ("swin", "window_size", "8"),
        ("poolformer", "pool_size", "2"),
        ("cvt", "qkv_projection_method", "[\"avg\", \"avg\", \"avg\"]"),
        ("cvt", "cls_token", "[false, false, false]"),
        ("cvt", "stride_q", "[2, 1, 1]"),
        ("bit", "output_stride", "4"),
        ("bit", "num_groups", "3"),
        ("bit", "width_factor", "2"),
        ("bit", "global_padding", "\"valid\""),
        ("poolformer", "strides", "[0, 1, 2]"),
        ("swin", "num_heads", "[3, 4]"),
        ("beit", "image_size", "[16, 12]"),
        ("eurobert", "classifier_pooling", "\"last\""),
        ("eurobert", "num_key_value_heads", "3"),
        ("eurobert", "rope_parameters", "{\"rope_type\": \"yarn\"}"),
        ("mobilebert", "trigram_input", "false"),
        ("mobilebert", "normalization_type", "\"layer_norm\""),
        ("mobilebert", "intra_bottleneck_size", "11"),
        ("big-bird", "attention_type", "\"random\""),
        ("esm", "is_folding_model", "true"),
        ("esm", "position_embedding_type", "\"relative_key\""),
        ("t5-encoder", "dense_act_fn", "\"tanh\""),
        ("t5-encoder", "relative_attention_num_buckets", "3"),
        ("squeezebert", "embedding_size", "10"),
        ("squeezebert", "q_groups", "3"),
        ("convbert", "conv_kernel_size", "4"),
        ("convbert", "num_groups", "3"),
        ("convbert", "is_decoder", "true"),
        ("fnet", "use_tpu_fourier_optimizations", "true"),
        ("nomic-bert", "rotary_scaling_factor", "2"),
        ("nomic-bert", "rotary_emb_scale_base", "512"),
        ("nomic-bert", "causal", "true"),
        ("nomic-bert-experts", "moe_every_n_layers", "1"),
        ("nomic-bert-experts", "moe_top_k", "5"),
        ("nomic-bert-experts", "num_shared_experts", "1"),
        ("nomic-bert-experts", "ffn_div", "2"),
        ("nomic-bert-experts", "expert_choice_router", "true"),
        ("nomic-bert-experts", "activation_function", "\"swiglu\""),
        ("nomic-bert-experts", "mlp_fc2_bias", "false"),
        ("timm-inception", "width_multiplier", "0"),
        ("timm-inception", "image_size", "74"),
        ("hiera", "masked_unit_size", "[8, 8]"),
        ("hiera", "num_query_pool", "1"),
        ("hiera", "embed_dim_multiplier", "1"),
        ("hiera", "query_stride", "[4, 4]"),
        ("hiera", "num_heads", "[1, 2, 3]"),
        ("xlnet", "attn_type", "\"uni\""),
        ("xlnet", "bi_data", "true"),
        ("xlnet", "d_head", "4"),
        ("xlnet", "summary_type", "\"attn\""),
        ("xlnet", "summary_use_proj", "false"),
        ("xlnet", "summary_activation", "null"),
    ] {
        let mut fixture = fixture(name);
        let mut config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(fixture.config).unwrap();
        config.insert(key.into(), serde_json::from_str(value).unwrap());
        fixture.config = serde_json::to_vec(&config).unwrap().leak();
        let error = fixture.compare(&Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("config.json` has `"), "{name} {key}: {error}");
    }
}

/// As in transformers, a separately stated activation overrides that of `feed_forward_proj`.
#[test]
fn the_activation_of_t5_may_be_stated_by_itself() {
    let answers = |keys: serde_json::Value| {
        let mut fixture = fixture("t5-encoder");
        let mut config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(fixture.config).unwrap();
        for key in ["feed_forward_proj", "dense_act_fn", "is_gated_act"] {
            config.remove(key);
        }
        config.extend(keys.as_object().unwrap().clone());
        fixture.config = serde_json::to_vec(&config).unwrap().leak();
        let requests: Vec<Inputs> = fixture
            .cases()
            .unwrap()
            .into_iter()
            .map(|case| case.inputs)
            .collect();
        let loaded = load_checkpoint(
            fixture.checkpoint().unwrap(),
            &Device::Cpu,
            &LoadOptions::default(),
        );
        loaded.unwrap().model.run(&requests).remove(0).unwrap()
    };
    let stated = answers(serde_json::json!({"feed_forward_proj": "relu", "dense_act_fn": "gelu"}));
    assert_eq!(stated, answers(serde_json::json!({"feed_forward_proj": "gelu"})));
    assert_ne!(stated, answers(serde_json::json!({})));
    let old = answers(serde_json::json!({"feed_forward_proj": "gated-relu", "is_gated_act": false}));
    assert_eq!(old, answers(serde_json::json!({})));
}

#[test]
fn the_base_model_alone_gives_embeddings() {
    for (name, class) in [("roberta", "RobertaModel"), ("modernbert", "ModernBertModel")] {
        let mut fixture = fixture(name);
        let mut config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(fixture.config).unwrap();
        config.insert("architectures".into(), serde_json::json!([class]));
        fixture.config = serde_json::to_vec(&config).unwrap().leak();
        let refused = load_checkpoint(
            fixture.checkpoint().unwrap(),
            &Device::Cpu,
            &LoadOptions::default(),
        );
        assert!(
            refused.err().unwrap().to_string().contains("classifier"),
            "the classifier is not used"
        );
        let options = LoadOptions {
            partition: Partition::new(1, 2).unwrap(),
            ..LoadOptions::default()
        };
        let loaded = load_checkpoint(fixture.checkpoint().unwrap(), &Device::Cpu, &options).unwrap();
        assert_eq!(
            (loaded.info.task, loaded.info.labels),
            (Task::Embedding, Vec::new())
        );
    }
}

#[test]
fn a_directory_of_sentence_transformers_gives_its_embeddings() {
    let fixture = fixture("sentence-transformer");
    let mut loaded = load(
        &folder("sentence-transformer"),
        &Device::Cpu,
        &LoadOptions::default(),
    )
    .unwrap();
    assert_eq!(
        (loaded.info.task, loaded.info.name.as_str()),
        (Task::Embedding, "sentence-transformer")
    );
    assert_eq!(
        architecture(&folder("sentence-transformer")).unwrap(),
        "BertModel"
    );
    let parity = fixture.compare_model(loaded.model.as_mut()).unwrap();
    assert!(
        parity.cases == 3 && parity.largest_difference < 1e-5,
        "{parity:?}"
    );
}

#[test]
fn a_token_classifier_takes_a_text_and_a_strategy() {
    let mut loaded = load(
        &folder("bert-token-classification"),
        &Device::Cpu,
        &LoadOptions {
            aggregation_strategy: AggregationStrategy::First,
            ..LoadOptions::default()
        },
    )
    .unwrap();
    assert_eq!(loaded.info.task, Task::TokenClassification);
    assert_eq!(loaded.info.labels, ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]);
    let text = |name, text| Tensor::from_texts(name, &[text]).unwrap();
    let words = "The old keeper kept the light of the lighthouse in 1919.";
    let named = |strategy| vec![text("text", words), text("aggregation_strategy", strategy)];
    let ids = Tensor::from_i64("input_ids", &[3], &[2, 7, 3]).unwrap();
    let answers = loaded.model.run(&[
        vec![text("text", words)],
        named("first"),
        named("simple"),
        named("last"),
        vec![ids.clone(), text("aggregation_strategy", "first")],
        vec![text("text", words), text("text_pair", "who?")],
        vec![text("text", "")],
        vec![ids],
    ]);
    assert_eq!(answers[0], answers[1]);
    assert_ne!(answers[0], answers[2]);
    for (refused, reason) in [
        (3, "`last` is none of"),
        (4, "allowed with `text` only"),
        (5, "text_pair"),
    ] {
        let error = answers[refused].as_ref().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    // Only tokens that the tokenizer adds.
    let nothing = answers[6].as_ref().unwrap();
    assert_eq!(entities::of_outputs(nothing).unwrap(), Some(Vec::new()));
    assert!((nothing[1].to_f32().unwrap()[0] - 1.0).abs() < 1e-6);
    assert_eq!(entities::of_outputs(answers[7].as_ref().unwrap()).unwrap(), None);
}

#[test]
fn token_types_that_the_tokenizer_leaves_out_are_zero() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let from = folder("bert-classification").join(file);
        std::fs::copy(from, dir.path().join(file)).unwrap();
    }
    let mut answers = Vec::new();
    for names in [
        r#"["input_ids", "token_type_ids", "attention_mask"]"#,
        r#"["input_ids", "attention_mask"]"#,
    ] {
        let config = format!(r#"{{"model_input_names": {names}}}"#);
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        let mut model = load(dir.path(), &Device::Cpu, &LoadOptions::default())
            .unwrap()
            .model;
        let text = |name, text| Tensor::from_texts(name, &[text]).unwrap();
        let pair = vec![text("text", "the sea"), text("text_pair", "is deep")];
        answers.push(model.run(&[pair]).remove(0).unwrap());
        // [CLS] the sea [SEP] is deep [SEP], all of type 0.
        let tokenizer = std::fs::read(dir.path().join("tokenizer.json")).unwrap();
        let tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer).unwrap();
        let encoding = tokenizer.encode(("the sea", "is deep"), true).unwrap();
        let ids: Vec<i64> = encoding.get_ids().iter().map(|id| i64::from(*id)).collect();
        let ids = Tensor::from_i64("input_ids", &[ids.len()], &ids).unwrap();
        answers.push(model.run(&[vec![ids]]).remove(0).unwrap());
    }
    assert_eq!(answers[2], answers[1]);
    assert_ne!(answers[0], answers[1]);
}

#[test]
fn positions_follow_the_size_of_prepared_images() {
    let mut loaded = load(&folder("dinov2-resized"), &Device::Cpu, &LoadOptions::default()).unwrap();
    let parity = fixture("dinov2-resized")
        .compare_model(loaded.model.as_mut())
        .unwrap();
    assert!(
        parity.cases == 3 && parity.largest_difference < 1e-4,
        "{parity:?}"
    );
}

#[test]
fn a_directory_of_timm_is_that_of_a_class_of_transformers() {
    for (name, class) in [
        ("timm-resnet", "ResNetForImageClassification"),
        ("timm-convnext", "ConvNextForImageClassification"),
        ("timm-vit", "ViTForImageClassification"),
    ] {
        assert_eq!(architecture(&folder(name)).unwrap(), class);
        let loaded = load(&folder(name), &Device::Cpu, &LoadOptions::default()).unwrap();
        assert_eq!(loaded.info.architecture, class);
        assert_eq!(loaded.info.labels, ["sport", "science", "trade"]);
        // Images are preprocessed by `pretrained_cfg`.
        let inputs = loaded.model.signature().inputs.into_iter();
        assert!(
            inputs.map(|input| input.name).eq(["pixel_values", "image_file"]),
            "{name}"
        );
    }
}

#[test]
fn modules_that_are_not_supported_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |modules: &str| {
        std::fs::write(dir.path().join("modules.json"), modules).unwrap();
        let error = load(dir.path(), &Device::Cpu, &LoadOptions::default())
            .err()
            .unwrap();
        error.to_string()
    };
    let module = |path: &str, kind: &str| {
        format!(r#"[{{"path": "{path}", "type": "sentence_transformers.models.{kind}"}}]"#)
    };
    assert!(refused(&module("", "LSTM")).contains("is not supported"));
    assert!(refused(&module("../other", "Transformer")).contains("not a folder"));
    assert!(refused("[]").contains("no module `Transformer`"));
    assert!(refused("{").contains("modules.json"));
}

#[test]
fn the_reference_pages_list_every_architecture() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/architectures");
    let pages: String = std::fs::read_dir(folder)
        .unwrap()
        .map(|page| std::fs::read_to_string(page.unwrap().path()).unwrap())
        .collect();
    for name in supported() {
        assert!(pages.contains(&format!("`{name}`")), "{name}");
    }
}
