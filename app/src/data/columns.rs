//! Reads samples from records with named columns, and from directories of classes.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kaskade_models::images::{IMAGE_FILE, image_file};
use kaskade_models::{Inputs, Signature, Tensor};
use serde_json::{Map, Value};

use super::folder::{Split, interleaved, is_image};
use super::label::{Label, LabelReader};
use super::record::Record;
use super::records::{self, column};
use super::{DataError, Origins, Samples, conversations, rankings, token_labels};
use crate::config::records::{Columns, Folder, Records};

/// Names of paired text columns, the least ambiguous pairs first.
const PAIRS: [(&str, &str); 7] = [
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "context"),
    ("question", "sentence"),
    ("query", "passage"),
];
const TEXTS: [&str; 8] = [
    "text",
    "sentence",
    "prompt",
    "question",
    "content",
    "review",
    "sentence1",
    "premise",
];
const IMAGES: [&str; 2] = ["image", "file_name"];
const LABELS: [&str; 6] = ["label", "labels", "answer", "answers", "target", "class"];

/// The columns used for samples.
#[derive(Debug, PartialEq, Eq)]
struct SelectedColumns {
    text: Option<String>,
    text_pair: Option<String>,
    image: Option<String>,
    /// Column of the label; `None` if there is none and none is needed.
    label: Option<String>,
}

impl SelectedColumns {
    /// Selects the configured columns, or the usual ones that a record has. Image columns are considered only if the
    /// model accepts image `files`.
    ///
    /// # Errors
    /// [`DataError::NoColumn`] if there is nothing to send, or no label where one is needed.
    fn of(
        columns: &Columns,
        values: &Map<String, Value>,
        labels: &LabelReader,
        files: bool,
    ) -> Result<Self, DataError> {
        let label = label_column(columns, values);
        // The label is not part of the request.
        let asked = |name: &str| column(values, name).filter(|name| label.as_deref() != Some(*name));
        let usual = |names: &[&str]| names.iter().find_map(|name| asked(name)).map(str::to_owned);
        let missing = |what: &'static str| DataError::NoColumn {
            what,
            found: values.keys().cloned().collect(),
        };
        if label.is_none() && labels.required() {
            return Err(missing("label"));
        }
        let image = configured(columns.image.as_ref(), values).or_else(|| {
            if files && columns.text.is_none() {
                usual(&IMAGES)
            } else {
                None
            }
        });
        // A column `text` is the request, whatever other columns a record has.
        let pair = PAIRS.iter().find_map(|(text, pair)| {
            let found = asked(text).zip(asked(pair))?;
            (*text == TEXTS[0] || asked(TEXTS[0]).is_none()).then_some(found)
        });
        let (text, text_pair) = match (&columns.text, &columns.text_pair, pair) {
            (None, None, _) if image.is_some() => (None, None),
            (None, None, Some((text, pair))) => (Some(text.to_owned()), Some(pair.to_owned())),
            (text, pair, _) => (
                configured(text.as_ref(), values).or_else(|| usual(&TEXTS)),
                configured(pair.as_ref(), values),
            ),
        };
        if text.is_none() && image.is_none() {
            return Err(missing("text"));
        }
        Ok(Self {
            text,
            text_pair,
            image,
            label,
        })
    }

    /// Returns the inputs of a record. Image paths are relative to `folder`.
    fn inputs(&self, record: &Record, folder: &Path) -> Result<Inputs, DataError> {
        let values = &record.values;
        let mut inputs = Vec::new();
        for (name, column) in [("text", &self.text), ("text_pair", &self.text_pair)] {
            if let Some(column) = column {
                inputs.push(Tensor::from_texts(name, &[text_of(values, column)?])?);
            }
        }
        if let Some(column) = &self.image {
            inputs.push(match record.file(column) {
                Some(bytes) => image_file(bytes)?,
                None => match text_of(values, column)? {
                    url if url.starts_with("data:") => image_file(url.as_bytes())?,
                    path => read_image(&folder.join(path))?,
                },
            });
        }
        Ok(inputs)
    }
}

/// Returns the column of the label.
fn label_column(columns: &Columns, values: &Map<String, Value>) -> Option<String> {
    let usual = || {
        LABELS
            .iter()
            .find_map(|name| column(values, name))
            .map(str::to_owned)
    };
    configured(columns.label.as_ref(), values).or_else(usual)
}

/// Returns a configured column in the record's spelling, or as configured if the record lacks it, so that an error can
/// name it.
fn configured(name: Option<&String>, values: &Map<String, Value>) -> Option<String> {
    name.map(|name| column(values, name).unwrap_or(name).to_owned())
}

fn value<'a>(values: &'a Map<String, Value>, column: &str) -> Result<&'a Value, DataError> {
    values
        .get(column)
        .filter(|value| !value.is_null())
        .ok_or_else(|| DataError::NoValue {
            column: column.to_owned(),
            found: values.keys().cloned().collect(),
        })
}

fn text_of<'a>(values: &'a Map<String, Value>, column: &str) -> Result<&'a str, DataError> {
    value(values, column)?.as_str().ok_or_else(|| DataError::NoText {
        column: column.to_owned(),
    })
}

fn read_image(path: &Path) -> Result<Tensor, DataError> {
    let bytes = std::fs::read(path).map_err(DataError::in_file(path))?;
    Ok(image_file(&bytes)?)
}

/// Collects at most `take` samples after the first `skip`.
struct Collector<'a> {
    samples: Samples,
    labels: &'a LabelReader,
    files: bool,
    chats: bool,
    skip: usize,
    take: usize,
}

impl Collector<'_> {
    /// Returns whether the next sample is skipped, and counts it.
    fn skips(&mut self) -> bool {
        let skips = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        skips
    }

    /// Returns the columns whose class numbers are replaced by the class names stated in the file. Records the names of
    /// the label column if the model has other class names.
    fn named_columns(&mut self, record: &Record, columns: &Columns) -> Vec<String> {
        let answers = if self.labels.tags() {
            token_labels::label_column(&record.values, columns)
                .ok()
                .map(str::to_owned)
        } else {
            label_column(columns, &record.values)
        };
        let mut named = Vec::new();
        for (column, names) in &*record.class_names {
            if self.labels.reads_names(names) {
                named.push(column.clone());
            } else if answers.as_ref() == Some(column) && self.labels.has_other_names(names) {
                self.samples.origins.other_names.clone_from(names);
            }
        }
        named
    }

    /// Returns the conversation column if records are conversations: by configuration, or because the model has a chat
    /// template. A model without a chat template gets it only if there is no text column, and then reports the
    /// unsupported input.
    fn conversation(&self, values: &Map<String, Value>, columns: &Columns) -> Option<String> {
        let is_default = columns.messages.is_none();
        let label = label_column(columns, values);
        let is_text = |name: &&str| column(values, name).is_some_and(|name| label.as_deref() != Some(name));
        let has_text = columns.text.is_some() || !self.chats && TEXTS.iter().any(is_text);
        conversations::find(values, columns).filter(|_| !is_default || !has_text)
    }

    /// Reads a record whose columns belong together, unless it is skipped: a query with passages, a text with entities,
    /// or a conversation.
    fn whole(
        &mut self,
        record: &Record,
        columns: &Columns,
        file: &Path,
    ) -> Result<ControlFlow<()>, DataError> {
        if self.skips() {
            return Ok(ControlFlow::Continue(()));
        }
        let values = &record.values;
        let (inputs, label) = if self.labels.ranks() {
            rankings::read(values, columns, self.labels)?
        } else if self.labels.tags() {
            token_labels::read(values, columns, self.labels)?
        } else {
            let column = self.conversation(values, columns).unwrap_or_default();
            let label_column = label_column(columns, values);
            conversations::read(values, (&column, label_column.as_deref()), self.labels)?
        };
        self.push(inputs, label, (file, Some(record.line)))
    }

    /// Reads one record of a file, unless it is skipped. If labels are optional, the label column is selected per
    /// record.
    fn record(
        &mut self,
        record: &Record,
        (chosen, columns): (&SelectedColumns, &Columns),
        file: &Path,
    ) -> Result<ControlFlow<()>, DataError> {
        if self.skips() {
            return Ok(ControlFlow::Continue(()));
        }
        let folder = file.parent().unwrap_or(Path::new(""));
        let inputs = chosen.inputs(record, folder)?;
        let values = &record.values;
        let label = match &chosen.label {
            Some(column) if self.labels.required() => self.labels.read(value(values, column)?)?,
            _ => {
                let column = label_column(columns, values);
                self.labels
                    .read_if_any(column.and_then(|column| values.get(&column)))?
            }
        };
        self.push(inputs, label, (file, Some(record.line)))
    }

    /// Adds a sample from a file. Without a line, the whole file is the sample.
    fn push(
        &mut self,
        inputs: Inputs,
        label: Label,
        (file, line): (&Path, Option<usize>),
    ) -> Result<ControlFlow<()>, DataError> {
        if !self.files && inputs.iter().any(|input| input.name == IMAGE_FILE) {
            return Err(DataError::NoImageFiles);
        }
        self.samples.inputs.push(inputs);
        self.samples.labels.push(label);
        self.samples.origins.push(file, line);
        Ok(if self.samples.len() >= self.take {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    }
}

impl Samples {
    pub(super) fn from_records(
        spec: &Records,
        signature: &Signature,
        labels: &LabelReader,
    ) -> Result<Self, DataError> {
        let files = std::slice::from_ref(&spec.file);
        Self::from_files(files, &spec.columns, (spec.skip, spec.take), signature, labels)
    }

    pub(super) fn from_folder(
        spec: &Folder,
        signature: &Signature,
        labels: &LabelReader,
    ) -> Result<Self, DataError> {
        let range = (spec.skip, spec.take);
        match Split::find(spec).map_err(DataError::in_file(&spec.folder))? {
            Split::Records(files) => Self::from_files(&files, &spec.columns, range, signature, labels),
            Split::Classes(classes) => Self::from_classes(&classes, range, signature, labels)
                .map_err(DataError::in_file(&spec.folder)),
        }
    }

    fn from_files(
        files: &[PathBuf],
        columns: &Columns,
        (skip, take): (usize, Option<NonZeroUsize>),
        signature: &Signature,
        labels: &LabelReader,
    ) -> Result<Self, DataError> {
        let mut collector = collector(skip, take, signature, labels);
        for file in files {
            let mut chosen = None;
            let mut named = None;
            let read = records::each(file, |mut record| {
                record.name_classes(named.get_or_insert_with(|| collector.named_columns(&record, columns)));
                let is_whole = labels.ranks()
                    || labels.tags()
                    || collector.conversation(&record.values, columns).is_some();
                let collected = if is_whole {
                    collector.whole(&record, columns, file)
                } else {
                    let chosen = match &mut chosen {
                        Some(chosen) => chosen,
                        empty => empty.insert(
                            SelectedColumns::of(columns, &record.values, labels, collector.files)
                                .map_err(|error| about_header(error, &record))?,
                        ),
                    };
                    collector.record(&record, (chosen, columns), file)
                };
                collected.map_err(|error| error.at(record.line))
            });
            if read.map_err(DataError::in_file(file))?.is_break() {
                break;
            }
        }
        let named = files.first().map_or(Path::new(""), PathBuf::as_path);
        let complete = collector.samples.complete(skip, take, signature);
        complete.map_err(DataError::in_file(named))
    }

    fn from_classes(
        classes: &[(String, Vec<PathBuf>)],
        (skip, take): (usize, Option<NonZeroUsize>),
        signature: &Signature,
        labels: &LabelReader,
    ) -> Result<Self, DataError> {
        let classes = &without_other_kind(classes, signature);
        let mut collector = collector(skip, take, signature, labels);
        let by_order = !labels.has_names() && classes.iter().any(|(name, _)| name.parse::<usize>().is_err());
        if let Some(count) = labels.class_count().filter(|count| *count != classes.len())
            && by_order
            && !labels.ignored()
        {
            return Err(DataError::ClassFolders {
                found: classes.len(),
                count,
            });
        }
        // If the model has no class names, classes are in the order of their directories, as `datasets` numbers them,
        // unless all directory names are numbers.
        let label_of = |(number, (name, _)): (usize, &(String, Vec<PathBuf>))| {
            let written = if by_order {
                Value::from(number)
            } else {
                Value::from(name.as_str())
            };
            if labels.ignored() {
                return Ok(Label::Unknown);
            }
            labels.read(&written)
        };
        let of_class: Vec<Label> = classes
            .iter()
            .enumerate()
            .map(label_of)
            .collect::<Result<_, _>>()?;
        for (class, file) in interleaved(classes).into_iter().skip(skip) {
            let inputs = if is_image(file) {
                vec![read_image(file)?]
            } else {
                let text = super::texts::read(file)?;
                vec![Tensor::from_texts("text", &[text.trim_end()])?]
            };
            let Some(label) = of_class.get(class) else {
                continue;
            };
            if collector.push(inputs, label.clone(), (file, None))?.is_break() {
                break;
            }
        }
        collector.samples.complete(skip, take, signature)
    }
}

/// Locates an error about columns: at line 1 if the header is missing and that line is a sample.
fn about_header(error: DataError, record: &Record) -> DataError {
    // With a header, the first record is not on line 1.
    match &error {
        DataError::NoColumn { found, .. } if record.line > 1 && found.iter().any(|name| is_value(name)) => {
            DataError::NoHeader.at(1)
        }
        _ => error.at(record.line),
    }
}

/// Returns whether a text looks like a value rather than a column name: a number, or a sentence.
fn is_value(name: &str) -> bool {
    name.parse::<f64>().is_ok() || name.split_whitespace().count() > 3 || name.len() > 60
}

/// Returns the files of the kind that the model reads: images without the texts beside them (`readme.txt`), or texts
/// without images. If a folder has no such files, all are kept, so that an error can name them.
fn without_other_kind(
    classes: &[(String, Vec<PathBuf>)],
    signature: &Signature,
) -> Vec<(String, Vec<PathBuf>)> {
    let takes =
        |name: &str| signature.inputs.is_empty() || signature.inputs.iter().any(|input| input.name == name);
    let (images, texts) = (takes(IMAGE_FILE), takes("text"));
    let of_kind = |file: &Path| is_image(file) == images;
    let is_mixed = classes
        .iter()
        .any(|(_, files)| files.iter().any(|file| of_kind(file)));
    if images == texts || !is_mixed {
        return classes.to_vec();
    }
    let kept = classes.iter().map(|(name, files)| {
        let files = files.iter().filter(|file| of_kind(file)).cloned().collect();
        (name.clone(), files)
    });
    kept.filter(|(_, files): &(String, Vec<PathBuf>)| !files.is_empty())
        .collect()
}

fn collector<'a>(
    skip: usize,
    take: Option<NonZeroUsize>,
    signature: &Signature,
    labels: &'a LabelReader,
) -> Collector<'a> {
    Collector {
        samples: Samples {
            inputs: Vec::new(),
            labels: Vec::new(),
            origins: Origins::default(),
        },
        labels,
        files: signature.inputs.is_empty() || signature.inputs.iter().any(|input| input.name == IMAGE_FILE),
        chats: conversations::are_taken(signature),
        skip,
        take: take.map_or(usize::MAX, NonZeroUsize::get),
    }
}

#[cfg(test)]
mod tests;
