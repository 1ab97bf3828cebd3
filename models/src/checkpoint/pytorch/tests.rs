use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::*;
use crate::checkpoint::Checkpoint;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture("pytorch").join(name)).unwrap()
}

fn weights(bytes: Vec<u8>) -> Result<Weights, LoadError> {
    Weights::from_bytes("pytorch_model.bin", Bytes::from(bytes))
}

fn refused(bytes: Vec<u8>) -> String {
    weights(bytes).unwrap_err().to_string()
}

/// Files of both containers, in memory and on disk, have the tensors of the safetensors file, two of them under two names.
#[test]
fn both_containers_have_every_tensor_in_row_major_order() {
    let mut expected = Weights::from_bytes("expected", bytes("tensors.safetensors").into()).unwrap();
    for name in ["archive.bin", "sequence.bin"] {
        let file = std::fs::File::open(fixture("pytorch").join(name)).unwrap();
        let on_disk = Weights::from_file(name, file).unwrap();
        for mut found in [weights(bytes(name)).unwrap(), on_disk] {
            assert_eq!(found.raw().len(), expected.raw().len() + 2, "{name}");
            for tensor in expected.raw() {
                let same = found.raw().into_iter().find(|other| other.name == tensor.name);
                assert_eq!(same.as_ref(), Some(&tensor), "{name}");
                assert_eq!(
                    found.bytes_of(&tensor.name).unwrap(),
                    expected.bytes_of(&tensor.name).unwrap(),
                    "{name}: {}",
                    tensor.name
                );
            }
            for (tied, with) in [("tied", "matrix"), ("tied_transposed", "transposed")] {
                let bytes = found.bytes_of(tied).unwrap();
                assert_eq!(bytes, expected.bytes_of(with).unwrap(), "{name}: {tied}");
            }
            for tensor in expected.raw() {
                found.take_numbers(&tensor.name, &tensor.shape).unwrap();
            }
            found.finish(&[]).unwrap();
        }
    }
}

/// A part of a tensor that is not in row-major order is that part of its row-major order.
#[test]
fn slices_of_a_permuted_tensor_are_read() {
    let mut expected = Weights::from_bytes("expected", bytes("tensors.safetensors").into()).unwrap();
    let values = expected.take("permuted", &[4, 2, 3]).unwrap();
    let mut found = weights(bytes("archive.bin")).unwrap();
    assert!(found.has_values("permuted", &[4, 2, 3], &values).unwrap());
}

/// A file of a tied model has the head too; it is neither missing nor unused.
#[test]
fn a_directory_with_tied_weights_loads() {
    let gpt2 = fixture("gpt2");
    let expected = Checkpoint::open(&gpt2).unwrap().weights;
    for shards in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(gpt2.join("config.json"), dir.path().join("config.json")).unwrap();
        let file = if shards {
            "pytorch_model-00001-of-00001.bin"
        } else {
            "pytorch_model.bin"
        };
        std::fs::write(dir.path().join(file), bytes("gpt2.bin")).unwrap();
        if shards {
            let names = weights(bytes("gpt2.bin")).unwrap().raw();
            let map: serde_json::Map<String, serde_json::Value> = names
                .into_iter()
                .map(|tensor| (tensor.name, file.into()))
                .collect();
            let index = serde_json::json!({ "weight_map": map }).to_string();
            std::fs::write(dir.path().join("pytorch_model.bin.index.json"), index).unwrap();
        }
        let mut found = Checkpoint::open(dir.path()).unwrap().weights;
        for tensor in expected.raw() {
            found.take(&tensor.name, &tensor.shape).unwrap();
        }
        found.finish(&[]).unwrap();
    }
}

/// Old directories of sentence-transformers have such files in the folders of their modules.
#[test]
fn a_module_of_sentence_transformers_loads() {
    let dir = tempfile::tempdir().unwrap();
    let from = fixture("sentence-modules");
    for file in [
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "3_Dense/config.json",
        "5_Dense/config.json",
        "5_Dense/model.safetensors",
    ] {
        let target = dir.path().join(file);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(from.join(file), target).unwrap();
    }
    let missing = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(missing.contains("3_Dense"), "{missing}");
    std::fs::write(dir.path().join("3_Dense/pytorch_model.bin"), bytes("dense.bin")).unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap().sentence.is_some());
}

/// A file of PyTorch is read only in a directory without safetensors.
#[test]
fn safetensors_come_first() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("gpt2").join(file), dir.path().join(file)).unwrap();
    }
    std::fs::write(dir.path().join("pytorch_model.bin"), b"damaged").unwrap();
    Checkpoint::open(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("pytorch_model.bin"), "{error}");
}

/// A tensor that nothing takes and that shares no data is still an error.
#[test]
fn unused_tensors_are_refused() {
    let mut found = weights(bytes("gpt2.bin")).unwrap();
    found
        .take("lm_head.weight", &shape_of(&found, "lm_head.weight"))
        .unwrap();
    let error = found.finish(&[]).unwrap_err();
    let LoadError::UnusedTensors { names, .. } = error else {
        panic!("{error}");
    };
    assert!(!names.iter().any(|name| name.contains("wte")), "{names:?}");
    assert!(names.iter().any(|name| name.contains("wpe")), "{names:?}");
}

fn shape_of(weights: &Weights, name: &str) -> Vec<usize> {
    let mut raw = weights.raw().into_iter();
    raw.find(|tensor| tensor.name == name).unwrap().shape
}

#[test]
fn whole_modules_and_nested_dictionaries_are_refused_with_what_to_save() {
    let module = refused(bytes("module.bin"));
    assert!(
        module.contains("`torch.nn.modules.linear.Linear`") && module.contains("model.state_dict()"),
        "{module}"
    );
    let nested = refused(bytes("nested.bin"));
    assert!(
        nested.contains("`state_dict` is a dictionary")
            && nested.contains("torch.load(FILE)[\"state_dict\"]"),
        "{nested}"
    );
}

/// A sequence of pickles around `object`, without storages.
fn sequence(object: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let version = b"\x80\x02M\xe9\x03.";
    let machine = b"\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    [&magic[..], version, machine, object, b"\x80\x02]."].concat()
}

#[test]
fn code_in_a_pickle_is_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join("ran");
    let command = format!("touch {}", marker.display());
    let mut object = b"\x80\x02cposix\nsystem\nX".to_vec();
    object.extend((command.len() as u32).to_le_bytes());
    object.extend(command.as_bytes());
    object.extend(b"\x85R.");
    let error = refused(sequence(&object));
    assert!(error.contains("`posix.system`"), "{error}");
    assert!(!marker.exists());
}

#[test]
fn endless_and_deep_pickles_are_refused() {
    // A tuple in a tuple, ten million deep.
    let mut deep = b"\x80\x02)".to_vec();
    deep.extend(std::iter::repeat_n(0x85, 10_000_000));
    deep.push(b'.');
    let error = refused(sequence(&deep));
    assert!(error.contains("objects"), "{error}");
    // A list that contains itself.
    let error = refused(sequence(b"\x80\x02]q\x00h\x00a."));
    assert!(error.contains("dictionary of tensors"), "{error}");
    // Big-endian numbers.
    let file = sequence(b"\x80\x02}.");
    assert!(weights(file.clone()).is_ok());
    let at = file.windows(2).position(|pair| pair == b"\x88s").unwrap();
    let mut big = file;
    big[at] = 0x89;
    let error = refused(big);
    assert!(error.contains("big-endian"), "{error}");
}

/// Every cut and every changed byte is refused or gives tensors that can be read or not; nothing panics.
#[test]
fn damaged_files_are_refused_or_read() {
    for name in ["archive.bin", "sequence.bin"] {
        let whole = bytes(name);
        for end in 0..whole.len() {
            try_all(whole[..end].to_vec());
        }
        for at in 0..whole.len() {
            for bit in [0x01, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= bit;
                try_all(damaged);
            }
        }
    }
}

fn try_all(bytes: Vec<u8>) {
    if let Ok(mut weights) = weights(bytes) {
        for tensor in weights.raw() {
            let _ = weights.bytes_of(&tensor.name);
        }
    }
}
