//! Writes the app file of a new app from existing checkpoints, ONNX files and endpoints.
//!
//! | module | holds |
//! |---|---|
//! | `source` | reads the task and the size of a variant from its files |
//! | `samples` | detects the format of a data set |
//! | `paths` | paths as written to the app file |
//! | `toml_text` | the text of the app file |
//!
//! The text is checked before it is written: it parses, its checkpoints open, and its samples are readable for the
//! smallest variant.

mod paths;
mod samples;
mod source;
mod toml_text;

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kaskade_models::LoadError;
use thiserror::Error;

use crate::config::scalar::SubjectToken;
use crate::config::{App, ConfigError, Task};
use crate::data::DataError;
use crate::family::{Family, FamilyError};
pub use source::Variant;

/// Error of describing a new app.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InitError {
    /// The folder's name is not a valid app name.
    #[error(
        "`{name}` cannot name an app: use 1 to 64 ASCII letters, digits, `-` or `_`, by another folder or `--name`"
    )]
    Name {
        /// The name of the folder.
        name: String,
    },
    /// The current folder is unknown.
    #[error("the current folder cannot be read")]
    CurrentFolder(#[source] io::Error),
    /// A path cannot be written to the app file.
    #[error("`{}` cannot be found from the folder of the app; name an absolute path", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A path is not a checkpoint.
    #[error("`{}` {reason}", path.display())]
    NoCheckpoint {
        /// The path.
        path: PathBuf,
        /// The error and the remedy.
        reason: String,
    },
    /// A checkpoint cannot be read.
    #[error("variant `{variant}`")]
    Checkpoint {
        /// Name of the variant.
        variant: String,
        /// The error.
        source: Box<LoadError>,
    },
    /// Two variants have the same name.
    #[error("two variants are named `{name}`; give one another name: `{flag}`")]
    NameTwice {
        /// The repeated name.
        name: String,
        /// The flag that renames the second variant.
        flag: String,
    },
    /// The variants have different tasks.
    #[error(
        "the variants of an app have one task, and `{first}` answers `{first_task}`, `{other}` `{other_task}`; leave one of them out"
    )]
    OtherTask {
        /// The first variant.
        first: String,
        /// Task of the first variant.
        first_task: &'static str,
        /// A variant with another task.
        other: String,
        /// Task of that variant.
        other_task: &'static str,
    },
    /// A variant does not have the stated task.
    #[error(
        "variant `{variant}` answers `{found}`, not `{stated}`; leave out `--task`, or name a checkpoint of that task"
    )]
    NotTheTask {
        /// The variant.
        variant: String,
        /// Task of the variant.
        found: &'static str,
        /// The stated task.
        stated: &'static str,
    },
    /// A checkpoint can only be a stage of a pipeline.
    #[error(
        "variant `{variant}` finds objects, which only the first task of a pipeline does; write that app by hand (docs/how-to/plan-pipelines.md)"
    )]
    OfPipeline {
        /// The variant.
        variant: String,
    },
    /// No variant states the task.
    #[error("ONNX files do not state their task; give `--task`, such as `--task classification`")]
    NoTask,
    /// A language model is to classify, but the class names are unknown.
    #[error(
        "variant `{variant}` is a language model that classifies by the names of the classes, and no checkpoint names any: add `id2label` to \
         a config.json"
    )]
    NoClassNames {
        /// The variant.
        variant: String,
    },
    /// The data cannot be used.
    #[error("{}", path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: Box<DataError>,
    },
    /// Values contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A variant cannot be served together with the others.
    #[error(transparent)]
    Family(#[from] FamilyError),
}

/// Source of a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A checkpoint directory, a GGUF file or an ONNX file, with the variant's name if stated.
    Path(Option<SubjectToken>, PathBuf),
    /// An endpoint with the OpenAI API.
    Endpoint {
        /// Name of the variant, if stated.
        name: Option<SubjectToken>,
        /// Address of the endpoint.
        url: String,
        /// Model name at the endpoint.
        model: String,
        /// Environment variable with the key.
        key: Option<String>,
    },
}

impl Origin {
    /// Returns the endpoint of a model at an address, written as `URL` or `NAME=URL`; `key` is the environment variable
    /// with the key.
    pub fn endpoint(address: &str, model: &str, key: Option<&str>) -> Self {
        let named = address
            .split_once('=')
            .and_then(|(name, url)| Some((name.parse().ok()?, url)));
        let (name, url) = match named {
            Some((name, url)) => (Some(name), url),
            None => (None, address),
        };
        Self::Endpoint {
            name,
            url: url.to_owned(),
            model: model.to_owned(),
            key: key.map(str::to_owned),
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    /// Parses `PATH` or `NAME=PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split_once('=').filter(|_| !Path::new(text).exists());
        match named.and_then(|(name, path)| Some((name.parse().ok()?, path))) {
            Some((name, path)) => Ok(Self::Path(Some(name), path.into())),
            None => Ok(Self::Path(None, text.into())),
        }
    }
}

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
        let family = Family::of(&app);
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
