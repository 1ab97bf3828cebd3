//! Flags that several verbs share, and what they say in the application library's own types.

use std::ops::Range;
use std::path::PathBuf;

use kaskade_app::config::{App, pipeline, planner};
use kaskade_app::load::arrivals;
use kaskade_app::load::tracefile::{self, TraceFile, TraceFileError};
use kaskade_app::planning::PlanningError;
use kaskade_app::planning::pipelines;
use kaskade_app::serving::{self, Connection};
use kaskade_policy::pipeline::Pipeline;
use kaskade_simulator::trace::Trace;

/// The broker, as every verb that needs one is told.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Broker {
    /// A nats-server of 2.10 or newer. Without one (and without `nats.url` in the app), a small broker is started in the
    /// process, on the loopback.
    #[arg(long, value_name = "URL", env = "NATS_URL")]
    nats: Option<String>,
    /// The seed of the user to connect as, in a file; `kaskade auth init` writes them. Instead of the app's `nats.nkey`.
    #[arg(long, value_name = "FILE", env = "NATS_NKEY")]
    nkey: Option<PathBuf>,
    /// Certificates to trust beside the system's, for a server reached by `tls://`. Instead of the app's `nats.ca`.
    #[arg(long, value_name = "FILE", env = "NATS_CA")]
    nats_ca: Option<PathBuf>,
}

impl Broker {
    /// The connection to the broker.
    pub(crate) fn connection(&self) -> Connection {
        Connection {
            url: self.nats.clone(),
            nkey: self.nkey.clone(),
            ca: self.nats_ca.clone(),
            ..Connection::default()
        }
    }
}

/// What a process takes on of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// The doors, a worker, and the planner where the app has one.
    All,
    /// The doors alone.
    Ingress,
    /// A worker alone.
    Worker,
    /// The planner alone.
    Planner,
}

impl From<Role> for serving::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::All => Self::All,
            Role::Ingress => Self::Ingress,
            Role::Worker => Self::Worker,
            Role::Planner => Self::Planner,
        }
    }
}

/// How an open loop spaces its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Spacing {
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// One every `1 / rate` seconds.
    Constant,
}

impl From<Spacing> for arrivals::Spacing {
    fn from(spacing: Spacing) -> Self {
        match spacing {
            Spacing::Poisson => Self::Poisson,
            Spacing::Constant => Self::Constant,
        }
    }
}

/// What the gear planner may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum GearPolicy {
    /// Cascades that change with the load (CascadeServe).
    Gears,
    /// One cascade for every load.
    NoSwitching,
    /// Single models, switched by load.
    NoCascade,
}

impl From<GearPolicy> for planner::GearPolicy {
    fn from(policy: GearPolicy) -> Self {
        match policy {
            GearPolicy::Gears => Self::Gears,
            GearPolicy::NoSwitching => Self::NoSwitching,
            GearPolicy::NoCascade => Self::NoCascade,
        }
    }
}

/// What the allocator of a pipeline may scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PipelinePolicy {
    /// Hardware scaling, then accuracy scaling over the whole pipeline.
    Loki,
    /// Hardware scaling alone: the most accurate variants whatever the demand.
    HardwareOnly,
}

impl From<PipelinePolicy> for pipeline::PipelinePolicy {
    fn from(policy: PipelinePolicy) -> Self {
        match policy {
            PipelinePolicy::Loki => Self::Loki,
            PipelinePolicy::HardwareOnly => Self::HardwareOnly,
        }
    }
}

/// What becomes of requests that are late at a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Late {
    /// Nothing.
    None,
    /// Dropped before the last task, if that takes longer than there is time.
    LastTask,
    /// Dropped after any task whose budget they exceeded.
    PerTask,
    /// Sent to a backup that makes up for it, or dropped.
    Rerouting,
}

impl From<Late> for pipeline::Late {
    fn from(late: Late) -> Self {
        match late {
            Late::None => Self::None,
            Late::LastTask => Self::LastTask,
            Late::PerTask => Self::PerTask,
            Late::Rerouting => Self::Rerouting,
        }
    }
}

/// A pipeline.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PipelineArgs {
    /// The pipeline: its tasks, variants, latencies and factors, as TOML (`.toml`) or JSON [default: the app's own].
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,
}

impl PipelineArgs {
    /// Reads the pipeline; without a file, the app's own.
    ///
    /// # Errors
    /// When there is neither, or a file cannot be read or does not describe a valid pipeline, with its field or line.
    pub(crate) fn read(&self, app: Option<&App>) -> Result<Pipeline, PlanningError> {
        pipelines::read(self.pipeline.as_deref(), app)
    }
}

/// A trace, and how it is played.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TraceArgs {
    /// A trace file, plain or compressed by gzip: requests per second (integers separated by spaces), arrival times (one in
    /// seconds per line), or the Azure LLM trace (CSV).
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// What the trace file holds; by default what it looks like.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "trace")]
    trace_format: Option<Format>,
    /// The part of the trace to play, in seconds from its beginning: `START..END`.
    #[arg(long, value_name = "START..END", requires = "trace", value_parser = part)]
    excerpt: Option<Part>,
    /// Scale the trace so that its busiest second has this many requests.
    #[arg(long, value_name = "PER_SECOND", requires = "trace", value_parser = positive)]
    peak: Option<f64>,
    /// Leave out the seconds without requests.
    #[arg(long, requires = "trace")]
    skip_idle: bool,
}

/// What a trace file may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Requests per second, as integers separated by white space.
    Counts,
    /// Arrival times in seconds, one per line.
    Times,
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm,
}

impl TraceArgs {
    /// Reads the trace that was asked for, if one was.
    ///
    /// # Errors
    /// When the file cannot be read, is no trace, or is shorter than the part asked for.
    pub(crate) fn read(&self) -> Result<Option<Trace>, TraceFileError> {
        let Some(path) = &self.trace else { return Ok(None) };
        let file = TraceFile {
            path: path.clone(),
            format: self.trace_format.map(Into::into),
            excerpt: self.excerpt.as_ref().map(|part| part.0.clone()),
            peak: self.peak,
            skip_idle: self.skip_idle,
        };
        file.read().map(Some)
    }
}

impl From<Format> for tracefile::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Counts => Self::Counts,
            Format::Times => Self::Times,
            Format::AzureLlm => Self::AzureLlm,
        }
    }
}

/// A part of a trace, in seconds from its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part(Range<usize>);

/// A number above zero, from the command line.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() && number > 0.0 {
        return Ok(number);
    }
    Err(format!("{number} is not above zero"))
}

fn part(text: &str) -> Result<Part, String> {
    let ends = text.split_once("..");
    let ends = ends.and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
    match ends {
        Some((from, to)) if from < to => Ok(Part(from..to)),
        Some((from, to)) => Err(format!("{from}..{to} is empty; the end comes after the start")),
        None => Err(format!(
            "`{text}` is not START..END in whole seconds, such as 0..1200"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_seconds_from_start_to_end() {
        assert_eq!(part("5..9"), Ok(Part(5..9)));
        for (text, message) in [
            ("5..5", "is empty"),
            ("a..b", "whole seconds"),
            ("7", "START..END"),
        ] {
            assert!(part(text).unwrap_err().contains(message));
        }
    }
}
