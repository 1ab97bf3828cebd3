//! Test helpers: run the partitions of a model in a chain and compare them with the whole model.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use kaskade_policy::plan::Partition;

use crate::checkpoint::LoadError;
use crate::runtime::hidden_states::HIDDEN_STATES;
use crate::runtime::loaded::Loaded;
use crate::runtime::model::{Extent, Inputs, Outputs};
use crate::runtime::partitioning::Partitioning;

/// Runs requests in one batch through all `of` partitions of a model; with 1, through the whole model.
///
/// # Errors
/// Errors of `load`. Panics if a partition rejects a request.
pub(crate) fn chained(
    load: impl Fn(Partition) -> Result<Loaded, LoadError>,
    of: u32,
    requests: &[Inputs],
) -> Result<Vec<Outputs>, LoadError> {
    let mut batch = requests.to_vec();
    for index in 0..of {
        let mut model = load(Partition::new(index, of).unwrap())?.model;
        for inputs in &batch {
            model.signature().check(inputs).unwrap();
        }
        batch = model.run(&batch).into_iter().map(Result::unwrap).collect();
    }
    Ok(batch)
}

/// Asserts that two models give equal outputs, numbers within 1e-5; `what` is the prefix of the message.
pub(crate) fn assert_close(what: &str, whole: &[Outputs], chained: &[Outputs]) {
    assert_eq!(whole.len(), chained.len(), "{what}");
    for (whole, chained) in whole.iter().zip(chained) {
        let shapes = |outputs: &Outputs| {
            let shapes = outputs
                .iter()
                .map(|output| (output.name.clone(), output.shape.clone()));
            shapes.collect::<Vec<_>>()
        };
        assert_eq!(shapes(whole), shapes(chained), "{what}");
        assert!(!whole.is_empty(), "{what}");
        for (whole, chained) in whole.iter().zip(chained) {
            let (Ok(one), Ok(other)) = (whole.to_f32(), chained.to_f32()) else {
                assert_eq!(whole, chained, "{what}");
                continue;
            };
            let differences = one.iter().zip(&other).map(|(one, other)| (one - other).abs());
            let largest = differences.fold(0.0, f32::max);
            assert!(largest < 1e-5, "{what}: {} differs by {largest}", whole.name);
        }
    }
}

/// Asserts that a model has the number of layers and the width that were read from its configuration alone.
pub(crate) fn assert_partitioning(
    what: &str,
    load: impl Fn(Partition) -> Result<Loaded, LoadError>,
    known: Partitioning,
) {
    let refused = load(Partition::new(0, u32::MAX).unwrap()).err();
    let Some(LoadError::TooManyPartitions { blocks, .. }) = refused else {
        panic!("{what}: {refused:?}");
    };
    assert_eq!(blocks, known.layers, "{what}");
    let last = load(Partition::new(1, 2).unwrap()).unwrap();
    let signature = last.model.signature();
    let states = signature.inputs.iter().find(|input| input.name == HIDDEN_STATES);
    assert_eq!(
        states.unwrap().shape.last(),
        Some(&Extent::Exactly(known.width)),
        "{what}"
    );
}
