//! Flags that several systems share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kaskade_app::planning;
use kaskade_policy::pipeline::Pipeline;

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
    /// Accelerator whose latencies of `--data` are used; the paper's is a GTX 1080 Ti.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "onnxruntime_gpu_pascal",
        requires = "data"
    )]
    accelerator: String,
}

/// A pipeline, with notes on its data.
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
