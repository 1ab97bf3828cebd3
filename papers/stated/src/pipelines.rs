//! Pipelines whose figures are stated, not measured: for tests and for use without measurements.

use std::collections::BTreeMap;

use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task, TaskVariant};

const BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A variant in words: name, accuracy, microseconds of a batch before its first request, and for each request in it.
type Stated = (&'static str, f64, f64, f64);

/// The detectors; below, their multiplicative factors, and the share of what they find that is a car.
const DETECTORS: [Stated; 5] = [
    ("detect-n", 0.55, 4_000.0, 6_000.0),
    ("detect-s", 0.76, 4_000.0, 9_000.0),
    ("detect-m", 0.88, 6_000.0, 13_000.0),
    ("detect-l", 0.96, 8_000.0, 18_000.0),
    ("detect-x", 1.00, 10_000.0, 31_000.0),
];
const FINDS: [(f64, f64); 5] = [(2.5, 0.8), (5.5, 0.9), (13.0, 0.95), (17.0, 0.95), (18.0, 0.95)];

const CARS: [Stated; 5] = [
    ("car-0", 0.92, 2_500.0, 1_000.0),
    ("car-2", 0.95, 3_000.0, 1_500.0),
    ("car-4", 0.98, 4_000.0, 3_200.0),
    ("car-5", 0.99, 5_000.0, 5_000.0),
    ("car-6", 1.00, 6_000.0, 7_000.0),
];

const FACES: [Stated; 3] = [
    ("face-11", 0.95, 4_000.0, 1_000.0),
    ("face-16", 0.97, 5_000.0, 1_900.0),
    ("face-19", 1.00, 6_000.0, 2_300.0),
];

/// Classifiers of images and writers of captions, in the shape of `ResNet` and CLIP-ViT: accuracies over that of the best, and times as
/// their arithmetic would take on the paper's cards.
const CLASSIFIERS: [Stated; 5] = [
    ("resnet-18", 0.89, 2_000.0, 800.0),
    ("resnet-34", 0.94, 2_500.0, 1_400.0),
    ("resnet-50", 0.97, 3_000.0, 1_700.0),
    ("resnet-101", 0.99, 4_500.0, 3_000.0),
    ("resnet-152", 1.00, 6_000.0, 4_300.0),
];
const CAPTIONERS: [Stated; 4] = [
    ("clip-b32", 0.83, 4_000.0, 1_700.0),
    ("clip-b16", 0.89, 5_000.0, 6_500.0),
    ("clip-l14", 0.99, 8_000.0, 29_000.0),
    ("clip-l14-336", 1.00, 10_000.0, 68_000.0),
];

/// The default pipeline: find the objects of an image, then classify the cars and recognise the faces, within 250 ms.
///
/// Every figure in it is **assumed**. They are round numbers that were chosen to have the shape of the measurements that the Loki
/// authors published for their traffic analysis pipeline (§6.1): detectors of which the better ones are slower and find many more
/// cars, and classifiers of which the better ones are slower and little better. Results computed from them describe the planner
/// and not of any model. Path accuracies are products.
pub fn stated() -> Pipeline {
    let mut detectors: Vec<TaskVariant> = DETECTORS.iter().map(variant).collect();
    for (variant, (factor, cars)) in detectors.iter_mut().zip(FINDS) {
        variant.multiplicative_factor = factor;
        variant.branch_ratios = BTreeMap::from([("car".into(), cars), ("face".into(), 1.0 - cars)]);
    }
    Pipeline {
        name: "traffic-stated".into(),
        slo_us: 250_000,
        hop_us: 1_000,
        batches: BATCHES.to_vec(),
        tasks: vec![
            Task {
                name: "detect".into(),
                children: vec!["car".into(), "face".into()],
                variants: detectors,
            },
            sink("car", &CARS),
            sink("face", &FACES),
        ],
        path_accuracy: PathAccuracy::Product,
    }
}

/// The paper's other pipeline (§6.1): classify an image, then write a caption for it, within 250 ms.
///
/// The authors published nothing of it that could be planned with. Every figure is **assumed**, as in [`stated`].
pub fn stated_social() -> Pipeline {
    let mut classifiers: Vec<TaskVariant> = CLASSIFIERS.iter().map(variant).collect();
    for variant in &mut classifiers {
        variant.branch_ratios = BTreeMap::from([("caption".into(), 1.0)]);
    }
    Pipeline {
        name: "social-stated".into(),
        slo_us: 250_000,
        hop_us: 1_000,
        batches: BATCHES.to_vec(),
        tasks: vec![
            Task {
                name: "classify".into(),
                children: vec!["caption".into()],
                variants: classifiers,
            },
            sink("caption", &CAPTIONERS),
        ],
        path_accuracy: PathAccuracy::Product,
    }
}

fn sink(name: &str, variants: &[Stated]) -> Task {
    Task {
        name: name.into(),
        children: Vec::new(),
        variants: variants.iter().map(variant).collect(),
    }
}

fn variant((name, accuracy, base_us, request_us): &Stated) -> TaskVariant {
    let sample = |batch: u32| BatchLatency {
        batch,
        us: base_us + request_us * f64::from(batch),
    };
    TaskVariant {
        name: (*name).into(),
        checkpoint: None,
        accuracy: *accuracy,
        latency: BATCHES.map(sample).to_vec(),
        multiplicative_factor: 1.0,
        branch_ratios: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use kaskade_policy::pipeline::TaskTree;

    use super::*;

    #[test]
    fn the_stated_pipeline_is_sound() {
        let pipeline = stated();
        pipeline.validate().unwrap();
        assert_eq!(TaskTree::new(&pipeline).unwrap().sinks, vec![1, 2]);
    }

    #[test]
    fn the_social_pipeline_is_a_sound_chain() {
        let pipeline = stated_social();
        pipeline.validate().unwrap();
        assert_eq!(TaskTree::new(&pipeline).unwrap().sinks, vec![1]);
        let captions = pipeline.tasks[0].variants[4].multiplicity("caption");
        assert!((captions - 1.0).abs() < 1e-12);
    }
}
