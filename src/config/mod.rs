//! The configuration of one app: one TOML file, parsed whole before anything binds.
//!
//! | module | holds |
//! |---|---|
//! | [`scalar`] | names, lengths of time, sizes and powers that cannot hold nonsense |
//! | [`data`] | where labelled samples come from |
//!
//! What a value may be is checked where it is read, with the line of the error; what values must be to each other, and to
//! the files they name, is checked by [`App::problems`], which reports everything it finds.

pub mod data;
pub mod scalar;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use kaskade_models::device::DeviceChoice;
use kaskade_models::power::{PowerConfig, SourceKind, Wattage};
use kaskade_plans::confidence::Estimator;
use kaskade_plans::plan::Batching;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use data::DataSets;
use scalar::{Span, Token, Watts};

/// One app: a family of models, what they are measured on, and how they are served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
    /// When a replica's queue becomes a batch, in plans that are made here.
    #[serde(default)]
    pub batching: BatchingRule,
    /// What the doors let in.
    #[serde(default)]
    pub ingress: Ingress,
    /// Who hosts the replicas, in plans that are made here.
    #[serde(default = "default_workers")]
    #[schemars(length(min = 1))]
    pub workers: Vec<Worker>,
    /// Where joules are read from, and what is assumed where nothing can be read. Assumed figures are always called modelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Energy {
    /// Sources that may be used, best first.
    #[schemars(with = "Vec<String>")]
    pub sources: Vec<SourceKind>,
    /// Assumed of the processor; its active power is that of one busy core.
    pub processor: Power,
    /// Assumed of a GPU. GPUs differ too much for a default: without NVML and without this, their energy is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Power>,
}

/// The power that a device is assumed to draw.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// While it does nothing, watts.
    pub idle_watts: Watts,
    /// In addition while it computes, watts.
    pub active_watts: Watts,
}

impl Default for Energy {
    fn default() -> Self {
        let PowerConfig {
            sources, processor, ..
        } = PowerConfig::default();
        let watts = |watts| Watts::try_from(watts).unwrap_or(Watts::TEN);
        Self {
            sources,
            processor: Power {
                idle_watts: watts(processor.idle_watts),
                active_watts: watts(processor.active_watts),
            },
            gpu: None,
        }
    }
}

impl From<&Energy> for PowerConfig {
    fn from(energy: &Energy) -> Self {
        let wattage = |power: Power| Wattage {
            idle_watts: power.idle_watts.get(),
            active_watts: power.active_watts.get(),
        };
        Self {
            sources: energy.sources.clone(),
            processor: wattage(energy.processor),
            gpu: energy.gpu.map(wattage),
            ..Self::default()
        }
    }
}

/// The broker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Nats {
    /// A nats-server of 2.10 or newer; without one, a small broker is started in the process, on the loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
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

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Why an app's configuration cannot be used.
#[derive(Debug, Error)]
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
    /// Reads an app from its file. Relative paths in it become relative to the file's folder.
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
        app.resolve(path.parent().unwrap_or(Path::new("")));
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
            let reason = error
                .message()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
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

    /// Makes relative paths relative to `folder`, where the file stands.
    fn resolve(&mut self, folder: &Path) {
        let mut paths: Vec<&mut PathBuf> = self.variants.iter_mut().map(|variant| &mut variant.dir).collect();
        paths.extend(self.data.paths_mut());
        if let PlanSource::File(path) = &mut self.plan {
            paths.push(path);
        }
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
        problems.extend(repeated("workers", self.workers.iter().map(|worker| &worker.name)));
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
        if self.batching.min_queue > self.batching.max_batch {
            problems.push(format!(
                "batching.min_queue: {} is more than max_batch, {}; such a batch never fills",
                self.batching.min_queue, self.batching.max_batch
            ));
        }
        problems
    }
}

/// A problem for every name after its first appearance.
fn repeated<'a>(list: &'a str, names: impl Iterator<Item = &'a Token>) -> impl Iterator<Item = String> {
    let mut seen = BTreeSet::new();
    names.enumerate().filter_map(move |(index, name)| {
        (!seen.insert(name)).then(|| format!("{list}[{index}].name: `{name}` is used twice"))
    })
}

#[cfg(test)]
mod tests;
