use std::fs;
use std::path::Path;

use super::super::fingerprint;
use super::*;

fn write(dir: &Path, name: &str, content: &[u8]) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Builds a safetensors file with tensors of these lengths; the byte at `changed` differs.
fn safetensors(lengths: &[usize], changed: Option<usize>) -> Vec<u8> {
    let mut start = 0;
    let mut header = serde_json::Map::new();
    for (number, length) in lengths.iter().enumerate() {
        let tensor =
            serde_json::json!({"dtype": "U8", "shape": [length], "data_offsets": [start, start + length]});
        header.insert(format!("t{number}"), tensor);
        start += length;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    let data = file.len();
    file.resize(data + start, 7);
    if let Some(changed) = changed {
        file[data + changed] = 8;
    }
    file
}

const MODULES: &[u8] = br#"[{"path": ""}, {"path": "1_Pooling"}]"#;

#[test]
fn what_decides_the_answers_counts_and_nothing_else() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [one.path(), other.path()] {
        write(dir, "config.json", b"{}");
        write(dir, "model.safetensors", &safetensors(&[10], None));
        write(dir, "vocab.txt", b"a\nb\n");
        write(dir, "1_Pooling/config.json", b"{}");
        write(dir, "modules.json", MODULES);
    }
    let first = fingerprint(one.path()).unwrap();
    assert_eq!(first.len(), 16);
    assert_eq!(
        fingerprint(other.path()).unwrap(),
        first,
        "the directory's name does not count"
    );
    for left_over in [
        "README.md",
        "trainer_state.json",
        "eval_results.json",
        "optimizer.pt",
        ".cache.json",
        "onnx/model.onnx",
    ] {
        write(other.path(), left_over, b"x");
    }
    assert_eq!(fingerprint(other.path()).unwrap(), first);
    for (name, content) in [
        ("config.json", &b"{\"a\":1}"[..]),
        ("vocab.txt", b"b\na\n"),
        ("1_Pooling/config.json", b"{\"a\":1}"),
        ("model.safetensors", &safetensors(&[10], Some(3))),
        ("chat_template.jinja", b"{{ x }}"),
    ] {
        let changed = tempfile::tempdir().unwrap();
        write(changed.path(), "config.json", b"{}");
        write(changed.path(), "model.safetensors", &safetensors(&[10], None));
        write(changed.path(), "vocab.txt", b"a\nb\n");
        write(changed.path(), "1_Pooling/config.json", b"{}");
        write(changed.path(), "modules.json", MODULES);
        assert_eq!(fingerprint(changed.path()).unwrap(), first);
        write(changed.path(), name, content);
        assert_ne!(fingerprint(changed.path()).unwrap(), first, "{name}");
    }
}

#[test]
fn a_small_tensor_in_a_large_file_counts() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "config.json", b"{}");
    let lengths = [20 << 20, 16, 20 << 20];
    let of = |changed| {
        write(dir.path(), "model.safetensors", &safetensors(&lengths, changed));
        fingerprint(dir.path()).unwrap()
    };
    let first = of(None);
    for changed in [0, (20 << 20) + 9, (40 << 20) + 15] {
        assert_ne!(of(Some(changed)), first, "byte {changed}");
    }
    assert_eq!(of(None), first);
}

#[test]
fn an_onnx_file_counts_with_its_external_data() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["model.onnx", "model.onnx_data", "other.onnx", "config.json"] {
        write(dir.path(), name, b"x");
    }
    let of = || fingerprint(&dir.path().join("model.onnx")).unwrap();
    let first = of();
    write(dir.path(), "other.onnx", b"y");
    assert_eq!(of(), first);
    for name in ["model.onnx", "model.onnx_data", "config.json"] {
        write(dir.path(), name, b"z");
        assert_ne!(of(), first, "{name}");
        write(dir.path(), name, b"x");
    }
}

#[test]
fn the_modules_of_an_onnx_file_count() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("onnx/model.onnx", &b"x"[..]),
        ("onnx/config.json", b"{}"),
        ("onnx/tokenizer.json", b"{}"),
        ("modules.json", MODULES),
        ("1_Pooling/config.json", b"{}"),
        ("config_sentence_transformers.json", b"{}"),
    ] {
        write(dir.path(), name, content);
    }
    let of = || fingerprint(&dir.path().join("onnx/model.onnx")).unwrap();
    let mut seen = vec![of()];
    for name in ["1_Pooling/config.json", "config_sentence_transformers.json"] {
        write(dir.path(), name, b"{\"a\": 1}");
        let changed = of();
        assert!(!seen.contains(&changed), "{name}");
        seen.push(changed);
    }
}

#[test]
fn a_large_file_of_another_format_is_read_at_evenly_spaced_places() {
    let all = places(1 << 30);
    assert_eq!((all[0], *all.last().unwrap()), (0, (1 << 30) - SAMPLE));
    assert!(
        all.windows(2)
            .all(|pair| pair[1] - pair[0] <= (1 << 30) / (PLACES - 1))
    );
}

#[test]
fn a_missing_checkpoint_is_named() {
    let error = fingerprint(Path::new("/none/such")).unwrap_err();
    assert!(error.to_string().contains("/none/such"), "{error}");
}
