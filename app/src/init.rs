//! Writes the app file of a new app from existing checkpoints, ONNX files and endpoints.
//!
//! | module | holds |
//! |---|---|
//! | `origin` | where a variant is, as the user states it |
//! | `source` | reads the task and the size of a variant from its files |
//! | `samples` | detects the format of a data set |
//! | `paths` | paths as written to the app file |
//! | `toml_text` | the text of the app file |
//! | `error` | errors |
//!
//! The text is checked before it is written: it parses, its checkpoints open, and its samples are readable for the
//! smallest variant.

mod error;
mod origin;
mod paths;
mod samples;
mod source;
mod toml_text;

use std::path::{Path, PathBuf};

use crate::config::scalar::SubjectToken;
use crate::config::{App, Task};
use crate::family::Family;
pub use error::InitError;
pub use origin::Origin;
pub use source::Variant;

/// Description of a new app, as the user states it.
#[derive(Debug, Clone, Default)]
pub struct NewApp {
    /// Folder of the app file.
    pub folder: PathBuf,
    /// Name of the app [default: that of the folder].
    pub name: Option<SubjectToken>,
    /// Task of the app [default: that of the checkpoints].
    pub task: Option<Task>,
    /// Sources of the variants, in any order.
    pub origins: Vec<Origin>,
    /// Labelled samples to measure on: a file, or a folder.
    pub validation: Option<PathBuf>,
    /// Labelled samples to report accuracy on.
    pub test: Option<PathBuf>,
}

/// A new app, not yet written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Draft {
    /// Path of the app file.
    pub file: PathBuf,
    /// Content of the app file.
    pub text: String,
    /// Name of the app.
    pub name: String,
    /// Task of the app.
    pub task: Task,
    /// Variants of the app, smallest to largest.
    pub variants: Vec<Variant>,
    /// Number of validation samples; `None` without such a set.
    pub samples: Option<usize>,
}

impl NewApp {
    /// Returns the path of the app file in its folder.
    pub fn file(&self) -> PathBuf {
        self.folder.join("app.toml")
    }

    /// Drafts the app file and checks it. Writes nothing.
    ///
    /// # Errors
    /// [`InitError`] for a path that is not a checkpoint, different tasks, or samples that cannot be read.
    pub fn draft(&self) -> Result<Draft, InitError> {
        let name = self.app_name()?;
        let mut variants = Vec::new();
        for origin in &self.origins {
            let variant = Variant::of(origin)?;
            check_name(&variants, &variant)?;
            variants.push(variant);
        }
        // The size of an endpoint's model is unknown; it is rarely the smallest.
        variants.sort_by_key(|variant| variant.parameters.unwrap_or(u64::MAX));
        let task = source::common_task(self.task, &variants)?;
        let sets = samples::Sets::find(self.validation.as_deref(), self.test.as_deref())?;
        let text = |folder| toml_text::of(folder, (&name, task), &variants, &sets);
        let file = self.file();
        // The folder need not exist, so the check uses absolute paths.
        let app = App::of_text(&text(None)?, &file)?;
        let family = Family::from_app(&app);
        family.check_classes()?;
        family.check_tokenizers(&app.data)?;
        let samples = samples::read(&app, &family, &sets)?;
        Ok(Draft {
            file,
            text: text(Some(&self.folder))?,
            name: name.to_string(),
            task,
            variants,
            samples,
        })
    }

    /// Returns the stated name, or the folder's.
    fn app_name(&self) -> Result<SubjectToken, InitError> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let folder = std::path::absolute(self.folder.join(".")).map_err(InitError::CurrentFolder)?;
        let folder = folder.canonicalize().unwrap_or(folder);
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        name.parse().map_err(|_| InitError::Name {
            name: name.into_owned(),
        })
    }
}

impl Draft {
    /// Returns the next shell commands, which make a plan and serve it. For a task without confidences there is no
    /// cascade to plan.
    pub fn next_commands(&self) -> Vec<String> {
        let app = quoted(&self.file);
        if !self.task.has_confidence() {
            return vec![
                format!("kaskade validate {app} --load"),
                format!("kaskade serve --app {app}"),
                format!("kaskade infer {} --text \"...\"", self.name),
            ];
        }
        let beside = |name: &str| quoted(&self.file.with_file_name(name));
        let (profile, plan) = (beside("profile.json"), beside("plan.json"));
        vec![
            format!("kaskade profile --app {app} --out {profile}"),
            format!("kaskade plan cascade --app {app} --profile {profile} --out {plan}"),
            format!("kaskade serve --app {app} --plan {plan}"),
        ]
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), |quoted| quoted.to_string())
}

fn check_name(before: &[Variant], variant: &Variant) -> Result<(), InitError> {
    if before.iter().any(|other| other.name == variant.name) {
        return Err(InitError::NameTwice {
            name: variant.name.to_string(),
            flag: variant.naming_flag(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
