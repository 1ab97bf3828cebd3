//! Pipelines as the command line names them: a file of one's own, the published measurements, or the stated default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kaskade_plans::pipeline::{self, ArtefactFiles, Pipeline};

use crate::config::App;
use crate::planning::allocator;

/// Batch sizes of the published artefact.
const BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A pipeline.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PipelineArgs {
    /// The pipeline: its tasks, variants, latencies and factors, as TOML (`.toml`) or JSON. The stated traffic pipeline where
    /// neither this nor `--data` is given and no app has one.
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
    /// The pipeline, checked.
    pub pipeline: Pipeline,
    /// What was assumed, left out, or looks wrong.
    pub notes: Vec<String>,
}

impl PipelineArgs {
    /// The pipeline that was asked for; the app's own where none was.
    ///
    /// # Errors
    /// When a file cannot be read or describes no sound pipeline, with its field or line.
    pub fn read(&self, app: Option<&App>) -> anyhow::Result<Named> {
        let own = app.and_then(|app| Some((app, app.pipeline.as_ref()?)));
        if let (None, None, Some((app, rule))) = (&self.pipeline, &self.data, own) {
            return Ok(Named {
                pipeline: allocator::measured(app, rule)?,
                notes: Vec::new(),
            });
        }
        match (&self.pipeline, &self.data) {
            (Some(path), _) => of_file(path).with_context(|| path.display().to_string()),
            (None, Some(folder)) => self.published(folder).with_context(|| folder.display().to_string()),
            (None, None) => Ok(Named {
                pipeline: pipeline::stated(),
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

fn of_file(path: &Path) -> anyhow::Result<Named> {
    let text = text(path)?;
    let pipeline = if path.extension().is_some_and(|extension| extension == "toml") {
        let pipeline: Pipeline = toml::from_str(&text)?;
        pipeline.validate()?;
        pipeline
    } else {
        Pipeline::from_json(&text)?
    };
    Ok(Named {
        pipeline,
        notes: Vec::new(),
    })
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}
