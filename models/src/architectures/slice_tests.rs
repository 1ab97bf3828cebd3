//! Chained slices of a model answer as the whole model.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use super::registry::*;
use crate::checkpoint::LoadError;
use crate::device::Device;
use crate::runtime::loaded::Loaded;
use crate::runtime::model::{Inputs, ModelError, Outputs};
use crate::runtime::slice::Slice;
use crate::selftest::fixtures::{self, Fixture};

fn load_slice(fixture: &Fixture, slice: Slice) -> Result<Loaded, LoadError> {
    let options = LoadOptions {
        slice,
        ..LoadOptions::default()
    };
    load_checkpoint(fixture.checkpoint()?, &Device::Cpu, &options)
}

fn slices(fixture: &Fixture, of: usize) -> Vec<Loaded> {
    let slice = |index| load_slice(fixture, Slice::new(index, of).unwrap()).unwrap();
    (0..of).map(slice).collect()
}

fn layers(fixture: &Fixture) -> usize {
    let config: serde_json::Value = serde_json::from_slice(fixture.config).unwrap();
    let key = "num_hidden_layers";
    let layers = config.get(key).unwrap_or_else(|| &config["vision_config"][key]);
    usize::try_from(layers.as_u64().unwrap()).unwrap()
}

/// Returns every numeric output, by name.
fn numbers(outputs: &Outputs) -> Vec<(String, Vec<f32>)> {
    let floats = outputs
        .iter()
        .filter(|output| output.datatype == crate::Datatype::F32);
    floats
        .map(|output| (output.name.clone(), output.to_f32().unwrap()))
        .collect()
}

/// Whether a text has more tokens than the fixtures' context of 24.
fn is_long(input: &crate::Tensor) -> bool {
    input.name == "text_pair" && input.data.len() > 70
}

#[test]
fn chained_slices_equal_the_whole_model() {
    for fixture in fixtures::ALL
        .iter()
        .filter(|fixture| fixture.name.starts_with("bert-") || fixture.name == "vit")
    {
        // All requests in one batch: the shorter ones are padded, and the padding must not travel on.
        let requests: Vec<Inputs> = fixture
            .cases()
            .unwrap()
            .into_iter()
            .map(|case| case.inputs)
            // Only the whole model combines the windows of a long context.
            .filter(|inputs| !(fixture.name.contains("answering") && inputs.iter().any(is_long)))
            .collect();
        let whole = load_slice(fixture, Slice::WHOLE).unwrap().model.run(&requests);
        for of in 1..=layers(fixture) {
            let mut batch = requests.clone();
            for mut slice in slices(fixture, of) {
                for inputs in &batch {
                    slice.model.signature().check(inputs).unwrap();
                }
                batch = slice.model.run(&batch).into_iter().map(Result::unwrap).collect();
            }
            for (whole, chained) in whole.iter().zip(&batch) {
                let (whole, chained) = (numbers(whole.as_ref().unwrap()), numbers(chained));
                assert!(!whole.is_empty() && whole.len() == chained.len());
                for ((name, whole), (same, chained)) in whole.iter().zip(&chained) {
                    assert_eq!((name, whole.len()), (same, chained.len()), "{}", fixture.name);
                    let differences = whole.iter().zip(chained).map(|(one, other)| (one - other).abs());
                    let largest = differences.fold(0.0, f32::max);
                    assert!(
                        largest <= 1e-5,
                        "{} in {of}: {name} differs by {largest}",
                        fixture.name
                    );
                }
            }
        }
    }
}

#[test]
fn slices_divide_the_weights() {
    for fixture in fixtures::ALL
        .iter()
        .filter(|fixture| fixture.name.contains("classification"))
    {
        let whole = load_slice(fixture, Slice::WHOLE).unwrap().info;
        let slices = slices(fixture, layers(fixture));
        let parameters = slices.iter().map(|slice| slice.info.parameters);
        assert_eq!(parameters.sum::<u64>(), whole.parameters, "{}", fixture.name);
    }
}

#[test]
fn unsupported_slices_are_rejected() {
    let fixture = |name: &str| {
        fixtures::ALL
            .into_iter()
            .find(|fixture| fixture.name == name)
            .unwrap()
    };
    let rejection = |name: &str, of: usize| {
        let error = load_slice(&fixture(name), Slice::new(0, of).unwrap());
        error.map(|_| ()).unwrap_err().to_string()
    };
    assert!(rejection("cnn", 2).contains("cannot be split by layers"));
    assert!(rejection("vit", 99).contains("cannot be split into 99 slices"));
}

#[test]
fn states_that_do_not_match_their_mask_fail_alone() {
    let fixture = fixtures::ALL
        .into_iter()
        .find(|fixture| fixture.name == "bert-classification")
        .unwrap();
    let mut slices = slices(&fixture, 2);
    let request = fixture.cases().unwrap().remove(0).inputs;
    let states = slices[0].model.run(&[request]).remove(0).unwrap();
    let mut short = states.clone();
    short[1] = crate::Tensor::from_i64("attention_mask", &[1], &[1]).unwrap();
    let mut unseen = states.clone();
    let length = unseen[1].shape[0];
    unseen[1] = crate::Tensor::from_i64("attention_mask", &[length], &vec![0; length]).unwrap();
    let answers = slices[1].model.run(&[short, states, unseen]);
    let message = |answer: &Result<Outputs, ModelError>| answer.as_ref().unwrap_err().to_string();
    assert!(
        message(&answers[0]).contains("length differs"),
        "{}",
        message(&answers[0])
    );
    assert!(answers[1].is_ok());
    assert!(
        message(&answers[2]).contains("it masks every token"),
        "{}",
        message(&answers[2])
    );
}
