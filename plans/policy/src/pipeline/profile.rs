//! A pipeline as the simulator reads it.

use std::collections::BTreeMap;

use super::{PathAccuracy, Pipeline, TaskVariant};
use crate::confidence::{Calibration, Estimator};
use crate::profile::{BatchCost, Profile, Validation, VariantProfile};

/// Pipelines do not use confidence.
const ESTIMATOR: Estimator = Estimator::Given;

impl Pipeline {
    /// The latencies of all variants as a [`Profile`], for the simulator. It has one validation sample, which every variant answers
    /// correctly: the accuracy of a pipeline is in its plan's stages and [path accuracies](Self::path_accuracies).
    pub fn profile(&self) -> Profile {
        let variants = self.tasks.iter().flat_map(|task| &task.variants);
        Profile {
            device: "as in the pipeline".to_owned(),
            ..Profile::new(&self.name, ESTIMATOR, variants.map(profiled).collect())
        }
    }

    /// End-to-end accuracies by task and variant of each step, where they were profiled
    /// (`path_accuracies` of the simulator); empty where products stand in.
    pub fn path_accuracies(&self) -> BTreeMap<Vec<(String, String)>, f64> {
        let PathAccuracy::Profiled { paths } = &self.path_accuracy else {
            return BTreeMap::new();
        };
        let step = |name: &String| {
            let (task, _) = self.variant(name)?;
            Some((self.tasks.get(task)?.name.clone(), name.clone()))
        };
        let way = |names: &[String]| names.iter().map(step).collect::<Option<Vec<_>>>();
        paths
            .iter()
            .filter_map(|path| Some((way(&path.variants)?, path.accuracy)))
            .collect()
    }
}

fn profiled(variant: &TaskVariant) -> VariantProfile {
    let cost = |sample: &super::BatchLatency| BatchCost::new(sample.batch, sample.us / 1e6);
    VariantProfile {
        parameters: 0,
        checkpoint: variant.checkpoint.clone(),
        ..VariantProfile::new(
            &variant.name,
            Calibration::uncalibrated(ESTIMATOR),
            variant.latency.iter().map(cost).collect(),
            Validation::new(vec![0], vec![1.0], vec![true]),
        )
    }
}
