use tempfile::TempDir;

use super::super::Checkpoint;
use super::*;

/// Creates a directory with these files, which are empty except for a BERT configuration.
fn directory(files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let content = match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => r#"{"model_type": "bert"}"#,
            _ => "",
        };
        std::fs::write(path, content).unwrap();
    }
    dir
}

fn refused(dir: &TempDir) -> String {
    Checkpoint::open(dir.path()).unwrap_err().to_string()
}

#[test]
fn an_adapter_beside_weights_is_refused() {
    let files = ["config.json", "model.safetensors", "adapter_config.json"];
    let error = refused(&directory(&files));
    assert!(
        error.contains("adapter_config.json") && error.contains("merge_and_unload"),
        "{error}"
    );
    let alone = refused(&directory(&files[2..]));
    assert!(alone.contains("this one is an adapter"), "{alone}");
}

/// An adapter next to an ONNX file and a tokenizer is not an error, because the directory's weights are not needed.
#[test]
fn an_adapter_beside_a_tokenizer_is_of_no_concern() {
    let dir = directory(&["config.json", "adapter_config.json"]);
    assert!(Config::open(dir.path()).is_ok());
    assert!(crate::checkpoint::text_files::TextFiles::open(dir.path()).is_ok());
    let error = Config::of_directory(dir.path()).unwrap_err();
    assert!(error.to_string().contains("merge_and_unload"), "{error}");
}

#[test]
fn weights_in_other_formats_are_named_with_what_to_do() {
    for (file, part) in [
        ("tf_model.h5", "from_tf=True"),
        ("onnx/model.onnx", "`file = \"DIR/onnx/model.onnx\"`"),
        ("consolidated.safetensors", "Mistral"),
    ] {
        let error = refused(&directory(&["config.json", file]));
        assert!(error.contains(part), "{file}: {error}");
    }
}

#[test]
fn an_onnx_file_in_place_of_a_directory_is_named() {
    let dir = directory(&["model.onnx"]);
    let why = why_no_checkpoint(&dir.path().join("model.onnx"));
    assert!(why.contains("`file` in place of `dir`"), "{why}");
}

#[test]
fn a_missing_shard_is_to_be_downloaded() {
    let dir = directory(&["config.json"]);
    let index = r#"{"weight_map": {"a": "model-00001-of-00001.safetensors"}}"#;
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let error = refused(&dir);
    assert!(
        error.contains("model-00001-of-00001.safetensors") && error.contains("download it"),
        "{error}"
    );
}

/// Regression: the error said only that the path does not exist, without mentioning the Hub.
#[test]
fn an_id_of_the_hub_is_named_with_the_command_that_downloads_it() {
    let folder = tempfile::tempdir().unwrap();
    let why = |path: &str| why_no_checkpoint(&folder.path().join(path));
    let id = why("google-bert/bert-base-uncased");
    assert!(
        id.contains("`hf download google-bert/bert-base-uncased --local-dir DIR`"),
        "{id}"
    );
    let misspelt = why("checkpont");
    assert!(
        misspelt.contains("`hf download ORG/MODEL --local-dir DIR`"),
        "{misspelt}"
    );
    let relative = why_no_checkpoint(Path::new("no-such-owner/bert"));
    assert!(
        relative.contains("`hf download no-such-owner/bert "),
        "{relative}"
    );
}
