//! The configuration of one app: one TOML file, parsed whole before anything binds.
//!
//! | module | holds |
//! |---|---|
//! | [`scalar`] | validated names, durations, sizes and powers |
//! | [`objective`] | the latency objective: a limit for a quantile |
//! | [`family_file`] | a family in a file of its own, shared by several apps |
//! | [`data`] | sources of labelled samples |
//! | [`generation`] | sampling defaults and memory of language models |
//! | [`durable`] | retention and retries of durable requests |
//! | [`power`] | sources of energy readings |
//! | [`planner`] | the gear planner that runs while an app serves |
//! | [`pipeline`] | the tasks of a pipeline, and its allocator |
//!
//! Parsing checks each value and reports its line. [`App::problems`] checks values against each other and against the
//! files that they name, and reports every problem.

pub mod data;
pub mod durable;
pub mod family_file;
pub mod generation;
pub mod objective;
pub mod pipeline;
pub mod planner;
pub mod power;
pub mod scalar;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use data::DataSets;
use durable::DurableRule;
use family_file::FamilyFile;
use generation::GenerationRule;
use kaskade_models::device::DeviceChoice;
use kaskade_models::{CoreShare, LoadError};
use kaskade_policy::confidence::Estimator;
use kaskade_policy::plan::Batching;
use objective::LatencyObjective;
use pipeline::PipelineRule;
use planner::PlannerRule;
use power::Power;
use scalar::{Address, Size, Span, Token};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One app: a family of models, the data that they are measured on, and how they are served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct App {
    /// Name of the app, the second token of all its subjects.
    pub name: Token,
    /// A TOML file with `task`, `variants` and `data`, relative to this file, in place of those fields here: several apps
    /// can share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<PathBuf>,
    /// Task of the models.
    #[serde(default, skip_serializing_if = "is_default")]
    pub task: Task,
    /// Latency objective: `bench` counts replies within its limit, and planners plan for it.
    #[serde(default = "default_slo")]
    pub slo: LatencyObjective,
    /// Device of workers and variants that name none: `cpu`, `cuda` or `cuda:1`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub device: DeviceChoice,
    /// Share of a core that each CPU replica may use, above 0 and up to 1. The replica sleeps after every batch, so that
    /// replicas that share cores are as slow as each was profiled.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    #[schemars(with = "f64", range(min = 0.001, max = 1.0))]
    pub core_share: CoreShare,
    /// The variants, smallest to largest. Required unless `family` names a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// How the scores of a model become a confidence [default: the estimator of the task].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Estimator>,
    /// Labelled samples to profile and to evaluate on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data: DataSets,
    /// Plan that the app serves.
    #[serde(default)]
    pub plan: PlanSource,
    /// Gear planner that runs while the app serves [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<PlannerRule>,
    /// The tasks of a pipeline [default: the app is a single task].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineRule>,
    /// When a replica's queue becomes a batch, in plans made from this file.
    #[serde(default)]
    pub batching: BatchingRule,
    /// Sampling defaults and memory of language models.
    #[serde(default)]
    pub generation: GenerationRule,
    /// Admission of requests.
    #[serde(default)]
    pub ingress: Ingress,
    /// Retention and retries of durable requests [default: durable requests are refused].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<DurableRule>,
    /// The workers, with their devices.
    #[serde(default = "default_workers")]
    #[schemars(length(min = 1))]
    pub workers: Vec<Worker>,
    /// Sources of energy readings.
    #[serde(default)]
    pub power: Power,
    /// Connection to the broker.
    #[serde(default)]
    pub nats: Nats,
    /// Probes and metrics over HTTP [default: no listener].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
}

/// Task of the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One class per input, from its scores.
    #[default]
    Classification,
    /// An answer as a span of a context: its first and last token, from two rows of scores.
    QuestionAnswering,
    /// A continuation of the request's text, token by token.
    Generation,
}

impl Task {
    /// Returns the confidence estimator of this task (HybridServe §IV-A).
    pub const fn estimator(self) -> Estimator {
        match self {
            Self::Classification => Estimator::MaxSquared,
            Self::QuestionAnswering => Estimator::Span,
            // The engine computes a confidence at each step and returns the lowest of the answer.
            Self::Generation => Estimator::Given,
        }
    }
}

/// One model of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Variant {
    /// Name, unique in the family.
    pub name: Token,
    /// Checkpoint directory (`config.json`, `model.safetensors`), relative to this file.
    pub dir: PathBuf,
    /// Device on workers that name none, and for profiling [default: the app's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
}

/// Plan that the app serves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanSource {
    /// The largest variant alone, without a cascade.
    #[default]
    Largest,
    /// The named variant alone, without a cascade.
    Single(Token),
    /// A plan file, relative to this file.
    File(PathBuf),
}

/// When a replica's queue becomes a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BatchingRule {
    /// An idle replica starts a batch when this many requests wait.
    pub min_queue: NonZeroU32,
    /// Maximum batch size.
    pub max_batch: NonZeroU32,
    /// An idle replica starts a batch when the oldest request has waited this long.
    pub max_wait: Span,
}

impl Default for BatchingRule {
    fn default() -> Self {
        Self {
            min_queue: NonZeroU32::MIN,
            max_batch: NonZeroU32::MIN.saturating_add(31),
            max_wait: Span::from_millis(2),
        }
    }
}

impl From<BatchingRule> for Batching {
    fn from(rule: BatchingRule) -> Self {
        Self {
            min_queue: rule.min_queue.get(),
            max_batch: rule.max_batch.get(),
            max_wait_us: rule.max_wait.as_micros(),
        }
    }
}

/// Admission of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Ingress {
    /// Maximum requests in flight in one ingress; more are refused.
    pub max_in_flight: NonZeroU32,
    /// Maximum bytes of the inputs of requests in flight in one ingress; more are refused.
    pub max_in_flight_bytes: Size,
    /// Maximum requests in the queue of one replica; more are refused.
    pub queue_capacity: NonZeroU32,
    /// Budget of a request that states none.
    pub default_budget: Span,
    /// Maximum budget; a longer one is shortened to it.
    pub max_budget: Span,
    /// Time to finish requests in flight on shutdown.
    pub drain: Span,
}

impl Default for Ingress {
    fn default() -> Self {
        const fn count(n: u32) -> NonZeroU32 {
            NonZeroU32::MIN.saturating_add(n - 1)
        }
        Self {
            max_in_flight: count(4_096),
            max_in_flight_bytes: Size::mebibytes(1_024),
            queue_capacity: count(1_024),
            default_budget: Span::from_millis(2_000),
            max_budget: Span::from_millis(120_000),
            drain: Span::from_millis(10_000),
        }
    }
}

/// A worker: one process that runs replicas on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Worker {
    /// Name, unique in the app.
    pub name: Token,
    /// Device of its replicas: `cpu`, `cuda` or `cuda:1` [default: the variant's, or else the app's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
    /// Memory of its device that it may use: planners place no more on it, and a model that needs more is not loaded
    /// [default: the planner's `memory` when planning, unlimited when loading].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Replicas of each variant. In a pipeline: slots, each of which runs one variant at a time.
    #[serde(default = "one")]
    pub replicas: NonZeroU32,
}

/// Connection to the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Nats {
    /// URL of a nats-server, 2.10 or newer [default: the embedded broker, on the loopback].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A `.creds` file, relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an nkey, as `kaskade auth init` writes it, relative to this file; `NATS_NKEY` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, for a nats-server reached by TLS (`tls://`), relative to this file;
    /// `NATS_CA` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Maximum message size of the embedded broker, headers included; a nats-server has its own limit.
    pub max_payload: Size,
    /// Copies of the plan store and the streams in a cluster of nats-servers, 1 to 5, if they do not exist yet [default: 3 if the
    /// cluster has three or more servers, otherwise 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: Option<NonZeroU32>,
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            url: None,
            credentials: None,
            nkey: None,
            ca: None,
            max_payload: Size::MEBIBYTE,
            replicas: None,
        }
    }
}

/// Probes and metrics over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Http {
    /// Listen address of every process that serves the app, such as `0.0.0.0:8080`; `KASKADE_HTTP` and `--http` override it.
    pub address: Address,
}

fn default_slo() -> LatencyObjective {
    LatencyObjective::P95(Span::from_millis(250))
}

fn default_workers() -> Vec<Worker> {
    vec![Worker {
        name: Token::local(),
        device: None,
        memory: None,
        replicas: NonZeroU32::MIN,
    }]
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

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// An app's configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {reason}; name an app's TOML file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Message of the operating system.
        reason: String,
    },
    /// A value is malformed.
    #[error("{}:{line}: {reason}; `kaskade schema app` prints what this file may hold", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line of the offending value, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// Values contradict each other, or files are missing or unusable.
    #[error("{}: {}", path.display(), problems.join("; "))]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// All problems, each with the path of its value.
        problems: Vec<String>,
    },
}

impl App {
    /// Loads an app from its file, and from the family file that it names. Relative paths in a file become relative to the
    /// file's folder; a `$NAME` at the beginning of a path of data is replaced by the environment variable.
    ///
    /// # Errors
    /// [`ConfigError`] with the line of the first malformed value, or else with every inconsistency.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        let mut app = Self::parse(&text).map_err(|(line, reason)| ConfigError::Malformed {
            path: path.to_owned(),
            line,
            reason,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        app.resolve(folder);
        app.data.resolve(folder, |name| std::env::var_os(name));
        if let Some(file) = &app.family {
            let family = FamilyFile::load(&folder.join(file))?;
            app = app.with_family(family);
        }
        let problems = app.problems();
        if problems.is_empty() {
            return Ok(app);
        }
        Err(ConfigError::Inconsistent {
            path: path.to_owned(),
            problems,
        })
    }

    /// Parses an app from TOML. A family file that it names is not read; [`App::with_family`] sets its content.
    ///
    /// # Errors
    /// Line and reason of the first malformed value.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let app = toml::from_str(text).map_err(|error| malformed(text, &error))?;
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

    /// Returns the device that a variant is profiled on.
    pub fn device_of(&self, variant: &Variant) -> DeviceChoice {
        variant.device.unwrap_or(self.device)
    }

    /// Returns the device of a worker.
    pub fn device_of_worker(&self, worker: &Worker) -> DeviceChoice {
        worker.device.unwrap_or(self.device)
    }

    /// Returns the device of a variant's replicas on a worker: the worker's, or else the variant's, or else the app's.
    pub fn device_on(&self, worker: &Worker, variant: &Variant) -> DeviceChoice {
        worker.device.unwrap_or_else(|| self.device_of(variant))
    }

    /// Returns the device of the worker with this name, or of the app if it has no such worker.
    pub fn device_at(&self, worker: &str) -> DeviceChoice {
        let mut workers = self.workers.iter();
        let named = workers.find(|known| known.name.as_str() == worker);
        named.map_or(self.device, |worker| self.device_of_worker(worker))
    }

    /// Makes relative paths relative to `folder`, the folder of the file; [`DataSets::resolve`] does so for paths of data.
    fn resolve(&mut self, folder: &Path) {
        let mut paths: Vec<&mut PathBuf> = self.variants.iter_mut().map(|variant| &mut variant.dir).collect();
        if let PlanSource::File(path) = &mut self.plan {
            paths.push(path);
        }
        paths.extend(self.planner.as_mut().map(|planner| &mut planner.profile));
        paths.extend(
            self.pipeline
                .as_mut()
                .and_then(|pipeline| pipeline.profile.as_mut()),
        );
        let Nats {
            credentials,
            nkey,
            ca,
            ..
        } = &mut self.nats;
        paths.extend([credentials, nkey, ca].into_iter().flatten());
        for path in paths {
            *path = folder.join(&path);
        }
    }

    /// Returns all contradictions between values and all unusable files that they name, each with the value's path first.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.variants.is_empty() {
            problems
                .push("variants: is empty; name at least one model, here or in a `family` file".to_owned());
        }
        if self.workers.is_empty() {
            problems.push("workers: is empty; name at least one worker, or leave it out".to_owned());
        }
        let names = self.variants.iter().map(|variant| &variant.name);
        problems.extend(repeated("variants", names));
        problems.extend(repeated(
            "workers",
            self.workers.iter().map(|worker| &worker.name),
        ));
        for (index, variant) in self.variants.iter().enumerate() {
            problems.extend(checkpoint_problem(index, variant));
        }
        problems.extend(self.data.problems());
        problems.extend(self.generation.problems());
        problems.extend(self.durable.iter().flat_map(DurableRule::problems));
        if self.task == Task::Generation && self.estimator() != Estimator::Given {
            problems.push(
                "confidence: a language model gives its own, from the strongest tokens of every step; leave it out"
                    .to_owned(),
            );
        }
        match &self.plan {
            PlanSource::Single(name) if !self.variants.iter().any(|variant| variant.name == *name) => {
                problems.push(format!("plan.single: `{name}` is none of the variants"));
            }
            PlanSource::File(path) if !path.is_file() => problems.push(format!(
                "plan.file: `{}` is not there; `kaskade plan` writes one",
                path.display()
            )),
            _ => {}
        }
        if let Some(planner) = &self.planner {
            problems.extend(planner_problems(planner));
        }
        if let Some(pipeline) = &self.pipeline {
            problems.extend(pipeline.problems(self));
        }
        problems.extend(nats_problems(&self.nats));
        if self.batching.min_queue > self.batching.max_batch {
            problems.push(format!(
                "batching.min_queue: {} is more than max_batch, {}; such a batch never fills",
                self.batching.min_queue, self.batching.max_batch
            ));
        }
        problems
    }
}

/// Checks that a variant's directory is a checkpoint of an architecture that this build supports.
fn checkpoint_problem(index: usize, variant: &Variant) -> Option<String> {
    let (name, dir) = (&variant.name, variant.dir.display());
    if !variant.dir.join("config.json").is_file() {
        return Some(format!(
            "variants[{index}].dir: `{dir}` is no checkpoint directory: it has no config.json"
        ));
    }
    match kaskade_models::architecture(&variant.dir) {
        Ok(_) => None,
        Err(LoadError::UnknownArchitecture { found, known, .. }) => Some(format!(
            "variants[{index}].dir: variant `{name}` (`{dir}`) has the architecture {found}, which this build cannot serve; \
             it supports {}",
            known.join(", ")
        )),
        Err(error) => Some(format!("variants[{index}].dir: variant `{name}`: {error}")),
    }
}

fn planner_problems(planner: &PlannerRule) -> impl Iterator<Item = String> {
    let absent = (!planner.profile.is_file()).then(|| {
        format!(
            "planner.profile: `{}` is not there; `kaskade profile` writes one",
            planner.profile.display()
        )
    });
    absent.into_iter()
}

fn nats_problems(nats: &Nats) -> impl Iterator<Item = String> {
    let files = [
        ("credentials", &nats.credentials),
        ("nkey", &nats.nkey),
        ("ca", &nats.ca),
    ];
    let both = (nats.credentials.is_some() && nats.nkey.is_some()).then(|| {
        "nats: has both `credentials` and `nkey`; a connection is one user, leave one out".to_owned()
    });
    let absent = files.into_iter().filter_map(|(name, path)| {
        let path = path.as_ref().filter(|path| !path.is_file())?;
        Some(format!("nats.{name}: `{}` is not there", path.display()))
    });
    absent
        .chain(both)
        .chain(durable::too_many_copies("nats.replicas", nats.replicas))
}

/// Returns a problem for every repeated name.
fn repeated<'a>(list: &'a str, names: impl Iterator<Item = &'a Token>) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    names
        .enumerate()
        .filter(move |(_, name)| !seen.insert(*name))
        .map(move |(index, name)| format!("{list}[{index}].name: `{name}` is used twice"))
}

/// Reads a configuration file.
fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Returns line and reason of a parser's error.
fn malformed(text: &str, error: &toml::de::Error) -> (usize, String) {
    let start = error.span().map_or(0, |span| span.start);
    // Some messages of the parser have several lines; they are printed as one.
    let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    (line_of(text, start), reason)
}

/// Returns the line of a position, from 1.
fn line_of(text: &str, position: usize) -> usize {
    1 + text.bytes().take(position).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests;
