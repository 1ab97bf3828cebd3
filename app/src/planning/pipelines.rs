//! Where pipelines come from: the app, a file, the published measurements, or the stated default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kaskade_plans::pipeline::{self, ArtefactFiles, Pipeline};

use crate::config::App;
use crate::planning::{PlanningError, allocator};

/// Batch sizes of the published artefact.
const BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Where a pipeline comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipelineSource {
    /// What was measured of the app's own pipeline; the stated traffic pipeline if the app has none.
    #[default]
    App,
    /// A file: tasks, variants, latencies and factors, as TOML (`.toml`) or JSON.
    File(PathBuf),
    /// The measurements that the Loki authors published.
    Published {
        /// Their folder.
        folder: PathBuf,
        /// The accelerator whose latencies count.
        accelerator: String,
    },
}

/// A pipeline, and what to know about it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Named {
    /// The pipeline, checked.
    pub pipeline: Pipeline,
    /// What was assumed, left out, or looks wrong.
    pub notes: Vec<String>,
}

impl PipelineSource {
    /// Reads the pipeline.
    ///
    /// # Errors
    /// When a file cannot be read or describes no sound pipeline, with its field or line.
    pub fn read(&self, app: Option<&App>) -> Result<Named, PlanningError> {
        match (self, app.and_then(|app| Some((app, app.pipeline.as_ref()?)))) {
            (Self::File(path), _) => of_file(path).map_err(PlanningError::of(path)),
            (Self::Published { folder, accelerator }, _) => {
                published(folder, accelerator).map_err(PlanningError::of(folder))
            }
            (Self::App, Some((app, rule))) => Ok(Named {
                pipeline: allocator::measured(app, rule)?,
                notes: Vec::new(),
            }),
            (Self::App, None) => Ok(Named {
                pipeline: pipeline::stated(),
                notes: vec![
                    "the stated traffic pipeline: every figure is assumed, in the shape of what the Loki authors published"
                        .to_owned(),
                ],
            }),
        }
    }
}

fn published(folder: &Path, accelerator: &str) -> Result<Named, PlanningError> {
    let variants = folder.join("variants");
    let mut accuracies = BTreeMap::new();
    let files = std::fs::read_dir(&variants).map_err(PlanningError::unreadable(&variants))?;
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
        accelerator,
        batches: &BATCHES,
        hop_us: 0,
    }
    .read()?;
    Ok(Named {
        pipeline: found.pipeline,
        notes: found.notes,
    })
}

fn of_file(path: &Path) -> Result<Named, PlanningError> {
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

fn text(path: &Path) -> Result<String, PlanningError> {
    std::fs::read_to_string(path).map_err(PlanningError::unreadable(path))
}
