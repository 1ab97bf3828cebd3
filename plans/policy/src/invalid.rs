//! Errors of plans, profiles and pipelines, each with its path.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::partition::ModelPart;
use crate::rerouting::Dropping;

/// Longest name; with the rest of a subject it stays far below what a broker accepts.
const MAX_NAME: usize = 64;

/// The first thing found wrong, and the path to it: `gears[0].wiring.stages[2].exit.bands[1].from`.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{path}: {problem}")]
pub struct Invalid {
    /// Path of the value, from the root of the file.
    pub path: String,
    /// The error at the path.
    pub problem: Problem,
}

/// The error of a value.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// Written by a build that this one does not understand.
    #[error("version {found} is not {expected}, the one this build reads; make the file again")]
    Version {
        /// Version in the file.
        found: u32,
        /// Version that this build reads.
        expected: u32,
    },
    /// The list is empty; at least one entry is needed.
    #[error("is empty; at least one is needed")]
    Empty,
    /// Not usable as one token of a NATS subject.
    #[error("`{name}` is not a valid name; use 1 to 64 letters, digits, `-` and `_`")]
    NotAName {
        /// The invalid name.
        name: String,
    },
    /// The name is taken.
    #[error("`{name}` is a duplicate; names must be unique")]
    Twice {
        /// The name.
        name: String,
    },
    /// Nothing has this name.
    #[error("there is no {what} `{name}`")]
    Unknown {
        /// The missing item.
        what: &'static str,
        /// Name of the item.
        name: String,
    },
    /// A number is outside its range, or not a number.
    #[error("{value} is not {range}")]
    OutOfRange {
        /// The number.
        value: f64,
        /// Allowed range.
        range: &'static str,
    },
    /// An edge leads back or to its own stage.
    #[error("leads to `{stage}`, which is not a later stage; edges only lead forward")]
    LeadsBack {
        /// The stage.
        stage: String,
    },
    /// A task has two parents.
    #[error(
        "`{task}` is a child of `{first}` and of `{second}`; a pipeline is a tree, so give it one parent"
    )]
    SecondParent {
        /// The child.
        task: String,
        /// The first parent.
        first: String,
        /// The second parent.
        second: String,
    },
    /// Two tasks have no parent.
    #[error("`{first}` and `{second}` have no parent; a pipeline has one root")]
    SecondRoot {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// A task is its own ancestor.
    #[error("`{task}` leads back to itself; a pipeline is a tree")]
    Cycle {
        /// The task.
        task: String,
    },
    /// A batch size is missing or not allowed.
    #[error("has a gap: found batch size {found}, expected {}; measure the allowed sizes from the first on", .expected.map_or_else(|| "none".to_owned(), |batch| batch.to_string()))]
    Hole {
        /// Batch size that was found.
        found: u32,
        /// Expected batch size; none after the last allowed size.
        expected: Option<u32>,
    },
    /// Variants that are not a path through the pipeline.
    #[error("`{name}` is not a path; name one variant per task from the root to a sink")]
    NotAPath {
        /// The variants.
        name: String,
    },
    /// Some paths have no accuracy.
    #[error("has {found} paths of {expected}; profile them all, or leave the accuracies to the product")]
    Paths {
        /// Number of paths that were found.
        found: usize,
        /// Required number of paths.
        expected: usize,
    },
    /// The shares of an edge do not sum to 1.
    #[error("the shares sum to {sum}; they must sum to 1")]
    Shares {
        /// Sum of the shares.
        sum: f64,
    },
    /// A replica is listed for a stage whose variant it does not run.
    #[error("replica `{replica}` runs `{actual}`, and the stage `{expected}`")]
    WrongVariant {
        /// The replica.
        replica: String,
        /// Variant that the replica runs.
        actual: String,
        /// Variant of the stage.
        expected: String,
    },
    /// A replica is listed for a stage whose partition of the variant it does not hold.
    #[error(
        "replica `{replica}` holds {actual}, and the stage {expected}; list the replicas of the stage's own partition"
    )]
    WrongPartition {
        /// The replica.
        replica: String,
        /// Partition that the replica holds.
        actual: ModelPart,
        /// Partition of the stage.
        expected: ModelPart,
    },
    /// A stage of a partition that is not the last does not lead on to the next partition, or something else leads into one that is not
    /// the first.
    #[error(
        "leads to {found} of `{variant}` where only {expected} can follow; chain a variant's partitions by `next`, first to last"
    )]
    BrokenChain {
        /// The variant whose partitions are chained.
        variant: String,
        /// Target of the edge.
        found: ModelPart,
        /// Allowed target.
        expected: ModelPart,
    },
    /// The stage of a partition that is not the last does not exit by `next`.
    #[error("is not `next`, and the stage runs {partition}; only the last partition of a model answers")]
    NotChained {
        /// Partition of the stage.
        partition: ModelPart,
    },
    /// Pairs of senders and receivers on an edge that is no `next`.
    #[error("applies to `next` only; every other edge uses `shares`")]
    PairsOutsideNext,
    /// An edge leads to a task one of whose stages comes before the edge.
    #[error(
        "leads to task `{task}`, whose stage `{stage}` is not a later one; edges only lead forward, to any stage of a task"
    )]
    LeadsBackToTask {
        /// The task.
        task: String,
        /// Stage of the task that is not later.
        stage: String,
    },
    /// Two stages of one task run the same variant.
    #[error("task `{task}` has a stage of `{variant}` already; the stages of a task run different variants")]
    TaskVariantTwice {
        /// The task.
        task: String,
        /// The variant.
        variant: String,
    },
    /// A replica is listed for a task no stage of which runs its variant.
    #[error(
        "replica `{replica}` runs `{actual}`, and no stage of task `{task}` does; add one, or leave it out"
    )]
    NotOfTask {
        /// The replica.
        replica: String,
        /// Variant that the replica runs.
        actual: String,
        /// The task.
        task: String,
    },
    /// The stage of a task lacks what the plan's early dropping needs.
    #[error(
        "is missing, and the plan's `dropping` ({dropping:?}) judges by it; give it, or set `dropping` to `none`"
    )]
    DroppingNeeds {
        /// The mechanism.
        dropping: Dropping,
    },
    /// A stage that exits by confidence runs a variant without calibration.
    #[error("`{variant}` exits by confidence and has no calibration; profile it and plan again")]
    NotCalibrated {
        /// The variant.
        variant: String,
    },
    /// No replica runs the stage's variant, or none the stage's partition of it.
    #[error("no replica in `placement` runs `{variant}`{}", .partition.map_or_else(String::new, |partition| format!(", {partition}")))]
    NoReplica {
        /// The variant.
        variant: String,
        /// The partition, where it is not the whole model.
        partition: Option<ModelPart>,
    },
    /// A member of an ensemble does not reply, or belongs to a task.
    #[error(
        "`{stage}` is a member of an ensemble and does not exit by `reply`, or has a task; the vote would miss its answer"
    )]
    MemberExits {
        /// The stage.
        stage: String,
    },
    /// The range begins before its predecessor ends.
    #[error("begins before the one before it ends; ranges ascend without overlap")]
    Overlap,
    /// A column is not as long as there are samples.
    #[error("has {found} entries for {expected} samples")]
    Length {
        /// Length of the column.
        found: usize,
        /// The number of samples.
        expected: usize,
    },
}

/// Why a plan or profile file was not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// Not JSON.
    #[error("not a valid {expected}: it is not JSON{}: {source}", if *.toml { ", but looks like TOML, the format of an app's file" } else { "" })]
    NotJson {
        /// Expected kind of file, and the program that writes it.
        expected: &'static str,
        /// Whether the file looks like TOML.
        toml: bool,
        /// Error of the parser, with line and column.
        source: serde_json::Error,
    },
    /// Not of the file's types.
    #[error("not a valid {expected}: {source}")]
    Json {
        /// Expected kind of file, and the program that writes it.
        expected: &'static str,
        /// Error of the parser, with line and column.
        source: serde_json::Error,
    },
    /// It cannot be written as JSON.
    #[error(transparent)]
    Unwritable(#[from] serde_json::Error),
    /// Well formed, and wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Reads a file of a format with versions. A file of another version is named as such, whatever its fields are: those that this build does not
/// know say less.
///
/// # Errors
/// [`FileError::Json`] if it is not of the format, [`FileError::Invalid`] if it is of another version.
pub(crate) fn read<T: DeserializeOwned>(
    text: &str,
    expected: &'static str,
    version: u32,
) -> Result<T, FileError> {
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_json::from_str(text).map_err(|source| {
        let other = serde_json::from_str::<Versioned>(text).ok();
        match other.and_then(|file| Path::Root.version(file.version, version).err()) {
            Some(invalid) => invalid.into(),
            None if source.is_data() => FileError::Json { expected, source },
            None => FileError::NotJson {
                expected,
                toml: looks_like_toml(text),
                source,
            },
        }
    })
}

/// Returns whether the first line of a text that is not a comment is a table or a key of TOML.
fn looks_like_toml(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        let is_key = |key: &str| !key.is_empty() && !key.starts_with(['{', '"']);
        line.starts_with('[') && line.ends_with(']') || key.is_some_and(is_key)
    })
}

/// The version of a file of which nothing else is known.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The path of a value, as a list of frames on the stack: it becomes text only when something is wrong.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'static str),
    Index(&'a Path<'a>, usize),
    Key(&'a Path<'a>, &'a str),
}

impl<'a> Path<'a> {
    pub(crate) fn field(&'a self, name: &'static str) -> Self {
        Self::Field(self, name)
    }

    pub(crate) fn index(&'a self, index: usize) -> Self {
        Self::Index(self, index)
    }

    pub(crate) fn key(&'a self, key: &'a str) -> Self {
        Self::Key(self, key)
    }

    pub(crate) fn fail<T>(&self, problem: Problem) -> Result<T, Invalid> {
        Err(Invalid {
            path: self.to_string(),
            problem,
        })
    }

    pub(crate) fn version(&self, found: u32, expected: u32) -> Result<(), Invalid> {
        if found == expected {
            Ok(())
        } else {
            self.field("version").fail(Problem::Version { found, expected })
        }
    }

    pub(crate) fn not_empty<T>(&self, list: &[T]) -> Result<(), Invalid> {
        if list.is_empty() {
            self.fail(Problem::Empty)
        } else {
            Ok(())
        }
    }

    /// A name that is one token of a subject.
    pub(crate) fn name(&self, name: &str) -> Result<(), Invalid> {
        let fits = (1..=MAX_NAME).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if fits {
            Ok(())
        } else {
            // Enough to recognise it by; the rest could be megabytes.
            let name = name.chars().take(MAX_NAME).collect();
            self.fail(Problem::NotAName { name })
        }
    }

    /// A name that none before it has.
    pub(crate) fn new_name<'n>(&self, name: &'n str, seen: &mut BTreeSet<&'n str>) -> Result<(), Invalid> {
        self.name(name)?;
        if seen.insert(name) {
            Ok(())
        } else {
            self.fail(Problem::Twice {
                name: name.to_owned(),
            })
        }
    }

    pub(crate) fn within(&self, value: f64, holds: bool, range: &'static str) -> Result<(), Invalid> {
        if holds && value.is_finite() {
            Ok(())
        } else {
            self.fail(Problem::OutOfRange { value, range })
        }
    }

    pub(crate) fn unit_interval(&self, value: f64) -> Result<(), Invalid> {
        self.within(value, (0.0..=1.0).contains(&value), "in [0, 1]")
    }

    pub(crate) fn positive(&self, value: f64) -> Result<(), Invalid> {
        self.within(value, value > 0.0, "positive and finite")
    }

    pub(crate) fn finite(&self, value: f64) -> Result<(), Invalid> {
        self.within(value, value.is_finite(), "a finite number")
    }

    pub(crate) fn not_negative(&self, value: f64) -> Result<(), Invalid> {
        self.within(value, value >= 0.0, "zero or positive, and finite")
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => write!(f, "{name}"),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
            Self::Key(parent, key) => write!(f, "{parent}[{key:?}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;

    /// It said only "expected ident at line 1 column 2".
    #[test]
    fn a_file_of_another_format_is_named_as_such() {
        let said = |text: &str| Plan::from_json(text).unwrap_err().to_string();
        for toml in ["name = \"a\"\n", "# An app.\n\n[[variants]]\nname = \"small\"\n"] {
            let message = said(toml);
            for words in ["plan (`kaskade plan` writes one)", "not JSON", "looks like TOML"] {
                assert!(message.contains(words), "{message}");
            }
        }
        let cut = said("{\n");
        assert!(cut.contains("not JSON: EOF") && !cut.contains("TOML"), "{cut}");
        let other = said("{\"a\": 1}");
        assert!(!other.contains("not JSON"), "{other}");
    }
}
