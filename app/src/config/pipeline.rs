//! The tasks of a pipeline, and its allocator.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use kaskade_planners::allocate::StandbyOptions;
use kaskade_planners::demand::{DemandOptions, RunTimeOptions};
use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task, TaskVariant};
use kaskade_policy::plan::Dropping;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::App;
use super::scalar::{HumanDuration, Positive, SubjectToken};

/// A pipeline: a tree of tasks, each served by one or more variants of the family (Loki).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PipelineConfig {
    /// Profile of the pipeline by `kaskade profile`, relative to this file: needed to plan, not to serve a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<PathBuf>,
    /// Batch sizes that may be configured, ascending from 1.
    #[serde(default = "batches")]
    #[schemars(length(min = 1))]
    pub batches: Vec<NonZeroU32>,
    /// Time of a message between two workers.
    #[serde(default = "hop_latency")]
    pub hop_latency: HumanDuration,
    /// The tasks. The root is the one that is no task's child.
    #[schemars(length(min = 1))]
    pub tasks: Vec<TaskConfig>,
    /// Allocator that runs while the app serves [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<PipelinePlannerConfig>,
}

/// A task of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TaskConfig {
    /// Name, unique in the pipeline; outputs of the parent task are addressed to it.
    pub name: SubjectToken,
    /// The tasks that receive its results; none for a sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<SubjectToken>,
    /// Variants of the app that can serve it.
    #[schemars(length(min = 1))]
    pub variants: Vec<SubjectToken>,
}

/// Allocator that runs beside the ingress.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PipelinePlannerConfig {
    /// Handling of requests that are late at a task.
    pub dropping: Dropping,
    /// How the demand is estimated, and when a change of it triggers planning; not a setting of the file.
    #[serde(skip)]
    pub demand: DemandOptions,
    /// Capacity that is kept ready for a rise of the demand.
    pub standby: StandbyOptions,
    /// How run times reported by workers replace the profiled ones.
    pub run_times: RunTimeOptions,
    /// Capacity to plan for, as a multiple of the estimated demand, so that queues stay short under random arrivals. 1 is the
    /// paper's rule.
    pub headroom: Positive,
    /// Time limit for one plan; the plan of a planner that takes longer is discarded.
    pub timeout: HumanDuration,
}

impl Default for PipelinePlannerConfig {
    fn default() -> Self {
        Self {
            dropping: Dropping::Slack,
            demand: DemandOptions::default(),
            standby: StandbyOptions::default(),
            run_times: RunTimeOptions::default(),
            headroom: Positive::DEFAULT_HEADROOM,
            timeout: HumanDuration::from_millis(5_000),
        }
    }
}

impl PipelinePlannerConfig {
    /// Returns the problems of values out of range.
    fn problems(&self) -> Vec<String> {
        let wrong = |is: bool, name: &str, value: f64, what: &str| {
            (!is).then(|| format!("pipeline.planner.{name}: is {value}, and must be {what}"))
        };
        let StandbyOptions {
            surge_factor,
            max_accuracy_loss,
        } = self.standby;
        let found = [
            wrong(
                surge_factor.is_finite() && surge_factor >= 1.0,
                "standby.surge_factor",
                surge_factor,
                "a number from 1 on",
            ),
            wrong(
                (0.0..1.0).contains(&max_accuracy_loss),
                "standby.max_accuracy_loss",
                max_accuracy_loss,
                "from 0 to below 1",
            ),
        ];
        let found = found.into_iter().flatten();
        found
            .chain(run_time_problems(&self.run_times, "pipeline.planner"))
            .collect()
    }
}

/// Returns the problems of values out of range; `path` is the planner's path in the file. `inf` is valid for a change,
/// which is then never reached.
pub(super) fn run_time_problems(options: &RunTimeOptions, path: &str) -> impl Iterator<Item = String> {
    let decay = options.decay;
    let decay = (!(0.0..1.0).contains(&decay))
        .then(|| format!("{path}.run_times.decay: is {decay}, and must be from 0 to below 1"));
    let change = options.change;
    // NaN is not a valid change either.
    let change = (change.is_nan() || change < 0.0)
        .then(|| format!("{path}.run_times.change: is {change}, and must be a share from 0 on"));
    decay.into_iter().chain(change)
}

fn batches() -> Vec<NonZeroU32> {
    [0, 1, 3, 7, 15]
        .map(|more| NonZeroU32::MIN.saturating_add(more))
        .to_vec()
}

fn hop_latency() -> HumanDuration {
    HumanDuration::from_micros(500)
}

impl PipelineConfig {
    /// Returns the root task, if there is one.
    pub fn root(&self) -> Option<&TaskConfig> {
        let is_child = |name: &SubjectToken| self.tasks.iter().any(|task| task.children.contains(name));
        self.tasks.iter().find(|task| !is_child(&task.name))
    }

    /// Returns the task tree with placeholders for measurements: every variant has accuracy 1, takes 1 µs and sends one
    /// request to each child task.
    pub fn unmeasured(&self, app: &App) -> Pipeline {
        let task = |task: &TaskConfig| Task {
            name: task.name.to_string(),
            children: task.children.iter().map(SubjectToken::to_string).collect(),
            variants: task
                .variants
                .iter()
                .map(|name| self.unmeasured_variant(task, name))
                .collect(),
        };
        Pipeline {
            name: app.name.to_string(),
            slo_us: app.slo.as_micros(),
            hop_us: self.hop_latency.as_micros(),
            batches: self.batches.iter().map(|batch| batch.get()).collect(),
            tasks: self.tasks.iter().map(task).collect(),
            path_accuracy: PathAccuracy::Product,
        }
    }

    fn unmeasured_variant(&self, task: &TaskConfig, name: &SubjectToken) -> TaskVariant {
        let children = task.children.len().max(1) as f64;
        let ratio = |child: &SubjectToken| (child.to_string(), children.recip());
        let latency = |batch: &NonZeroU32| BatchLatency {
            batch: batch.get(),
            us: 1.0,
        };
        TaskVariant {
            name: name.to_string(),
            checkpoint: None,
            accuracy: 1.0,
            latency: self.batches.iter().map(latency).collect(),
            multiplicative_factor: children,
            branch_ratios: task.children.iter().map(ratio).collect::<BTreeMap<_, _>>(),
        }
    }

    /// Returns all problems of the pipeline in its app, each with the path of the value.
    pub(super) fn problems(&self, app: &App) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(invalid) = self.unmeasured(app).validate() {
            problems.push(format!("pipeline.{invalid}"));
        }
        for (at, task) in self.tasks.iter().enumerate() {
            for (place, name) in task.variants.iter().enumerate() {
                if !app.variants.iter().any(|variant| variant.name == *name) {
                    problems.push(format!(
                        "pipeline.tasks[{at}].variants[{place}]: `{name}` is none of the variants"
                    ));
                }
            }
        }
        if self.profile.is_none() && self.planner.is_some() {
            problems.push(
                "pipeline.profile: is missing; the planner needs the profile that `kaskade profile` writes"
                    .to_owned(),
            );
        }
        problems.extend(self.planner.iter().flat_map(PipelinePlannerConfig::problems));
        if app.planner.is_some() {
            problems.push("planner: plans gears; a pipeline's is `[pipeline.planner]`".to_owned());
        }
        problems
    }
}
