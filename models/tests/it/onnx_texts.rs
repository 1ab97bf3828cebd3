//! ONNX files of text models, with the files of sentence-transformers. Skipped under the conditions of [`super::onnx`].

use std::path::{Path, PathBuf};
use std::process::Command;

use kaskade_models::{DeviceChoice, LoadError, LoadOptions, Loaded, Task, Tensor, load_onnx};

use super::onnx::{in_environment, python};

/// Script that writes graphs of `input_ids` and `attention_mask` with the vectors of five tokens. Outputs: the vectors as
/// `last_hidden_state`, their mean as `sentence_embedding`, or the first element of the mean as `logits`.
const GRAPH: &str = r#"
import sys, onnx
from onnx import TensorProto as T, helper as h
def port(name, kind, shape): return h.make_tensor_value_info(name, kind, shape)
table = h.make_tensor("table", T.FLOAT, [5, 2], [0, 0, 3, 4, 1, 0, 0, 2, 5, 5])
inputs = [port(name, T.INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")]
nodes = [h.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"]),
    h.make_node("ReduceMean", ["last_hidden_state"], ["sentence_embedding"], axes=[1], keepdims=0),
    h.make_node("Slice", ["sentence_embedding", "zero", "one", "one"], ["logits"])]
constants = [table, h.make_tensor("zero", T.INT64, [1], [0]), h.make_tensor("one", T.INT64, [1], [1])]
states = port("last_hidden_state", T.FLOAT, ["batch", "sequence", 2])
vector = port("sentence_embedding", T.FLOAT, ["batch", 2])
outputs = {"tokens": [states], "vector": [states, vector], "logit": [port("logits", T.FLOAT, ["batch", 1])]}[sys.argv[2]]
graph = h.make_graph(nodes, "texts", inputs, outputs, constants)
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), sys.argv[1])
"#;

/// A word-level tokenizer, whose ids are rows of the table.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null, "truncation": null, "padding": null,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "q": 4}, "unk_token": "[UNK]"}}"#;
const MODULES: &str = r#"[{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"},
    {"path": "2_Normalize", "type": "x.Normalize"}]"#;

/// Writes these files and a graph of this kind, `onnx/model.onnx`, to a new folder.
fn written(kind: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onnx/model.onnx");
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let program = Command::new(python().unwrap())
        .args(["-c", GRAPH])
        .arg(&file)
        .arg(kind)
        .status();
    assert!(program.unwrap().success());
    (folder, file)
}

fn loaded(file: &Path) -> Result<Loaded, LoadError> {
    load_onnx(file, DeviceChoice::Cpu, &LoadOptions::default())
}

/// Returns an output for a request of texts.
fn output(model: &mut Loaded, name: &str, inputs: &[(&str, &str)]) -> Vec<f32> {
    let inputs = inputs
        .iter()
        .map(|(name, text)| Tensor::from_texts(*name, &[text]).unwrap());
    let outputs = model.model.run(&[inputs.collect()]).remove(0).unwrap();
    let found = outputs.iter().find(|output| output.name == name);
    found.unwrap().to_f32().unwrap()
}

#[test]
fn modules_above_the_folder_of_a_file_apply() {
    if !in_environment("onnx_texts::modules_above_the_folder_of_a_file_apply") {
        return;
    }
    let (_folder, file) = written(
        "tokens",
        &[
            (
                "onnx/config.json",
                r#"{"model_type": "xlm-roberta", "max_position_embeddings": 514}"#,
            ),
            ("onnx/tokenizer.json", TOKENIZER),
            // Ignored: an adapter applies only to weights of the folder.
            ("onnx/adapter_config.json", "{}"),
            ("modules.json", MODULES),
            ("1_Pooling/config.json", r#"{"pooling_mode": "mean"}"#),
            (
                "config_sentence_transformers.json",
                r#"{"truncate_dim": 9, "similarity_fn_name": "dot"}"#,
            ),
        ],
    );
    let mut model = loaded(&file).unwrap();
    assert_eq!(model.info.task, Task::Embedding);
    assert_eq!(output(&mut model, "embedding", &[("text", "a")]), [0.6, 0.8]);
    let ids = model.model.signature();
    let ids = ids.inputs.iter().find(|input| input.name == "input_ids").unwrap();
    assert!(
        format!("{ids:?}").contains("512"),
        "positions begin after the padding: {ids:?}"
    );
}

#[test]
fn settings_of_texts_apply_to_a_graph_that_pools() {
    if !in_environment("onnx_texts::settings_of_texts_apply_to_a_graph_that_pools") {
        return;
    }
    let settings = r#"{"prompts": {"query": "q ", "document": ""}, "default_prompt_name": "query", "similarity_fn_name": "dot",
        "truncate_dim": 1}"#;
    let files = [
        ("config.json", "{}"),
        ("tokenizer.json", TOKENIZER),
        ("modules.json", MODULES),
        ("1_Pooling/config.json", "{}"),
        (
            "sentence_bert_config.json",
            r#"{"max_seq_length": 3, "do_lower_case": true}"#,
        ),
        ("config_sentence_transformers.json", settings),
    ];
    let (_plain, plain) = written("vector", &files[..2]);
    let (_folder, file) = written("vector", &files);
    let (mut plain, mut model) = (loaded(&plain).unwrap(), loaded(&file).unwrap());
    assert_eq!(model.info.task, Task::Embedding);
    assert_eq!(model.info.prompts, ["document", "query"]);
    assert_eq!(format!("{:?}", model.info.similarity), "Dot");
    let mut plain = |text: &str| output(&mut plain, "sentence_embedding", &[("text", text)])[..1].to_vec();
    let mut of = |inputs: &[(&str, &str)]| output(&mut model, "sentence_embedding", inputs);
    assert_eq!(of(&[("text", "a b")]), plain("q a b"));
    assert_eq!(
        of(&[("text", "A b c")]),
        plain("q a b"),
        "in lower case, and three tokens of it"
    );
    assert_eq!(of(&[("text", "a b"), ("prompt_name", "document")]), plain("a b"));
}

#[test]
fn modules_without_a_vector_of_a_text_leave_a_graph_as_it_is() {
    if !in_environment("onnx_texts::modules_without_a_vector_of_a_text_leave_a_graph_as_it_is") {
        return;
    }
    let transformer = r#"{"path": "", "type": "x.Transformer"}"#;
    let dense = r#"{"path": "1_Dense", "type": "pylate.models.Dense.Dense"}"#;
    let pooling = r#"{"path": "2_Pooling", "type": "x.Pooling"}"#;
    let load = |modules: &str, kind: &str| {
        let (_folder, file) = written(
            "tokens",
            &[
                ("tokenizer.json", TOKENIZER),
                ("modules.json", modules),
                ("1_Dense/config.json", r#"{"in_features": 2, "out_features": 2}"#),
                ("1_Dense/model.safetensors", "\u{2}\0\0\0\0\0\0\0{}"),
                ("2_Pooling/config.json", "{}"),
                (
                    "config_sentence_transformers.json",
                    &format!(r#"{{"model_type": "{kind}"}}"#),
                ),
            ],
        );
        loaded(&file)
    };
    for (modules, kind) in [
        (format!("[{transformer}, {dense}]"), "ColBERT"),
        (format!("[{transformer}, {dense}]"), "SentenceTransformer"),
        (
            r#"[{"path": "", "type": "x.CLIPModel"}]"#.to_owned(),
            "SentenceTransformer",
        ),
    ] {
        let mut model = load(&modules, kind).unwrap();
        let states = output(&mut model, "last_hidden_state", &[("text", "a b")]);
        assert_eq!(states, [3.0, 4.0, 1.0, 0.0], "{modules}");
    }
    let error = load(
        &format!("[{transformer}, {pooling}, {dense}]"),
        "SentenceTransformer",
    );
    assert!(matches!(error, Err(LoadError::BadModules { .. })));
}

#[test]
fn one_logit_of_a_text_is_a_score() {
    if !in_environment("onnx_texts::one_logit_of_a_text_is_a_score") {
        return;
    }
    let sigmoid = |logit: f32| 1.0 / (1.0 + (-logit).exp());
    let saved = r#"{"id2label": {"0": "LABEL_0"}, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}"#;
    for (config, expected) in [
        (
            r#"{"id2label": {"0": "LABEL_0"}, "model_type": "bert"}"#,
            sigmoid(2.0),
        ),
        ("{}", sigmoid(2.0)),
        (saved, 2.0),
    ] {
        let (_folder, file) = written("logit", &[("config.json", config), ("tokenizer.json", TOKENIZER)]);
        let mut model = loaded(&file).unwrap();
        assert_eq!((model.info.task, model.info.labels.len()), (Task::Reranking, 1));
        let pair = [("text", "a"), ("text_pair", "b")];
        assert_eq!(output(&mut model, "logits", &pair), [2.0]);
        let score = output(&mut model, "score", &pair);
        assert!((score[0] - expected).abs() < 1e-6, "{score:?}");
    }
}
