//! Which kind of data set a file or a folder is, and whether it can be read.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use kaskade_models::{Datatype, Extent, InputSpec, Signature};

use super::InitError;
use crate::config::data::DataSet;
use crate::config::records::Format;
use crate::config::{App, Task};
use crate::data::{DataError, RequestForm, Samples, has_split};
use crate::family::{Family, Source};

/// The data sets of a new app.
#[derive(Debug, Clone, Default)]
pub(super) struct Sets {
    pub(super) validation: Option<Set>,
    pub(super) test: Option<Set>,
}

/// A data set.
#[derive(Debug, Clone)]
pub(super) struct Set {
    pub(super) path: PathBuf,
    pub(super) format: SetFormat,
}

/// How a data set is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetFormat {
    /// Records with named columns.
    Records,
    /// Texts and the numbers of their labels, without a header.
    Tsv,
    /// A folder with the usual split, or one whose classes are its own folders.
    Folder { is_split: bool },
}

impl Sets {
    /// Finds the formats of the sets. A folder with the split `test` is both sets.
    ///
    /// # Errors
    /// [`InitError::Data`] for a path that is not there or has no known format.
    pub(super) fn find(validation: Option<&Path>, test: Option<&Path>) -> Result<Self, InitError> {
        let find = |path: Option<&Path>, split| path.map(|path| Set::find(path, split)).transpose();
        let folder = validation.filter(|folder| folder.is_dir() && has_split(folder, "test"));
        Ok(Self {
            validation: find(validation, "validation")?,
            test: find(test.or(folder), "test")?,
        })
    }
}

impl Set {
    fn find(path: &Path, split: &str) -> Result<Self, InitError> {
        let format = format_of(path, split).map_err(|source| InitError::Data {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Self {
            path: path.to_owned(),
            format,
        })
    }
}

fn format_of(path: &Path, split: &str) -> Result<SetFormat, DataError> {
    if path.is_dir() {
        // A folder with other splits is no folder of classes.
        let is_split = has_split(path, split) || ["train", "test"].iter().any(|split| has_split(path, split));
        return Ok(SetFormat::Folder { is_split });
    }
    let file = File::open(path)?;
    let (format, compressed) = Format::of(path)?;
    if format != Format::Separated(b'\t') || compressed {
        return Ok(SetFormat::Records);
    }
    let mut line = String::new();
    BufReader::new(file).read_line(&mut line)?;
    let mut columns = line.trim_end().split('\t');
    let is_label = |column: &str| column.trim().parse::<usize>().is_ok();
    Ok(if columns.next_back().is_some_and(is_label) {
        SetFormat::Tsv
    } else {
        SetFormat::Records
    })
}

/// Reads the sets of an app for its smallest variant, and returns the number of validation samples. A language model and models elsewhere
/// are not loaded: they take texts.
///
/// # Errors
/// [`InitError::Data`] for a set that cannot be read.
pub(super) fn read(app: &App, family: &Family, sets: &Sets) -> Result<Option<usize>, InitError> {
    if sets.validation.is_none() && sets.test.is_none() {
        return Ok(None);
    }
    let is_loaded = |source: &Source| matches!(source, Source::Directory(_)) && app.task != Task::Generation;
    let smallest = family.members.iter().find(|member| is_loaded(&member.source));
    let loaded = smallest.map(|member| member.load(member.device)).transpose()?;
    let count = |set: &Option<DataSet>, given: &Option<Set>| -> Result<Option<usize>, InitError> {
        let Some((set, given)) = set.as_ref().zip(given.as_ref()) else {
            return Ok(None);
        };
        let read = match &loaded {
            Some(loaded) => Samples::read_labelled_or_not(set, loaded),
            None => Samples::read_in_form(set, &form_of(app.task, family)),
        };
        let samples = read.map_err(|source| InitError::Data {
            path: given.path.clone(),
            source: Box::new(source),
        })?;
        Ok(Some(samples.len()))
    };
    let validation = count(&app.data.validation, &sets.validation)?;
    count(&app.data.test, &sets.test)?;
    Ok(validation)
}

/// Returns the requests of models of texts that are not loaded, and the names of their classes.
fn form_of(task: Task, family: &Family) -> RequestForm {
    let text = |name| InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)]);
    let inputs = match task {
        Task::Generation => vec![text("text"), text("messages")],
        // What an ONNX file or an endpoint takes is known only there.
        _ => Vec::new(),
    };
    RequestForm {
        task: task.answers(),
        labels: family
            .members
            .first()
            .map_or_else(Vec::new, |member| member.classes.names().to_vec()),
        signature: Signature { inputs },
    }
}
