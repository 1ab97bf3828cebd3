//! Detects the format of data sets, and checks that they can be read.

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

/// A data set with its format.
#[derive(Debug, Clone)]
pub(super) struct Set {
    pub(super) path: PathBuf,
    pub(super) format: SetFormat,
}

/// Storage format of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetFormat {
    /// Records with named columns.
    Records,
    /// Texts with label numbers, without a header.
    Tsv,
    /// A folder with the usual split, or with one subfolder per class.
    Folder { is_split: bool },
}

impl Sets {
    /// Detects the formats of the sets. A validation folder with the split `test` is also the test set.
    ///
    /// # Errors
    /// [`InitError::Data`] for a path that does not exist or has an unknown format.
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
        // A folder with other splits is not a folder of classes.
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

/// Reads the sets of an app for its smallest variant and returns the number of validation samples. Language models,
/// ONNX files and endpoints are not loaded.
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

/// Returns the request form of variants that are not loaded, with the class names.
fn form_of(task: Task, family: &Family) -> RequestForm {
    let text = |name| InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)]);
    let inputs = match task {
        Task::Generation => vec![text("text"), text("messages")],
        // The inputs of an ONNX file or an endpoint are unknown here.
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
