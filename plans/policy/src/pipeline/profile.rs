//! A pipeline as the simulator reads it.

use std::collections::BTreeMap;

use super::{PathAccuracy, Pipeline, TaskVariant};
use crate::confidence::{Calibration, Estimator};
use crate::profile::{BatchCost, BeforeAfter, PROFILE_VERSION, Profile, Validation, VariantProfile};

/// Pipelines do not use confidence.
const ESTIMATOR: Estimator = Estimator::Given;

impl Pipeline {
    /// The latencies of all variants as a [`Profile`], for the simulator. It has one validation sample, which every variant answers
    /// correctly: the accuracy of a pipeline is in its plan's stages and [path accuracies](Self::path_accuracies).
    pub fn profile(&self) -> Profile {
        let variants = self.tasks.iter().flat_map(|task| &task.variants);
        Profile {
            judge: None,
            hop: None,
            repeats: None,
            turnaround_s: None,
            input_bytes: Vec::new(),
            texts: None,
            version: PROFILE_VERSION,
            app: self.name.clone(),
            device: "as in the pipeline".to_owned(),
            energy_source: "not measured".to_owned(),
            estimator: ESTIMATOR,
            samples: 1,
            variants: variants.map(profiled).collect(),
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
    let cost = |sample: &super::BatchLatency| BatchCost {
        batch: sample.batch,
        latency_s: sample.us / 1e6,
        spread: None,
        energy_j: None,
        memory_bytes: None,
        utilisation: None,
    };
    VariantProfile {
        name: variant.name.clone(),
        parameters: 0,
        money: None,
        costs: variant.latency.iter().map(cost).collect(),
        calibration: Calibration {
            estimator: ESTIMATOR,
            temperature: 1.0,
        },
        ece: BeforeAfter {
            before: 0.0,
            after: 0.0,
        },
        validation: Validation {
            margins: Vec::new(),
            entropies: Vec::new(),
            agrees: Vec::new(),
            predictions: vec![0],
            confidences: vec![1.0],
            correct: vec![true],
        },
    }
}
