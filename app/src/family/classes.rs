//! The classes of an app: their names in the order in which every variant answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use kaskade_models::checkpoint::Config;
use kaskade_models::class_names::{are_placeholders, comparable_name, is_placeholder};
use kaskade_models::entities::{OUTSIDE, group_label};
use kaskade_models::{Checkpoint, LoadError, ModelInfo, Task as Answers};
use thiserror::Error;

use super::variant::Source;
use crate::config::{App, Task};
use crate::report::progress::say;

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
    /// Only some of the names are the same, at the same places, so that the others may stand for any of the rest.
    #[error(
        "its classes {} have other names than those of {of} with the same numbers, {}, while the rest have the same names, so that their \
         order is not known: give them the same names in `id2label` of each checkpoint, each in the checkpoint's own order",
        listed(found),
        listed(expected)
    )]
    Partly {
        /// What states the classes of the app.
        of: String,
        /// Names of the app's classes that the variant names otherwise.
        expected: Vec<String>,
        /// The variant's names at their places.
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
    /// The files of a variant that may state the classes of the app cannot be read.
    #[error(
        "its classes are {}, and their order in this app is that of `{first}`, whose files do not tell it ({reason}): correct that, or state \
         `classes` in the app's file",
        listed(found)
    )]
    Unreadable {
        /// The variant whose files cannot be read.
        first: String,
        /// Why.
        reason: String,
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
    /// The first variant before that one whose files do not tell whether it states some.
    unread: Option<Unread>,
}

/// A variant that may state classes.
#[derive(Debug)]
struct Unread {
    variant: String,
    /// What is wrong with its files; `None` if they are not on this host.
    reason: Option<String>,
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

    /// Returns the names; none if no variant has any, or if a variant that may state them is not on this host or cannot be read.
    pub fn names(&self) -> &[String] {
        let found = self.found();
        if found.unread.is_some() {
            return &[];
        }
        &found.names
    }

    /// Returns the order in which a variant with classes of these names has the classes of the app: at the place of each class, the variant's
    /// number of it. `None` if the numbers are the same, as is assumed of names that say nothing (`LABEL_0`) or have none in common.
    ///
    /// # Errors
    /// [`OtherClasses`] if there are more or fewer, if only some are the same, or if a variant before it is not on this host or cannot be
    /// read. All but one of the same at the same places are all of them.
    pub fn order(&self, own: &[String]) -> Result<Option<Vec<usize>>, OtherClasses> {
        let found = self.found();
        if let Some(Unread { variant, reason }) = &found.unread {
            if are_placeholders(own) {
                return Ok(None);
            }
            let (first, found) = (variant.clone(), own.to_vec());
            return Err(match reason.clone() {
                Some(reason) => OtherClasses::Unreadable { first, reason, found },
                None => OtherClasses::Unknown { first, found },
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
                Err(OtherClasses::Partly {
                    of: found.stated_by(),
                    expected,
                    found: own,
                })
            }
            Order::Unknown => Err(OtherClasses::Others {
                of: found.stated_by(),
                expected: found.names.clone(),
                found: own.to_vec(),
            }),
        }
    }

    /// Returns that the order of a variant's classes is assumed, because their names are not the app's, if it is.
    pub(super) fn assumption(&self, variant: &str, own: &[String]) -> Option<String> {
        let found = self.found();
        let is_assumed = Order::of(&found.names, own) == Order::Assumed;
        is_assumed.then(|| assumption((variant, own), (&found.stated_by(), &found.names)))
    }

    /// Returns whether a variant is reported for the first time in this process.
    pub(super) fn first_report(&self, variant: &str) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.insert(variant.to_owned())
    }
}

impl Found {
    /// Returns what states the names, for a message.
    fn stated_by(&self) -> String {
        match &self.variant {
            Some(variant) => format!("`{variant}`"),
            None => "the app's file (`classes`)".to_owned(),
        }
    }
}

/// Returns whether a file of a checkpoint is not on this host.
fn is_absent(error: &LoadError) -> bool {
    match error {
        LoadError::MissingFile { .. } | LoadError::MissingShard { .. } => true,
        LoadError::Io { source, .. } => source.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Says that classes with other names are taken to be the same ones.
fn assumption((variant, own): (&str, &[String]), (of, expected): (&str, &[String])) -> String {
    format!(
        "`{variant}` has other names for its classes ({}) than {of} ({}): they are taken to be the same classes in the same order; if they \
         are not, give them the same names in `id2label`",
        listed(own),
        listed(expected)
    )
}

/// Compares the classes of variants whose names are known only after they are loaded, as those in the metadata of ONNX files.
#[derive(Debug, Clone, Default)]
pub struct Classes {
    first: Option<(String, Vec<String>)>,
    /// Variants whose order is assumed, which was said.
    assumed: BTreeSet<String>,
}

impl Classes {
    /// Compares the classes of the next variant with those of the first that has names. Says once for each variant that an order is assumed.
    ///
    /// # Errors
    /// [`OtherClasses::Unstated`] if there are more or fewer, or the same in another order, or only some are the same.
    pub fn check(&mut self, variant: &str, info: &ModelInfo) -> Result<(), OtherClasses> {
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
                return Err(OtherClasses::Unstated {
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

/// Of that many classes, one may have another name while the others agree: checkpoints of `ImageNet` spell some of its classes differently.
const OTHERS_PER_RENAMED: usize = 10;

/// How the classes of a variant relate to those of the app.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// They have the same numbers.
    Same,
    /// They have none of the names in common, or nearly all at the same places, and are taken to have the same numbers.
    Assumed,
    /// At the place of each class of the app, the variant's number of it.
    Other(Vec<usize>),
    /// Only some have the same names, at the same places; the app's names and the variant's of the others.
    Partly(Vec<(String, String)>),
    /// It cannot be known.
    Unknown,
}

impl Order {
    /// Compares names. Those that say nothing are taken to have the same numbers.
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
        // Names that differ in spelling alone may be those of two classes.
        let order = permutation(spelled.0, spelled.1).or_else(|| permutation(&expected, &found));
        match order {
            Some(order) if order.iter().enumerate().all(|(place, own)| place == *own) => Self::Same,
            Some(order) => Self::Other(order),
            None => Self::of_places(spelled, (&expected, &found)),
        }
    }

    /// Compares names of which not all are the same, as they are spelled and in the form in which they are compared.
    fn of_places(spelled: (&[String], &[String]), (expected, found): (&[String], &[String])) -> Self {
        let known: BTreeSet<&String> = expected.iter().collect();
        if !found.iter().any(|name| known.contains(name)) {
            return Self::Assumed;
        }
        // Two classes of `ImageNet` are called `crane`.
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
        // Where one name alone differs, it can be that of no other class.
        if are_certain || (differing.len() <= 1 && !is_one_taken) {
            Self::Same
        } else if differing.len() * OTHERS_PER_RENAMED <= expected.len() {
            Self::Assumed
        } else {
            Self::Partly(differing)
        }
    }
}

/// Returns the first of several names of a class, in the form in which names are compared: lists of the classes of `ImageNet` have all
/// (`tench, Tinca tinca`) or the first (`tench`).
fn first_synonym(name: &str) -> String {
    comparable_name(name.split(',').next().unwrap_or(name))
}

/// Returns the place of each expected name among those found, if they are the same, each once: of two classes with one name, either may be
/// either.
fn permutation(expected: &[String], found: &[String]) -> Option<Vec<usize>> {
    let places: BTreeMap<&String, usize> = found.iter().zip(0..).collect();
    let order = expected.iter().map(|name| places.get(name).copied());
    let order: Vec<usize> = order.collect::<Option<_>>()?;
    let distinct: BTreeSet<&usize> = order.iter().collect();
    (places.len() == found.len() && distinct.len() == order.len()).then_some(order)
}

/// Returns the names that the files of a source state for its classes; `None` if they state none.
///
/// # Errors
/// For a file that is missing or malformed.
pub(crate) fn stated_names(source: &Source) -> Result<Option<Vec<String>>, LoadError> {
    let config = match source {
        Source::Directory(dir) => match Checkpoint::open(dir) {
            Ok(checkpoint) => checkpoint.config,
            // A host may have the configuration alone.
            Err(error) => config_in(dir)?.ok_or(error)?,
        },
        Source::Onnx(file) => match config_beside(file)? {
            Some(config) => config,
            // One that is elsewhere may have names there.
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
