//! Smaller pipelines of the same shape.

use super::{PathAccuracy, Pipeline};

impl Pipeline {
    /// The pipeline with at most so many variants per task, the first, the last and those evenly between, and of its batch sizes only
    /// those given, of which the first is 1: for what takes too long on all of it.
    #[must_use]
    pub fn thinned(&self, variants: usize, batches: &[u32]) -> Self {
        let mut thin = self.clone();
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
}

/// At most `wanted` of `0..count`, both ends and those evenly between.
fn evenly(count: usize, wanted: usize) -> Vec<usize> {
    let last = count.saturating_sub(1);
    match wanted {
        0 | 1 => vec![last],
        wanted if wanted >= count => (0..count).collect(),
        wanted => (0..wanted).map(|place| place * last / (wanted - 1)).collect(),
    }
}
