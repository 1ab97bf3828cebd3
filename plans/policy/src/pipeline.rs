//! Pipelines: rooted trees of tasks, each with variants to choose from (Loki §2, §4.1).
//!
//! A request enters at the root. The variant that serves a task turns one request into several, its *multiplicative factor*, and each
//! goes to one child of the task or another, in the variant's *branch ratios*. A [`Pipeline`] holds all that a planner needs,
//! is written in an app's TOML or in JSON, and is [checked](Pipeline::validate) before anything is planned with it.

mod profile;
mod tree;
mod validate;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::FileError;

pub use tree::TaskTree;

/// A rooted tree of tasks, and what was profiled of their variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Name for people and plans.
    pub name: String,
    /// End-to-end latency objective `L`, microseconds.
    pub slo_us: u64,
    /// Time of a message between two workers, microseconds; it is taken off the objective once per task of a path (§4.2).
    #[serde(default)]
    pub hop_us: u64,
    /// The batch sizes that may be configured, `B`, ascending from 1.
    pub batches: Vec<u32>,
    /// The tasks. The one without a parent is the root.
    pub tasks: Vec<Task>,
    /// Source of the end-to-end accuracy of a path.
    #[serde(default)]
    pub path_accuracy: PathAccuracy,
}

/// A task of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Unique in the pipeline.
    pub name: String,
    /// The tasks that its results go to; none for a sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<String>,
    /// The variants that can serve it, in any order.
    pub variants: Vec<TaskVariant>,
}

/// A variant of a task, as profiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskVariant {
    /// Unique in the pipeline, over all tasks: a worker hosts it under this name.
    pub name: String,
    /// Fingerprint of the measured checkpoint and the type of its weights; absent if it has no files here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Single-model accuracy `A(v)`, in [0, 1], usually relative to the most accurate of its task.
    pub accuracy: f64,
    /// Profiled latency by batch size: the pipeline's batch sizes from the first, without holes, as far as memory lasts.
    pub latency: Vec<BatchLatency>,
    /// Requests made of one, over all children: `r(i, k)`. Of no meaning at a sink.
    #[serde(default = "one")]
    pub multiplicative_factor: f64,
    /// Child to the share of those requests that go there, in [0, 1]; one entry per child.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub branch_ratios: BTreeMap<String, f64>,
}

const fn one() -> f64 {
    1.0
}

/// Profiled latency of one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchLatency {
    /// Requests in the batch.
    pub batch: u32,
    /// Time that the batch takes, microseconds.
    pub us: f64,
}

/// Source of the end-to-end accuracy `Â(p)` of a root-to-sink path.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "from", rename_all = "snake_case", deny_unknown_fields)]
pub enum PathAccuracy {
    /// Not measured: the product of the single-model accuracies, as in the paper's published artefact.
    #[default]
    Product,
    /// Profiled end to end (§3): every path that the variants allow is there.
    Profiled {
        /// The paths.
        paths: Vec<ProfiledPath>,
    },
}

/// A path whose accuracy was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfiledPath {
    /// One variant per task, from the root's to a sink's.
    pub variants: Vec<String>,
    /// End-to-end accuracy, in [0, 1].
    pub accuracy: f64,
}

impl Pipeline {
    /// Reads a pipeline from JSON and checks it.
    ///
    /// # Errors
    /// A [`FileError`] if the text is not JSON, has other fields than a pipeline, or describes an unsound one.
    pub fn from_json(text: &str) -> Result<Self, FileError> {
        let pipeline: Self = serde_json::from_str(text).map_err(|source| FileError::Json {
            expected: "pipeline",
            source,
        })?;
        pipeline.validate()?;
        Ok(pipeline)
    }

    /// The JSON schema of a pipeline, as committed in `docs/pipeline.schema.json`.
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// The place of a task.
    pub fn task(&self, name: &str) -> Option<usize> {
        self.tasks.iter().position(|task| task.name == name)
    }

    /// The place of a variant: its task's and its own in there.
    pub fn variant(&self, name: &str) -> Option<(usize, usize)> {
        let mut tasks = self.tasks.iter().enumerate();
        tasks.find_map(|(at, task)| {
            let variant = task.variants.iter().position(|variant| variant.name == name)?;
            Some((at, variant))
        })
    }

    /// Returns the fingerprint of the checkpoint that was measured as this variant, if it has one.
    pub fn checkpoint(&self, variant: &str) -> Option<&str> {
        let mut variants = self.tasks.iter().flat_map(|task| &task.variants);
        let measured = variants.find(|measured| measured.name == variant)?;
        measured.checkpoint.as_deref()
    }
}

impl Task {
    /// The variant of the highest single-model accuracy (eq. 8), the first of several, and its place.
    pub fn most_accurate(&self) -> Option<(usize, &TaskVariant)> {
        let better = |best: (usize, _), next: (usize, _)| {
            let (old, new): (&TaskVariant, &TaskVariant) = (best.1, next.1);
            if new.accuracy > old.accuracy { next } else { best }
        };
        self.variants.iter().enumerate().reduce(better)
    }
}

impl TaskVariant {
    /// Expected requests to `child` for one request here: the multiplicative factor times the branch ratio.
    pub fn multiplicity(&self, child: &str) -> f64 {
        let ratio = self.branch_ratios.get(child).copied().unwrap_or(0.0);
        self.multiplicative_factor * ratio
    }

    /// Profiled time of a batch of this size, microseconds: between two measured sizes on the line between them, beyond them that of
    /// the nearest. `None` without measurements.
    pub fn latency_us(&self, batch: u32) -> Option<f64> {
        let above = self.latency.partition_point(|sample| sample.batch < batch);
        let below = above.checked_sub(1).and_then(|at| self.latency.get(at));
        match (below, self.latency.get(above)) {
            (_, Some(above)) if above.batch == batch => Some(above.us),
            (Some(below), Some(above)) => {
                let way = f64::from(batch - below.batch) / f64::from(above.batch - below.batch);
                Some(below.us + way * (above.us - below.us))
            }
            (None, only) | (only, None) => only.map(|sample| sample.us),
        }
    }
}

#[cfg(test)]
mod tests;
