//! Compares checkpoints outside the repository with transformers; `models/fixtures/make_unseen_checkpoints.py` writes them.

use std::path::Path;

use kaskade_models::{Device, LoadOptions, Tensor, load};
use serde_json::Value;

/// Maximum difference of a logit.
const TOLERANCE: f32 = 5e-4;

fn tensor(json: &Value) -> Tensor {
    let name = json["name"].as_str().unwrap();
    let shape: Vec<usize> = serde_json::from_value(json["shape"].clone()).unwrap();
    let data = json["data"].clone();
    match json["datatype"].as_str().unwrap() {
        "FP32" => Tensor::from_f32(name, &shape, &serde_json::from_value::<Vec<f32>>(data).unwrap()).unwrap(),
        "INT64" => {
            Tensor::from_i64(name, &shape, &serde_json::from_value::<Vec<i64>>(data).unwrap()).unwrap()
        }
        _ => {
            let texts: Vec<String> = serde_json::from_value(data).unwrap();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            Tensor::from_texts(name, &texts).unwrap()
        }
    }
}

fn tensors(json: &Value) -> Vec<Tensor> {
    json.as_array().unwrap().iter().map(tensor).collect()
}

/// Returns a description of the difference; `None` if there is none.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    let (Ok(one), Ok(other)) = (found.to_f32(), expected.to_f32()) else {
        let shown = |tensor: &Tensor| format!("{:?} {:?}", tensor.to_i64().ok(), tensor.to_texts().ok());
        return (found != expected).then(|| format!("{} instead of {}", shown(found), shown(expected)));
    };
    let differences = one.iter().zip(&other).map(|(one, other)| (one - other).abs());
    let largest = differences.fold(0.0, f32::max);
    (one.len() != other.len() || largest > TOLERANCE)
        .then(|| format!("{} differs by {largest}: {one:?}, not {other:?}", found.name))
}

fn compare(dir: &Path) -> Result<(), String> {
    let expected: Value = serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap();
    let loaded = load(dir, &Device::Cpu, &LoadOptions::default());
    if let Some(part) = expected["error"].as_str() {
        return match loaded {
            Ok(_) => Err(format!("it loads, without an error about `{part}`")),
            Err(error) if error.to_string().contains(part) => Ok(()),
            Err(error) => Err(format!("the error lacks `{part}`: {error}")),
        };
    }
    let mut loaded = loaded.map_err(|error| error.to_string())?;
    for (number, case) in expected["cases"].as_array().unwrap().iter().enumerate() {
        let inputs = tensors(&case["inputs"]);
        let outputs = loaded.model.run(&[inputs]).remove(0);
        let outputs = outputs.map_err(|error| format!("case {number}: {error}"))?;
        for expected in tensors(&case["outputs"]) {
            let found = outputs.iter().find(|output| output.name == expected.name);
            let found = found.ok_or_else(|| format!("case {number}: no output `{}`", expected.name))?;
            if let Some(difference) = difference(found, &expected) {
                return Err(format!("case {number}: {difference}"));
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs the checkpoints of models/fixtures/make_unseen_checkpoints.py in KASKADE_CHECKPOINTS"]
fn unseen_checkpoints_answer_as_in_transformers() {
    let root = std::env::var("KASKADE_CHECKPOINTS").expect("KASKADE_CHECKPOINTS names their folder");
    let mut dirs: Vec<_> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    dirs.retain(|dir| dir.join("expected.json").is_file());
    dirs.sort();
    assert!(!dirs.is_empty());
    let mut failures = Vec::new();
    for dir in &dirs {
        match compare(dir) {
            Ok(()) => println!("{}: equal", dir.display()),
            Err(error) => failures.push(format!("{}: {error}", dir.display())),
        }
    }
    println!("{} of {} are equal", dirs.len() - failures.len(), dirs.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
