//! The classes of an app: their names, in the order in which every variant answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use kaskade_models::checkpoint::Config;
use kaskade_models::class_names::{are_placeholders, comparable_name, is_placeholder};
use kaskade_models::entities::{OUTSIDE, group_label};
use kaskade_models::{Checkpoint, LoadError, ModelInfo, Task as Answers};
use thiserror::Error;

use super::source::Source;
use crate::config::{App, Task};
use crate::report::progress::say;

/// Number of names shown in an error.
const SHOWN: usize = 6;

/// Error of a variant whose answers cannot be mapped to the app's classes, so that one class number would stand for two
/// answers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClassMismatch {
    /// The numbers of classes differ, or some names occur at different indices.
    #[error(
        "its classes are {}, and those of {of} {}: the variants of a family have the same classes, in any order; give them the same names \
         in `id2label` of each checkpoint, each in the checkpoint's own order",
        listed(found),
        listed(expected)
    )]
    Different {
        /// Source of the app's class names.
        of: String,
        /// The app's class names.
        expected: Vec<String>,
        /// The variant's class names.
        found: Vec<String>,
    },
    /// Only some names are equal, at the same indices, so the mapping of the others is ambiguous.
    #[error(
        "its classes {} have other names than those of {of} with the same numbers, {}, while the rest have the same names, so that their \
         order is not known: give them the same names in `id2label` of each checkpoint, each in the checkpoint's own order",
        listed(found),
        listed(expected)
    )]
    Ambiguous {
        /// Source of the app's class names.
        of: String,
        /// The app's class names that differ.
        expected: Vec<String>,
        /// The variant's class names at the same indices.
        found: Vec<String>,
    },
    /// A preceding variant, which may state the classes of the app, has no checkpoint on this host.
    #[error(
        "its classes are {}, and their order in this app is that of `{first}`, whose checkpoint is not on this host: state `classes` in the \
         app's file, or put the `config.json` of `{first}` there",
        listed(found)
    )]
    Unknown {
        /// Name of that variant.
        first: String,
        /// Class names of the variant that is checked.
        found: Vec<String>,
    },
    /// The files of a preceding variant, which may state the classes of the app, cannot be read.
    #[error(
        "its classes are {}, and their order in this app is that of `{first}`, whose files do not tell it ({reason}): correct that, or state \
         `classes` in the app's file",
        listed(found)
    )]
    Unreadable {
        /// Name of that variant.
        first: String,
        /// The error of reading the files.
        reason: String,
        /// Class names of the variant that is checked.
        found: Vec<String>,
    },
    /// The order of the classes is known only after the models are loaded.
    #[error(
        "its classes are {}, and those of `{first}` {}, which no `config.json` says: state `classes` in the app's file",
        listed(found),
        listed(expected)
    )]
    Unstated {
        /// The variant that was loaded before.
        first: String,
        /// Class names of that variant.
        expected: Vec<String>,
        /// Class names of the variant that is checked.
        found: Vec<String>,
    },
}

/// The classes of an app: `classes` of its file, or else those of the first variant with class names.
#[derive(Debug, Default)]
pub struct FamilyClasses {
    /// `classes` of the app's file.
    stated: Vec<String>,
    /// The variants, smallest to largest.
    sources: Vec<(String, Source)>,
    found: OnceLock<Found>,
    /// Variants whose class order was reported.
    reported: Mutex<BTreeSet<String>>,
}

/// Class names stated by the files on this host.
#[derive(Debug, Default)]
struct Found {
    names: Vec<String>,
    /// The variant that states the names; `None` for the app's file.
    variant: Option<String>,
    /// The first preceding variant whose files do not show whether it states names.
    unread: Option<Unread>,
}

/// A variant that may state class names.
#[derive(Debug)]
struct Unread {
    variant: String,
    /// The error of reading its files; `None` if they are not on this host.
    reason: Option<String>,
}

impl FamilyClasses {
    /// Returns the classes of an app; empty if its answers are not classes. Reads no file yet.
    pub fn from_app(app: &App) -> Self {
        let classifies = matches!(app.task, Task::Classification | Task::MultiLabel);
        if !classifies || app.pipeline.is_some() {
            return Self::default();
        }
        let sources = app.variants.iter();
        Self {
            stated: app.classes.clone(),
            sources: sources
                .map(|variant| (variant.name.to_string(), Source::new(app, variant)))
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
            let mut unread = None;
            for (variant, source) in &self.sources {
                match stated_names(source) {
                    Ok(Some(names)) if !are_placeholders(&names) => {
                        return Found {
                            names,
                            variant: Some(variant.clone()),
                            unread,
                        };
                    }
                    Err(error) => {
                        unread = unread.or_else(|| {
                            Some(Unread {
                                variant: variant.clone(),
                                reason: (!is_absent(&error)).then(|| error.to_string()),
                            })
                        });
                    }
                    Ok(_) => {}
                }
            }
            Found {
                unread,
                ..Found::default()
            }
        })
    }

    /// Returns the class names; empty if no variant states any, or if a variant that may state them is not on this host
    /// or cannot be read.
    pub fn names(&self) -> &[String] {
        let found = self.found();
        if found.unread.is_some() {
            return &[];
        }
        &found.names
    }

    /// Returns the order of a variant with the class names `own`: the variant's class index of each of the app's
    /// classes. `None` if the indices are the same, which is assumed if the names are placeholders (`LABEL_0`) or have
    /// none in common.
    ///
    /// # Errors
    /// [`ClassMismatch`] if the numbers of classes differ, if only some names are equal, or if a preceding variant is
    /// not on this host or cannot be read. A single differing name is accepted if all others are equal at the same
    /// indices.
    pub fn order(&self, own: &[String]) -> Result<Option<Vec<usize>>, ClassMismatch> {
        let found = self.found();
        if let Some(Unread { variant, reason }) = &found.unread {
            if are_placeholders(own) {
                return Ok(None);
            }
            let (first, found) = (variant.clone(), own.to_vec());
            return Err(match reason.clone() {
                Some(reason) => ClassMismatch::Unreadable { first, reason, found },
                None => ClassMismatch::Unknown { first, found },
            });
        }
        if found.names.is_empty() {
            return Ok(None);
        }
        match Order::of(&found.names, own) {
            Order::Same | Order::Assumed => Ok(None),
            Order::Other(order) => Ok(Some(order)),
            Order::Partly(differing) => {
                let (expected, own) = differing.into_iter().unzip();
                Err(ClassMismatch::Ambiguous {
                    of: found.stated_by(),
                    expected,
                    found: own,
                })
            }
            Order::Unknown => Err(ClassMismatch::Different {
                of: found.stated_by(),
                expected: found.names.clone(),
                found: own.to_vec(),
            }),
        }
    }

    /// Returns a remark if the order of a variant's classes is assumed because their names are not the app's.
    pub(super) fn assumption(&self, variant: &str, own: &[String]) -> Option<String> {
        let found = self.found();
        let is_assumed = Order::of(&found.names, own) == Order::Assumed;
        is_assumed.then(|| assumption((variant, own), (&found.stated_by(), &found.names)))
    }

    /// Returns whether this process reports a variant for the first time, and records it.
    pub(super) fn first_report(&self, variant: &str) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.insert(variant.to_owned())
    }
}

impl Found {
    /// Returns the source of the names, for a message.
    fn stated_by(&self) -> String {
        match &self.variant {
            Some(variant) => format!("`{variant}`"),
            None => "the app's file (`classes`)".to_owned(),
        }
    }
}

/// Returns whether the error means that a file of the checkpoint is not on this host.
fn is_absent(error: &LoadError) -> bool {
    match error {
        LoadError::MissingFile { .. } | LoadError::MissingShard { .. } => true,
        LoadError::Io { source, .. } => source.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Returns the remark that classes with different names are assumed to be the same.
fn assumption((variant, own): (&str, &[String]), (of, expected): (&str, &[String])) -> String {
    format!(
        "`{variant}` has other names for its classes ({}) than {of} ({}): they are taken to be the same classes in the same order; if they \
         are not, give them the same names in `id2label`",
        listed(own),
        listed(expected)
    )
}

/// Compares the classes of variants whose names are known only after loading, for instance from the metadata of ONNX
/// files.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    first: Option<(String, Vec<String>)>,
    /// Variants whose order is assumed, and was reported.
    assumed: BTreeSet<String>,
}

impl Classes {
    /// Compares the classes of the next variant with those of the first variant that has names. Reports an assumed
    /// order once per variant.
    ///
    /// # Errors
    /// [`ClassMismatch::Unstated`] if the numbers of classes differ, the same names are in another order, or only some
    /// names are equal.
    pub fn check(&mut self, variant: &str, info: &ModelInfo) -> Result<(), ClassMismatch> {
        if !matches!(info.task, Answers::Classification | Answers::MultiLabel) || info.labels.is_empty() {
            return Ok(());
        }
        let Some((first, expected)) = &self.first else {
            self.first = Some((variant.to_owned(), info.labels.clone()));
            return Ok(());
        };
        match Order::of(expected, &info.labels) {
            Order::Same => {}
            Order::Assumed => {
                if self.assumed.insert(variant.to_owned()) {
                    let of = format!("`{first}`");
                    say(&assumption((variant, &info.labels), (&of, expected)));
                }
            }
            Order::Other(_) | Order::Partly(_) | Order::Unknown => {
                return Err(ClassMismatch::Unstated {
                    first: first.clone(),
                    expected: expected.clone(),
                    found: info.labels.clone(),
                });
            }
        }
        if are_placeholders(expected) {
            self.first = Some((variant.to_owned(), info.labels.clone()));
        }
        Ok(())
    }
}

/// Minimum number of classes per differing name for which the order is still assumed: `ImageNet` checkpoints spell some
/// classes differently.
const OTHERS_PER_RENAMED: usize = 10;

/// Relation of a variant's classes to the app's.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// The class indices are the same.
    Same,
    /// The class indices are assumed to be the same: no names are equal, or nearly all are, at the same indices.
    Assumed,
    /// The variant's class index of each of the app's classes.
    Other(Vec<usize>),
    /// Only some names are equal, at the same indices; the differing pairs of the app's and the variant's name.
    Partly(Vec<(String, String)>),
    /// The relation is unknown.
    Unknown,
}

impl Order {
    /// Compares class names. Placeholder names are assumed to have the same indices.
    fn of(expected: &[String], found: &[String]) -> Self {
        if expected.len() != found.len() {
            return Self::Unknown;
        }
        if are_placeholders(expected) || are_placeholders(found) {
            return Self::Same;
        }
        let comparable =
            |names: &[String]| -> Vec<String> { names.iter().map(|name| comparable_name(name)).collect() };
        let spelled = (expected, found);
        let (expected, found) = (comparable(expected), comparable(found));
        // Names that differ only in spelling may belong to two classes, so compare the exact spelling first.
        let order = permutation(spelled.0, spelled.1).or_else(|| permutation(&expected, &found));
        match order {
            Some(order) if order.iter().enumerate().all(|(place, own)| place == *own) => Self::Same,
            Some(order) => Self::Other(order),
            None => Self::of_places(spelled, (&expected, &found)),
        }
    }

    /// Compares class names that are not a permutation, in their original spelling and in normalised form.
    fn of_places(spelled: (&[String], &[String]), (expected, found): (&[String], &[String])) -> Self {
        let known: BTreeSet<&String> = expected.iter().collect();
        if !found.iter().any(|name| known.contains(name)) {
            return Self::Assumed;
        }
        // Names may repeat: two classes of `ImageNet` are called `crane`.
        let at_own_place: BTreeSet<&String> = expected
            .iter()
            .zip(found)
            .filter_map(|(expected, found)| (expected == found).then_some(found))
            .collect();
        let mut differing = Vec::new();
        let (mut are_certain, mut is_one_taken) = (true, false);
        for (class, pair) in spelled.0.iter().zip(spelled.1).enumerate() {
            let (Some(expected), Some(found)) = (expected.get(class), found.get(class)) else {
                continue;
            };
            if expected == found || first_synonym(pair.0) == first_synonym(pair.1) {
                continue;
            }
            if known.contains(found) {
                if !at_own_place.contains(found) {
                    return Self::Unknown;
                }
                is_one_taken = true;
            }
            are_certain &= is_placeholder(class, pair.0) || is_placeholder(class, pair.1);
            differing.push((pair.0.clone(), pair.1.clone()));
        }
        // A single differing name can belong to no other class.
        if are_certain || (differing.len() <= 1 && !is_one_taken) {
            Self::Same
        } else if differing.len() * OTHERS_PER_RENAMED <= expected.len() {
            Self::Assumed
        } else {
            Self::Partly(differing)
        }
    }
}

/// Returns the first synonym of a class name, normalised: lists of `ImageNet` classes have all synonyms (`tench, Tinca
/// tinca`) or only the first (`tench`).
fn first_synonym(name: &str) -> String {
    comparable_name(name.split(',').next().unwrap_or(name))
}

/// Returns the index of each expected name among the found ones, if both have the same distinct names. Repeated names
/// are ambiguous.
fn permutation(expected: &[String], found: &[String]) -> Option<Vec<usize>> {
    let places: BTreeMap<&String, usize> = found.iter().zip(0..).collect();
    let order = expected.iter().map(|name| places.get(name).copied());
    let order: Vec<usize> = order.collect::<Option<_>>()?;
    let distinct: BTreeSet<&usize> = order.iter().collect();
    (places.len() == found.len() && distinct.len() == order.len()).then_some(order)
}

/// Returns the class names stated by the files of a source; `None` if they state none.
///
/// # Errors
/// [`LoadError`] for a file that is missing or malformed.
pub(crate) fn stated_names(source: &Source) -> Result<Option<Vec<String>>, LoadError> {
    let config = match source {
        Source::Directory(dir) => match Checkpoint::open(dir) {
            Ok(checkpoint) => checkpoint.config,
            // A host may have only the configuration.
            Err(error) => config_in(dir)?.ok_or(error)?,
        },
        Source::Onnx(file) => match config_beside(file)? {
            Some(config) => config,
            // A missing ONNX file may state names on another host.
            None => {
                return match std::fs::metadata(file) {
                    Ok(_) => Ok(None),
                    Err(source) => Err(LoadError::Io {
                        path: file.clone(),
                        source,
                    }),
                };
            }
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
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Io { path: file, source }),
    }
}

/// Returns the configuration of an ONNX file: beside the file, or beside its folder if that is called `onnx`, as on the
/// Hugging Face Hub.
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

/// Returns remarks about entity labels that only some of a family's token classifiers have.
pub(super) fn entity_label_warnings(labels: &[(String, Vec<String>)]) -> Vec<String> {
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

/// Returns the first names of a list, between backticks.
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
