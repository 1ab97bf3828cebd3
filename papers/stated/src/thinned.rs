//! Smaller pipelines of the same shape.

use kaskade_policy::pipeline::{PathAccuracy, Pipeline};

/// The pipeline with at most this many variants per task, the first, the last and those evenly between, and of its batch sizes only
/// those given, of which the first is 1: for computations that take too long on the whole pipeline.
#[must_use]
pub fn thinned(pipeline: &Pipeline, variants: usize, batches: &[u32]) -> Pipeline {
    let mut thin = pipeline.clone();
    thin.batches.retain(|batch| batches.contains(batch));
    for task in &mut thin.tasks {
        let kept = evenly(task.variants.len(), variants);
        let mut place = 0..;
        task.variants
            .retain(|_| place.next().is_some_and(|place| kept.contains(&place)));
        for variant in &mut task.variants {
            variant.latency.retain(|sample| batches.contains(&sample.batch));
        }
    }
    if let PathAccuracy::Profiled { paths } = &mut thin.path_accuracy {
        let known: Vec<&String> = thin
            .tasks
            .iter()
            .flat_map(|task| &task.variants)
            .map(|variant| &variant.name)
            .collect();
        paths.retain(|path| path.variants.iter().all(|name| known.contains(&name)));
    }
    thin
}

/// Returns at most `wanted` of `0..count`: both ends, and evenly spaced values between them.
fn evenly(count: usize, wanted: usize) -> Vec<usize> {
    let last = count.saturating_sub(1);
    match wanted {
        0 | 1 => vec![last],
        wanted if wanted >= count => (0..count).collect(),
        wanted => (0..wanted).map(|place| place * last / (wanted - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use kaskade_policy::pipeline::ProfiledPath;

    use super::*;
    use crate::pipelines::stated;

    fn profiled() -> Pipeline {
        let mut pipeline = stated();
        let path = |variants: &[&str]| ProfiledPath {
            variants: variants.iter().map(|name| (*name).to_owned()).collect(),
            accuracy: 0.5,
        };
        let mut paths = Vec::new();
        for root in &pipeline.tasks[0].variants {
            for sink in &pipeline.tasks[1..] {
                paths.extend(
                    sink.variants
                        .iter()
                        .map(|variant| path(&[&root.name, &variant.name])),
                );
            }
        }
        pipeline.path_accuracy = PathAccuracy::Profiled { paths };
        pipeline
    }

    #[test]
    fn a_thinned_pipeline_has_the_same_shape() {
        for pipeline in [stated(), profiled()] {
            let thin = thinned(&pipeline, 3, &[1, 4, 16]);
            thin.validate().unwrap();
            assert_eq!((thin.batches.as_slice(), thin.tasks.len()), (&[1, 4, 16][..], 3));
            let names: Vec<&str> = thin.tasks[1]
                .variants
                .iter()
                .map(|variant| variant.name.as_str())
                .collect();
            assert_eq!(names, ["car-0", "car-4", "car-6"]);
        }
        let one = thinned(&stated(), 1, &[1]);
        assert_eq!(one.tasks[0].variants[0].name, "detect-x", "the best");
        assert_eq!(thinned(&stated(), 9, &[1, 2, 4, 8, 16, 32, 64]), stated());
    }
}
