//! The classes of an app: their names in the order in which every variant answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use kaskade_models::checkpoint::Config;
use kaskade_models::class_names::{are_placeholders, comparable_name};
use kaskade_models::entities::{OUTSIDE, group_label};
use kaskade_models::{Checkpoint, LoadError, ModelInfo, Task as Answers};
use thiserror::Error;

use super::variant::Source;
use crate::config::{App, Task};

/// Names shown in an error.
const SHOWN: usize = 6;

/// The answers of a variant cannot be put into the order of the app's classes: one number would stand for two answers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OtherClasses {
    /// There are more or fewer, or some are the same at other places.
    #[error(
        "its classes are {}, and those of {of} {}: the variants of a family have the same classes, in any order; give them the same names \
         in `id2label` of each checkpoint, each in the checkpoint's own order",
        listed(found),
        listed(expected)
    )]
    Others {
        /// What states the classes of the app.
        of: String,
        /// Names of the app's classes.
        expected: Vec<String>,
        /// Names of the variant's classes.
        found: Vec<String>,
    },
    /// A variant that may state the classes of the app has no checkpoint on this host.
    #[error(
        "its classes are {}, and their order in this app is that of `{first}`, whose checkpoint is not on this host: state `classes` in the \
         app's file, or put the `config.json` of `{first}` there",
        listed(found)
    )]
    Unknown {
        /// The variant without a checkpoint.
        first: String,
        /// Names of the variant's classes.
        found: Vec<String>,
    },
    /// The order is known only after the models are loaded.
    #[error(
        "its classes are {}, and those of `{first}` {}, which no `config.json` says: state `classes` in the app's file",
        listed(found),
        listed(expected)
    )]
    Unstated {
        /// The variant that was loaded before.
        first: String,
        /// Names of its classes.
        expected: Vec<String>,
        /// Names of the variant's classes.
        found: Vec<String>,
    },
}

/// The classes of an app: `classes` of its file, else those of the first variant whose classes have names.
#[derive(Debug, Default)]
pub struct FamilyClasses {
    /// `classes` of the app's file.
    stated: Vec<String>,
    /// The variants, smallest to largest.
    sources: Vec<(String, Source)>,
    found: OnceLock<Found>,
    /// Variants whose order was reported.
    reported: Mutex<BTreeSet<String>>,
}

/// What the files on this host say about the classes.
#[derive(Debug, Default)]
struct Found {
    names: Vec<String>,
    /// The variant that states them; `None` for the app's file.
    variant: Option<String>,
    /// The first variant before that one whose checkpoint is not on this host.
    missing: Option<String>,
}

impl FamilyClasses {
    /// Returns the classes of an app; none if its answers are no classes. No file is read yet.
    pub fn of(app: &App) -> Self {
        let classifies = matches!(app.task, Task::Classification | Task::MultiLabel);
        if !classifies || app.pipeline.is_some() {
            return Self::default();
        }
        let sources = app.variants.iter();
        Self {
            stated: app.classes.clone(),
            sources: sources
                .map(|variant| (variant.name.to_string(), Source::of(app, variant)))
                .collect(),
            ..Self::default()
        }
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(|| {
            if !self.stated.is_empty() {
                return Found {
                    names: self.stated.clone(),
                    ..Found::default()
                };
            }
            let mut missing = None;
            for (variant, source) in &self.sources {
                match stated_names(source) {
                    Ok(Some(names)) if !are_placeholders(&names) => {
                        return Found {
                            names,
                            variant: Some(variant.clone()),
                            missing,
                        };
                    }
                    Err(_) => missing = missing.or_else(|| Some(variant.clone())),
                    Ok(_) => {}
                }
            }
            Found {
                missing,
                ..Found::default()
            }
        })
    }

    /// Returns the names; none if no variant has any, or if a variant that may state them is not on this host.
    pub fn names(&self) -> &[String] {
        let found = self.found();
        if found.missing.is_some() {
            return &[];
        }
        &found.names
    }

    /// Returns the order in which a variant with classes of these names has the classes of the app: at the place of each class, the variant's
    /// number of it. `None` if the numbers are the same, as is assumed of names that say nothing (`LABEL_0`) or have none in common.
    ///
    /// # Errors
    /// [`OtherClasses`] if there are more or fewer, if only some are the same and at other places, or if a variant before it is not on this
    /// host.
    pub fn order(&self, own: &[String]) -> Result<Option<Vec<usize>>, OtherClasses> {
        let found = self.found();
        if let Some(first) = &found.missing {
            if are_placeholders(own) {
                return Ok(None);
            }
            return Err(OtherClasses::Unknown {
                first: first.clone(),
                found: own.to_vec(),
            });
        }
        if found.names.is_empty() {
            return Ok(None);
        }
        match Order::of(&found.names, own) {
            Order::Same => Ok(None),
            Order::Other(order) => Ok(Some(order)),
            Order::Unknown => Err(OtherClasses::Others {
                of: match &found.variant {
                    Some(variant) => format!("`{variant}`"),
                    None => "the app's file (`classes`)".to_owned(),
                },
                expected: found.names.clone(),
                found: own.to_vec(),
            }),
        }
    }

    /// Returns whether a variant is reported for the first time in this process.
    pub(super) fn first_report(&self, variant: &str) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.insert(variant.to_owned())
    }
}

/// Compares the classes of variants whose names are known only after they are loaded, as those in the metadata of ONNX files.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    first: Option<(String, Vec<String>)>,
}

impl Classes {
    /// Compares the classes of the next variant with those of the first that has names.
    ///
    /// # Errors
    /// [`OtherClasses::Unstated`] if there are more or fewer, or the same in another order.
    pub fn check(&mut self, variant: &str, info: &ModelInfo) -> Result<(), OtherClasses> {
        if !matches!(info.task, Answers::Classification | Answers::MultiLabel) || info.labels.is_empty() {
            return Ok(());
        }
        let Some((first, expected)) = &self.first else {
            self.first = Some((variant.to_owned(), info.labels.clone()));
            return Ok(());
        };
        if Order::of(expected, &info.labels) != Order::Same {
            return Err(OtherClasses::Unstated {
                first: first.clone(),
                expected: expected.clone(),
                found: info.labels.clone(),
            });
        }
        if are_placeholders(expected) {
            self.first = Some((variant.to_owned(), info.labels.clone()));
        }
        Ok(())
    }
}

/// How the classes of a variant relate to those of the app.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// They have the same numbers.
    Same,
    /// At the place of each class of the app, the variant's number of it.
    Other(Vec<usize>),
    /// It cannot be known.
    Unknown,
}

impl Order {
    /// Compares names. Those that say nothing and those that have none in common are taken to have the same numbers.
    fn of(expected: &[String], found: &[String]) -> Self {
        if expected.len() != found.len() {
            return Self::Unknown;
        }
        if are_placeholders(expected) || are_placeholders(found) {
            return Self::Same;
        }
        let comparable =
            |names: &[String]| -> Vec<String> { names.iter().map(|name| comparable_name(name)).collect() };
        let (expected, found) = (comparable(expected), comparable(found));
        let known: BTreeSet<&String> = expected.iter().collect();
        let mut pairs = expected.iter().zip(&found);
        if pairs.all(|(expected, found)| expected == found || !known.contains(found)) {
            return Self::Same;
        }
        let places: BTreeMap<&String, usize> = found.iter().zip(0..).collect();
        let order = expected.iter().map(|name| places.get(name).copied());
        match order.collect::<Option<Vec<usize>>>() {
            // Of two classes with one name, either may be either.
            Some(order) if places.len() == found.len() && known.len() == found.len() => Self::Other(order),
            _ => Self::Unknown,
        }
    }
}

/// Returns the names that the files of a source state for its classes; `None` if they state none.
///
/// # Errors
/// For a file that is missing or malformed.
pub(super) fn stated_names(source: &Source) -> Result<Option<Vec<String>>, LoadError> {
    let config = match source {
        Source::Directory(dir) => match Checkpoint::open(dir) {
            Ok(checkpoint) => checkpoint.config,
            // A host may have the configuration alone.
            Err(error) => config_in(dir)?.ok_or(error)?,
        },
        Source::Onnx(file) => match config_beside(file)? {
            Some(config) => config,
            None => return Ok(None),
        },
        Source::Embedded { config, .. } => Config::parse("config.json", config)?,
        Source::Remote { config, .. } => {
            return Ok((!config.labels.is_empty()).then(|| config.labels.clone()));
        }
        Source::Attached => return Ok(None),
    };
    if config.optional::<serde_json::Value>("id2label")?.is_none() {
        return Ok(None);
    }
    Ok(Some(config.labels()?))
}

fn config_in(folder: &Path) -> Result<Option<Config>, LoadError> {
    let file = folder.join("config.json");
    match std::fs::read(&file) {
        Ok(json) => Ok(Some(Config::parse(file.display().to_string(), &json)?)),
        Err(_) => Ok(None),
    }
}

/// Returns the configuration of an ONNX file: beside it, or beside its folder if that is called `onnx`, as on the Hugging Face Hub.
fn config_beside(file: &Path) -> Result<Option<Config>, LoadError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let above = || {
        folder
            .file_name()
            .is_some_and(|name| name == "onnx")
            .then(|| folder.parent())?
    };
    let folders: Vec<PathBuf> = [Some(folder), above()]
        .into_iter()
        .flatten()
        .map(Path::to_owned)
        .collect();
    for folder in folders {
        if let Some(config) = config_in(&folder)? {
            return Ok(Some(config));
        }
    }
    Ok(None)
}

/// Returns the labels that only some of the token classifiers of a family have, as remarks.
pub(super) fn unequal_entities(labels: &[(String, Vec<String>)]) -> Vec<String> {
    let groups = |names: &[String]| -> BTreeSet<String> {
        let groups = names
            .iter()
            .map(|name| group_label(name))
            .filter(|name| *name != OUTSIDE);
        groups.map(str::to_owned).collect()
    };
    let Some((first, of_first)) = labels.first() else {
        return Vec::new();
    };
    let of_first = groups(of_first);
    let differing = labels.iter().skip(1).filter_map(|(variant, names)| {
        let names = groups(names);
        let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| -> Vec<String> {
            one.difference(other).cloned().collect()
        };
        let sides = [(first, only(&of_first, &names)), (variant, only(&names, &of_first))];
        let sides = sides.iter().filter(|(_, only)| !only.is_empty());
        let sides: Vec<String> = sides
            .map(|(variant, only)| format!("only `{variant}` has {}", listed(only)))
            .collect();
        (!sides.is_empty()).then(|| {
            format!(
                "`{first}` and `{variant}` do not have the same labels of entities: {}; entities with different labels never count as the same",
                sides.join(", and ")
            )
        })
    });
    differing.collect()
}

/// Returns the first of some names, between backticks.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len() {
        all if all > SHOWN => format!("{shown}, ... ({all} in all)"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests;
