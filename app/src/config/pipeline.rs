//! An app that is a pipeline: its tree of tasks, and who plans it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use kaskade_planners::allocate::AllocationPolicy;
use kaskade_planners::demand::{DemandOptions, FactorOptions, RunTimeOptions};
use kaskade_policy::pipeline::{BatchLatency, PathAccuracy, Pipeline, Task, TaskVariant};
use kaskade_policy::plan::Dropping;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::App;
use super::scalar::{Positive, Span, Token};

/// A tree of tasks, each served by one variant or another of the family (Loki).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PipelineRule {
    /// What `kaskade profile` measured of it, relative to this file: needed by who plans, not by who serves a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<PathBuf>,
    /// Batch sizes that may be configured, ascending from 1.
    #[serde(default = "batches")]
    #[schemars(length(min = 1))]
    pub batches: Vec<NonZeroU32>,
    /// Time of a message between two workers.
    #[serde(default = "hop")]
    pub hop: Span,
    /// The tasks. The one that is nobody's child is the root.
    #[schemars(length(min = 1))]
    pub tasks: Vec<TaskRule>,
    /// Who plans while it serves; nobody where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<AllocatorRule>,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TaskRule {
    /// Name, unique in the pipeline: what the outputs of the task above are addressed to.
    pub name: Token,
    /// The tasks that its results go to; none for a sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Token>,
    /// The variants of the app that can serve it.
    #[schemars(length(min = 1))]
    pub variants: Vec<Token>,
}

/// The allocator that runs beside the doors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AllocatorRule {
    /// What the allocator may scale.
    pub policy: PipelinePolicy,
    /// What becomes of requests that are late at a task.
    pub dropping: Late,
    /// How the demand is estimated and when it is planned for.
    pub demand: DemandOptions,
    /// How the factors that workers tell take the place of the profiled ones.
    pub factors: FactorOptions,
    /// How the run times that workers tell take the place of the profiled ones.
    pub run_times: RunTimeOptions,
    /// Planned is for this many times the estimated demand: arrivals scatter around their mean, and workers that are busy all the time
    /// let queues grow. 1 is the paper's rule.
    pub headroom: Positive,
    /// How long planning may take before it is given up.
    pub limit: Span,
}

impl Default for AllocatorRule {
    fn default() -> Self {
        Self {
            policy: PipelinePolicy::default(),
            dropping: Late::default(),
            demand: DemandOptions::default(),
            factors: FactorOptions::default(),
            run_times: RunTimeOptions::default(),
            headroom: Positive::ROOMY,
            limit: Span::from_millis(5_000),
        }
    }
}

impl AllocatorRule {
    /// What of its figures is out of range. `inf` is a change that nothing comes to.
    fn problems(&self) -> Vec<String> {
        let (demand, factors, run_times) = (&self.demand, &self.factors, &self.run_times);
        let wrong = |is: bool, name: &str, value: f64, what: &str| {
            (!is).then(|| format!("pipeline.planner.{name}: is {value}, and must be {what}"))
        };
        let count = |name, value: f64| {
            wrong(
                value.is_finite() && value >= 0.0,
                name,
                value,
                "a number from 0 on",
            )
        };
        let share = |name, value| wrong((0.0..1.0).contains(&value), name, value, "from 0 to below 1");
        let change = |name, value| wrong(value >= 0.0, name, value, "a share from 0 on");
        let found = [
            count("demand.com", demand.com),
            wrong(
                demand.floor_qps.is_finite() && demand.floor_qps > 0.0,
                "demand.floor_qps",
                demand.floor_qps,
                "a number above 0",
            ),
            change("demand.change", demand.change),
            share("factors.memory", factors.memory),
            change("factors.change", factors.change),
            share("run_times.memory", run_times.memory),
            change("run_times.change", run_times.change),
        ];
        found.into_iter().flatten().collect()
    }
}

/// What the allocator may scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PipelinePolicy {
    /// Hardware scaling, then accuracy scaling over the whole pipeline.
    #[default]
    Loki,
    /// Hardware scaling alone: the most accurate variants whatever the demand.
    HardwareOnly,
}

impl From<PipelinePolicy> for AllocationPolicy {
    fn from(policy: PipelinePolicy) -> Self {
        match policy {
            PipelinePolicy::Loki => Self::Loki,
            PipelinePolicy::HardwareOnly => Self::HardwareOnly,
        }
    }
}

/// What becomes of requests that are late at a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Late {
    /// Nothing.
    None,
    /// Dropped before the last task, if that takes longer than there is time.
    LastTask,
    /// Dropped after any task whose budget they exceeded.
    PerTask,
    /// Sent to a backup that makes up for it, or dropped.
    #[default]
    Rerouting,
}

impl From<Late> for Dropping {
    fn from(late: Late) -> Self {
        match late {
            Late::None => Self::None,
            Late::LastTask => Self::LastTask,
            Late::PerTask => Self::PerTask,
            Late::Rerouting => Self::OpportunisticRerouting,
        }
    }
}

fn batches() -> Vec<NonZeroU32> {
    [0, 1, 3, 7, 15]
        .map(|more| NonZeroU32::MIN.saturating_add(more))
        .to_vec()
}

fn hop() -> Span {
    Span::from_micros(500)
}

impl PipelineRule {
    /// The task that is nobody's child, where there is one.
    pub fn root(&self) -> Option<&TaskRule> {
        let is_child = |name: &Token| self.tasks.iter().any(|task| task.children.contains(name));
        self.tasks.iter().find(|task| !is_child(&task.name))
    }

    /// The tree with nothing measured: every variant is right, takes a microsecond and makes one request for each task below.
    pub fn unmeasured(&self, app: &App) -> Pipeline {
        let task = |task: &TaskRule| Task {
            name: task.name.to_string(),
            children: task.children.iter().map(Token::to_string).collect(),
            variants: task
                .variants
                .iter()
                .map(|name| self.unmeasured_variant(task, name))
                .collect(),
        };
        Pipeline {
            name: app.name.to_string(),
            slo_us: app.slo.as_micros(),
            hop_us: self.hop.as_micros(),
            batches: self.batches.iter().map(|batch| batch.get()).collect(),
            tasks: self.tasks.iter().map(task).collect(),
            path_accuracy: PathAccuracy::Product,
        }
    }

    fn unmeasured_variant(&self, task: &TaskRule, name: &Token) -> TaskVariant {
        let children = task.children.len().max(1) as f64;
        let ratio = |child: &Token| (child.to_string(), children.recip());
        let latency = |batch: &NonZeroU32| BatchLatency {
            batch: batch.get(),
            us: 1.0,
        };
        TaskVariant {
            name: name.to_string(),
            accuracy: 1.0,
            latency: self.batches.iter().map(latency).collect(),
            multiplicative_factor: children,
            branch_ratios: task.children.iter().map(ratio).collect::<BTreeMap<_, _>>(),
        }
    }

    /// Everything that is wrong with it in its app, each with the value's path.
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
        let missing = self.profile.as_ref().filter(|path| !path.is_file());
        match (missing, &self.profile, self.planner) {
            (Some(path), _, Some(_)) => problems.push(format!(
                "pipeline.profile: `{}` is not there; `kaskade profile` writes one",
                path.display()
            )),
            (_, None, Some(_)) => problems.push(
                "pipeline.profile: is absent; the planner plans from what `kaskade profile` measured"
                    .to_owned(),
            ),
            _ => {}
        }
        problems.extend(self.planner.iter().flat_map(AllocatorRule::problems));
        if app.planner.is_some() {
            problems.push("planner: plans gears; a pipeline's is `[pipeline.planner]`".to_owned());
        }
        problems
    }
}
