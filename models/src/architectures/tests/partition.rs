//! Tests that chained partitions give the same outputs as the whole model.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use kaskade_policy::plan::Partition;

use crate::architectures::registry::*;
use crate::checkpoint::LoadError;
use crate::device::Device;
use crate::runtime::loaded::Loaded;
use crate::runtime::model::{Inputs, ModelError, Outputs};
use crate::selftest::fixtures::{self, Fixture};
use crate::test_support::{assert_close, chained};

fn load_partition(fixture: &Fixture, partition: Partition) -> Result<Loaded, LoadError> {
    let options = LoadOptions {
        partition,
        ..LoadOptions::default()
    };
    load_checkpoint(fixture.checkpoint()?, &Device::Cpu, &options)
}

fn partitions(fixture: &Fixture, of: u32) -> Vec<Loaded> {
    let partition = |index| load_partition(fixture, Partition::new(index, of).unwrap()).unwrap();
    (0..of).map(partition).collect()
}

fn layers(fixture: &Fixture) -> u32 {
    let config: serde_json::Value = serde_json::from_slice(fixture.config).unwrap();
    let key = "num_hidden_layers";
    let layers = config.get(key).unwrap_or_else(|| &config["vision_config"][key]);
    u32::try_from(layers.as_u64().unwrap()).unwrap()
}

/// Returns whether a text exceeds the fixtures' context of 24 tokens.
fn is_long(input: &crate::Tensor) -> bool {
    input.name == "text_pair" && input.data.len() > 70
}

#[test]
fn chained_partitions_equal_the_whole_model() {
    for fixture in fixtures::ALL
        .iter()
        .filter(|fixture| fixture.name.starts_with("bert-") || fixture.name == "vit")
    {
        // All requests in one batch: the shorter ones are padded, and padding must not be passed on.
        let requests: Vec<Inputs> = fixture
            .cases()
            .unwrap()
            .into_iter()
            .map(|case| case.inputs)
            // Only the whole model combines the windows of a long context.
            .filter(|inputs| !(fixture.name.contains("answering") && inputs.iter().any(is_long)))
            .collect();
        let load = |partition| load_partition(fixture, partition);
        let mut whole = chained(load, 1, &requests).unwrap();
        for outputs in &mut whole {
            // The last partition has no text to extract an answer from.
            outputs.retain(|output| !output.name.starts_with("answer"));
        }
        for of in 2..=layers(fixture) {
            let split = chained(load, of, &requests).unwrap();
            assert_close(&format!("{} in {of}", fixture.name), &whole, &split);
        }
    }
}

#[test]
fn partitions_divide_the_weights() {
    for fixture in fixtures::ALL
        .iter()
        .filter(|fixture| fixture.name.contains("classification"))
    {
        let whole = load_partition(fixture, Partition::WHOLE).unwrap().info;
        let partitions = partitions(fixture, layers(fixture));
        let parameters = partitions.iter().map(|partition| partition.info.parameters);
        assert_eq!(parameters.sum::<u64>(), whole.parameters, "{}", fixture.name);
    }
}

#[test]
fn unsupported_partitions_are_rejected() {
    let fixture = |name: &str| {
        fixtures::ALL
            .into_iter()
            .find(|fixture| fixture.name == name)
            .unwrap()
    };
    let rejection = |name: &str, of: u32| {
        let error = load_partition(&fixture(name), Partition::new(0, of).unwrap());
        error.map(|_| ()).unwrap_err().to_string()
    };
    assert!(rejection("cnn", 2).contains("cannot be split by layers"));
    assert!(rejection("vit", 99).contains("cannot be split into 99 partitions"));
}

#[test]
fn states_that_do_not_match_their_mask_fail_alone() {
    let fixture = fixtures::ALL
        .into_iter()
        .find(|fixture| fixture.name == "bert-classification")
        .unwrap();
    let mut partitions = partitions(&fixture, 2);
    let request = fixture.cases().unwrap().remove(0).inputs;
    let states = partitions[0].model.run(&[request]).remove(0).unwrap();
    let mut short = states.clone();
    short[1] = crate::Tensor::from_i64("attention_mask", &[1], &[1]).unwrap();
    let mut unseen = states.clone();
    let length = unseen[1].shape[0];
    unseen[1] = crate::Tensor::from_i64("attention_mask", &[length], &vec![0; length]).unwrap();
    let answers = partitions[1].model.run(&[short, states, unseen]);
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
