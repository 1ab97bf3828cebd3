//! The configuration of one app: one TOML file, parsed whole before anything binds.
//!
//! | module | holds |
//! |---|---|
//! | [`scalar`] | names, lengths of time, sizes and powers that cannot hold nonsense |
//! | [`data`] | where labelled samples come from |
//! | [`generation`] | how language models answer, and what memory they get |
//! | [`durable`] | how durable requests are kept and tried |
//! | [`power`] | where joules are read from |
//! | [`planner`] | who makes other plans while an app serves |
//! | [`pipeline`] | the tasks of an app that is a pipeline, and who plans it |
//!
//! What a value may be is checked where it is read, with the line of the error; what values must be to each other, and to
//! the files they name, is checked by [`App::problems`], which reports everything it finds.

pub mod data;
pub mod durable;
pub mod generation;
pub mod pipeline;
pub mod planner;
pub mod power;
pub mod scalar;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use data::DataSets;
use durable::DurableRule;
use generation::GenerationRule;
use kaskade_models::CoreShare;
use kaskade_models::device::DeviceChoice;
use kaskade_policy::confidence::Estimator;
use kaskade_policy::plan::Batching;
use pipeline::PipelineRule;
use planner::PlannerRule;
use power::Power;
use scalar::{Address, Size, Span, Token};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One app: a family of models, what they are measured on, and how they are served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct App {
    /// Name of the app, the second token of all its subjects.
    pub name: Token,
    /// What the models answer.
    #[serde(default)]
    pub task: Task,
    /// Latency objective: what `bench` counts as in time and what planners plan for.
    #[serde(default = "default_slo")]
    pub slo: Span,
    /// Device of every variant that names none: `cpu`, `cuda` or `cuda:1`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub device: DeviceChoice,
    /// Part of a core that each replica on the processor may take, above 0 and up to 1: it rests after every batch until it has
    /// used no more, so that replicas that share cores are as slow as each was profiled.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    #[schemars(with = "f64", range(min = 0.001, max = 1.0))]
    pub core_share: CoreShare,
    /// The family, smallest to largest.
    #[schemars(length(min = 1))]
    pub variants: Vec<Variant>,
    /// How scores become a confidence; by default the score that suits the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Estimator>,
    /// Labelled samples to profile and to evaluate on.
    #[serde(default)]
    pub data: DataSets,
    /// Which plan serves; by default the largest variant alone.
    #[serde(default)]
    pub plan: PlanSource,
    /// Who makes other plans while it serves; nobody where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<PlannerRule>,
    /// The tasks, where it is a pipeline and not one model to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineRule>,
    /// When a replica's queue becomes a batch, in plans that are made here.
    #[serde(default)]
    pub batching: BatchingRule,
    /// How language models answer, where a request does not say otherwise.
    #[serde(default)]
    pub generation: GenerationRule,
    /// What the doors let in.
    #[serde(default)]
    pub ingress: Ingress,
    /// How durable requests are kept and tried; they are refused where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<DurableRule>,
    /// Who hosts the replicas, in plans that are made here.
    #[serde(default = "default_workers")]
    #[schemars(length(min = 1))]
    pub workers: Vec<Worker>,
    /// Where joules are read from.
    #[serde(default)]
    pub power: Power,
    /// The broker.
    #[serde(default)]
    pub nats: Nats,
    /// Probes and metrics over HTTP; nowhere where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
}

/// What the models answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One class per input, from its scores.
    #[default]
    Classification,
    /// The first and last token of an answer in a context, from two rows of scores.
    QuestionAnswering,
    /// A text that goes on from the request's, token by token.
    Generation,
}

impl Task {
    /// The confidence score that HybridServe (§IV-A) gives this task.
    pub const fn estimator(self) -> Estimator {
        match self {
            Self::Classification => Estimator::MaxSquared,
            Self::QuestionAnswering => Estimator::Span,
            // The engine takes the strongest tokens' confidence at each step, and gives the least of an answer's.
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
    /// Device, where it differs from the app's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
}

/// Which plan serves.
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
    /// An idle replica starts as soon as this many wait.
    pub min_queue: NonZeroU32,
    /// At most this many in one batch.
    pub max_batch: NonZeroU32,
    /// An idle replica starts anyway once the oldest has waited this long.
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

/// What the doors let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Ingress {
    /// Requests that an ingress holds at once; more are refused at the door.
    pub max_in_flight: NonZeroU32,
    /// Requests that may wait in front of one replica; more are refused there.
    pub queue_capacity: NonZeroU32,
    /// Time budget of a request that brings none.
    pub default_budget: Span,
    /// Longest budget granted; a request that asks for more gets this.
    pub max_budget: Span,
    /// How long requests in flight may take to finish when the process is told to stop.
    pub drain: Span,
}

impl Default for Ingress {
    fn default() -> Self {
        const fn count(n: u32) -> NonZeroU32 {
            NonZeroU32::MIN.saturating_add(n - 1)
        }
        Self {
            max_in_flight: count(4_096),
            queue_capacity: count(1_024),
            default_budget: Span::from_millis(2_000),
            max_budget: Span::from_millis(120_000),
            drain: Span::from_millis(10_000),
        }
    }
}

/// Who hosts replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Worker {
    /// Name, unique in the app.
    pub name: Token,
    /// Copies of each variant that it runs; of a pipeline, the places that each run one variant at a time.
    #[serde(default = "one")]
    pub replicas: NonZeroU32,
}

/// The broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Nats {
    /// A nats-server of 2.10 or newer; without one, a small broker is started in the process, on the loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A `.creds` file for a nats-server that wants one, relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an nkey, as `kaskade auth init` writes them, relative to this file; `NATS_NKEY` overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey: Option<PathBuf>,
    /// Certificates to trust beside the system's, for a nats-server reached by TLS (`tls://`), relative to this file; `NATS_CA`
    /// overrides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Largest message that the broker in the process carries, headers included; a nats-server has its own.
    pub max_payload: Size,
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            url: None,
            credentials: None,
            nkey: None,
            ca: None,
            max_payload: Size::MEBIBYTE,
        }
    }
}

/// Probes and metrics over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Http {
    /// Where every process that serves the app listens, `0.0.0.0:8080` for instance; `KASKADE_HTTP` and `--http` override it.
    pub address: Address,
}

fn default_slo() -> Span {
    Span::from_millis(250)
}

fn default_workers() -> Vec<Worker> {
    vec![Worker {
        name: Token::local(),
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

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Why an app's configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {reason}; name an app's TOML file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A value is not what the format takes.
    #[error("{}:{line}: {reason}; `kaskade schema app` prints what this file may hold", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line of the offending value, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Values that do not fit each other, or files that are not there.
    #[error("{}: {}", path.display(), problems.join("; "))]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// Every problem, each with the path of its value.
        problems: Vec<String>,
    },
}

impl App {
    /// Reads an app from its file. Relative paths in it become relative to the file's folder, and a `$NAME` that begins a
    /// path of data becomes what the environment says.
    ///
    /// # Errors
    /// [`ConfigError`] with the line of the first malformed value, or else with every inconsistency.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let mut app = Self::parse(&text).map_err(|(line, reason)| ConfigError::Malformed {
            path: path.to_owned(),
            line,
            reason,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        app.resolve(folder);
        app.data.resolve(folder, |name| std::env::var_os(name));
        let problems = app.problems();
        if problems.is_empty() {
            return Ok(app);
        }
        Err(ConfigError::Inconsistent {
            path: path.to_owned(),
            problems,
        })
    }

    /// Reads an app from TOML.
    ///
    /// # Errors
    /// Line and reason of the first malformed value.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
            // Some messages of the parser span lines; a person gets one.
            let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            (line, reason)
        })
    }

    /// The schema of the file, JSON Schema 2020-12.
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }

    /// The confidence score of this app: its own, or the one that suits the task.
    pub fn estimator(&self) -> Estimator {
        self.confidence.unwrap_or(self.task.estimator())
    }

    /// The device of a variant.
    pub fn device_of(&self, variant: &Variant) -> DeviceChoice {
        variant.device.unwrap_or(self.device)
    }

    /// Makes relative paths relative to `folder`, where the file stands; those of data are [`DataSets::resolve`]d.
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

    /// Everything that is wrong between values, and with the files they name; each starts with the value's path.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.variants.is_empty() {
            problems.push("variants: is empty; name at least one model".to_owned());
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
            let config = variant.dir.join("config.json");
            if !config.is_file() {
                problems.push(format!(
                    "variants[{index}].dir: `{}` is no checkpoint directory: it has no config.json",
                    variant.dir.display()
                ));
            }
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
    absent.chain(both)
}

/// A problem for every name after its first appearance.
fn repeated<'a>(list: &'a str, names: impl Iterator<Item = &'a Token>) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    names
        .enumerate()
        .filter(move |(_, name)| !seen.insert(*name))
        .map(move |(index, name)| format!("{list}[{index}].name: `{name}` is used twice"))
}

#[cfg(test)]
mod tests;
