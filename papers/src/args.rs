//! Flags that several systems share.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kaskade_app::load::tracefile::{self, TraceFile, TraceFileError};
use kaskade_app::planning;
use kaskade_policy::pipeline::Pipeline;
use kaskade_simulator::trace::Trace;

use kaskade_stated::artefact::ArtefactFiles;
use kaskade_stated::pipelines;

/// Batch sizes of the published artefact.
const BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A pipeline.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PipelineArgs {
    /// The pipeline: its tasks, variants, latencies and factors, as TOML (`.toml`) or JSON. Without it and
    /// without `--data`, the stated traffic pipeline.
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,
    /// The folder of the measurements that the Loki authors published, instead.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "pipeline")]
    data: Option<PathBuf>,
    /// Which accelerator's latencies to take of `--data`; the paper's is a GTX 1080 Ti.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "onnxruntime_gpu_pascal",
        requires = "data"
    )]
    accelerator: String,
}

/// A pipeline, and what to know about it.
#[derive(Debug, Clone)]
pub struct Named {
    /// The pipeline, validated.
    pub pipeline: Pipeline,
    /// Assumptions, omissions and implausible input.
    pub notes: Vec<String>,
}

impl PipelineArgs {
    /// Reads the pipeline: the file's, the published one, or the stated traffic pipeline.
    ///
    /// # Errors
    /// When a file cannot be read or does not describe a valid pipeline, with its field or line.
    pub fn read(&self) -> anyhow::Result<Named> {
        match (&self.pipeline, &self.data) {
            (Some(file), _) => Ok(Named {
                pipeline: planning::pipelines::read(Some(file), None)?,
                notes: Vec::new(),
            }),
            (None, Some(folder)) => self
                .published(folder)
                .with_context(|| folder.display().to_string()),
            (None, None) => Ok(Named {
                pipeline: pipelines::stated(),
                notes: vec![
                    "the stated traffic pipeline: every figure is assumed, in the shape of what the Loki authors published"
                        .to_owned(),
                ],
            }),
        }
    }

    fn published(&self, folder: &Path) -> anyhow::Result<Named> {
        let variants = folder.join("variants");
        let mut accuracies = BTreeMap::new();
        let files =
            std::fs::read_dir(&variants).with_context(|| format!("{} cannot be read", variants.display()))?;
        for file in files {
            let path = file?.path();
            if let Some(task) = path.file_stem().and_then(|stem| stem.to_str()) {
                accuracies.insert(task.to_owned(), text(&path)?);
            }
        }
        let found = ArtefactFiles {
            graph: &text(&folder.join("traffic_analysis.json"))?,
            branching: &text(&folder.join("branching.csv"))?,
            accuracies: &accuracies,
            runtimes: &text(&folder.join("simulator_runtimes.csv"))?,
            accelerator: &self.accelerator,
            batches: &BATCHES,
            hop_us: 0,
        }
        .read()?;
        Ok(Named {
            pipeline: found.pipeline,
            notes: found.notes,
        })
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// A trace, and how it is played.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TraceArgs {
    /// A trace file, plain or compressed by gzip: requests per second (integers separated by spaces), arrival times (one in
    /// seconds per line), or the Azure LLM trace (CSV).
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Contents of the trace file [default: detected].
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
pub enum Format {
    /// Requests per second, as integers separated by white space.
    Counts,
    /// Arrival times in seconds, one per line.
    Times,
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm,
}

impl TraceArgs {
    /// Reads the requested trace, if any.
    ///
    /// # Errors
    /// When the file cannot be read, is no trace, or is shorter than the requested part.
    pub fn read(&self) -> Result<Option<Trace>, TraceFileError> {
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
///
/// # Errors
/// When the text is no such number.
pub fn positive(text: &str) -> Result<f64, String> {
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
