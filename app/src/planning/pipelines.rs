//! Reads a pipeline: from a file, or as measured for the app.

use std::path::Path;

use kaskade_policy::pipeline::Pipeline;

use crate::config::App;
use crate::planning::{PlanningError, allocator};

/// Reads the pipeline of `file` (TOML or JSON); without one, the measured pipeline of `app`.
///
/// # Errors
/// [`PlanningError`] if neither is given, or if a file cannot be read or is not a valid pipeline, with the field or
/// line.
pub fn read(file: Option<&Path>, app: Option<&App>) -> Result<Pipeline, PlanningError> {
    if let Some(path) = file {
        return of_file(path).map_err(PlanningError::in_file(path));
    }
    let (app, config) = app
        .and_then(|app| Some((app, app.pipeline.as_ref()?)))
        .ok_or(PlanningError::NoPipeline)?;
    allocator::measured(app, config)
}

fn of_file(path: &Path) -> Result<Pipeline, PlanningError> {
    let text = std::fs::read_to_string(path).map_err(PlanningError::unreadable(path))?;
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Ok(Pipeline::from_json(&text)?);
    }
    let pipeline: Pipeline = toml::from_str(&text)?;
    pipeline.validate()?;
    Ok(pipeline)
}
