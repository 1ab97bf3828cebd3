//! The configuration of one app: one TOML file, parsed whole before anything binds.
//!
//! | module | holds |
//! |---|---|
//! | `task`, `variant`, `worker`, `ingress`, `connection` | the task; the models and the plan; workers; admission and batching; broker and probes |
//! | [`scalar`] | validated names, durations, sizes and powers |
//! | [`objective`] | the latency objective: a limit for a quantile |
//! | [`remote`], [`key_source`] | models behind endpoints, and where their keys are |
//! | [`confidence`] | where the confidence of a remote variant comes from |
//! | [`family_file`] | a family in a file of its own, shared by several apps |
//! | [`data`] | sources of labelled samples |
//! | [`records`] | labelled records with named columns |
//! | [`generation`] | sampling defaults and memory of language models |
//! | [`gateway`] | the HTTP gateway |
//! | [`telemetry`] | export of traces |
//! | [`durable`] | retention and retries of durable requests |
//! | [`power`] | sources of energy readings |
//! | [`guarantee`] | the accuracy guarantee that plans carry |
//! | [`planner`] | the gear planner that runs while an app serves |
//! | [`pipeline`] | the tasks of a pipeline, and its allocator |
//! | `load`, `validate`, `error` | loading a file; contradictions and missing files; errors |
//!
//! Parsing checks each value and reports its line. [`App::problems`] checks values against each other and against the
//! files that they name, and reports every problem.

pub mod confidence;
mod connection;
pub mod data;
pub mod durable;
mod error;
pub mod family_file;
pub mod gateway;
pub mod generation;
pub mod guarantee;
mod ingress;
pub mod key_source;
mod load;
pub mod objective;
pub mod pipeline;
pub mod planner;
pub mod power;
pub mod records;
pub mod remote;
pub mod scalar;
mod task;
pub mod telemetry;
mod validate;
mod variant;
mod worker;

use std::num::NonZeroU32;
use std::path::PathBuf;

pub use connection::{HttpConfig, NatsConfig};
pub use error::ConfigError;
pub use ingress::{BatchingConfig, IngressConfig};
pub use task::Task;
pub use variant::{AggregationConfig, PlanSource, VariantConfig};
pub use worker::WorkerConfig;

use data::DataSets;
use durable::DurableConfig;
use generation::GenerationConfig;
use guarantee::GuaranteeConfig;
use kaskade_models::CoreShare;
use kaskade_models::device::DeviceChoice;
use kaskade_policy::confidence::Estimator;
use objective::LatencyObjective;
use pipeline::PipelineConfig;
use planner::GearPlannerConfig;
use power::PowerConfig;
use scalar::{HumanDuration, SubjectToken};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An app: a family of models, the data that they are measured on, and how they are served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct App {
    /// Name of the app, the second token of all its subjects.
    pub name: SubjectToken,
    /// A TOML file with `task`, `classes`, `variants` and `data`, relative to this file, in place of those fields here: several
    /// apps can share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<PathBuf>,
    /// Task of the models [default: `classification`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub task: Task,
    /// Names of the classes in the order of the answers, for the tasks `classification` and `multi_label` [default: those of the
    /// first variant whose classes have names]. Variants with these names in another order have their answers put into this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Latency objective: `bench` counts replies within its limit, and planners plan for it.
    #[serde(default = "default_slo")]
    pub slo: LatencyObjective,
    /// Device of workers and variants that name none: `cpu`, `cuda` or `cuda:1`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub device: DeviceChoice,
    /// Share of a core that each CPU replica may use, above 0 and up to 1 [default: 1]. The replica sleeps after every batch to keep it, so
    /// that it runs at its profiled speed while other replicas share the core.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    #[schemars(with = "f64", range(min = 0.001, max = 1.0))]
    pub core_share: CoreShare,
    /// Threads that move the messages of a process, each with a connection to the broker [default: one per four cores of the
    /// machine, at least 1 and at most 8].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 64))]
    pub shards: Option<NonZeroU32>,
    /// The variants, smallest to largest. Required unless `family` names a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<VariantConfig>,
    /// How the scores of a model become a confidence [default: the estimator of the task].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Estimator>,
    /// Labelled samples to profile and to evaluate on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data: DataSets,
    /// Accuracy guarantee of plans made from this file [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<GuaranteeConfig>,
    /// Plan that the app serves.
    #[serde(default)]
    pub plan: PlanSource,
    /// Gear planner that runs while the app serves [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<GearPlannerConfig>,
    /// The tasks of a pipeline [default: the app is a single task].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineConfig>,
    /// Triggers by which a replica's queue becomes a batch, in plans made from this file.
    #[serde(default)]
    pub batching: BatchingConfig,
    /// Sampling defaults and memory of language models.
    #[serde(default)]
    pub generation: GenerationConfig,
    /// Admission of requests.
    #[serde(default)]
    pub ingress: IngressConfig,
    /// Retention and retries of durable requests [default: durable requests are refused].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<DurableConfig>,
    /// The workers, with their devices.
    #[serde(default = "worker::default_workers")]
    #[schemars(length(min = 1))]
    pub workers: Vec<WorkerConfig>,
    /// Sources of energy readings.
    #[serde(default)]
    pub power: PowerConfig,
    /// Connection to the broker.
    #[serde(default)]
    pub nats: NatsConfig,
    /// The HTTP gateway, if the process has a listener.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gateway: gateway::GatewayConfig,
    /// Listener for HTTP: probes and metrics, and the gateway in a process that has it [default: no listener].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpConfig>,
    /// Export of traces.
    #[serde(default, skip_serializing_if = "is_default")]
    pub telemetry: telemetry::TelemetryConfig,
}

fn default_slo() -> LatencyObjective {
    LatencyObjective::P95(HumanDuration::from_millis(250))
}

const fn whole() -> CoreShare {
    CoreShare::WHOLE
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes what it skips by reference"
)]
fn is_whole(share: &CoreShare) -> bool {
    *share == CoreShare::WHOLE
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl App {
    /// Parses an app from TOML. A family file that it names is not read; [`App::with_family`] sets its content.
    ///
    /// # Errors
    /// Line and reason of the first malformed value.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let app = toml::from_str(text).map_err(|error| error::malformed(text, &error))?;
        family_file::check_tables(text)?;
        Ok(app)
    }

    /// Returns the JSON Schema (2020-12) of the file.
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// Returns the confidence estimator of this app: its own, or the task's.
    pub fn estimator(&self) -> Estimator {
        self.confidence.unwrap_or(self.task.estimator())
    }

    /// Returns the device that a variant is profiled on: the variant's or else the app's device if a worker serves the
    /// variant there, otherwise the device of the first worker.
    pub fn device_of(&self, variant: &VariantConfig) -> DeviceChoice {
        let stated = self.stated_device(variant);
        let served = || self.workers.iter().map(|worker| self.device_on(worker, variant));
        match served().next() {
            Some(first) if !served().any(|device| device == stated) => first,
            _ => stated,
        }
    }

    fn stated_device(&self, variant: &VariantConfig) -> DeviceChoice {
        variant.device.unwrap_or(self.device)
    }

    /// Returns two workers that serve the variant on devices of different kinds, neither of which is the variant's
    /// stated device. The device to profile it on is then undecided.
    pub(crate) fn undecided_devices(&self, variant: &VariantConfig) -> Option<[&WorkerConfig; 2]> {
        let kind = |worker: &WorkerConfig| std::mem::discriminant(&self.device_on(worker, variant));
        let stated = self.stated_device(variant);
        let is_stated = |worker: &WorkerConfig| self.device_on(worker, variant) == stated;
        let first = self.workers.first()?;
        let other = self.workers.iter().find(|worker| kind(worker) != kind(first))?;
        (!self.workers.iter().any(is_stated)).then_some([first, other])
    }

    /// Returns the device of a worker.
    pub fn device_of_worker(&self, worker: &WorkerConfig) -> DeviceChoice {
        worker.device.unwrap_or(self.device)
    }

    /// Returns the device of a variant's replicas on a worker: the worker's, else the variant's, else the app's.
    pub(crate) fn device_on(&self, worker: &WorkerConfig, variant: &VariantConfig) -> DeviceChoice {
        worker.device.unwrap_or_else(|| self.stated_device(variant))
    }

    /// Returns the device of the worker with this name, or of the app if it has no such worker.
    pub fn device_at(&self, worker: &str) -> DeviceChoice {
        let mut workers = self.workers.iter();
        let named = workers.find(|known| known.name.as_str() == worker);
        named.map_or(self.device, |worker| self.device_of_worker(worker))
    }
}

#[cfg(test)]
mod tests;
