//! Why labelled samples cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use kaskade_models::idx::IdxError;
use kaskade_models::{InputSpec, ModelError, TensorError};
use thiserror::Error;

use super::scene_error::SceneError;
use crate::config::records::FormatError;
use crate::report::units;

/// A labelled set cannot be read, or is not what a model takes.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The set is in a folder that an unset environment variable names.
    #[error("the app's samples are in a folder that the environment variable `{name}` names; set it")]
    UnsetVariable {
        /// The variable.
        name: String,
    },
    /// A file cannot be used.
    #[error("{} cannot be used", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error.
        source: Box<DataError>,
    },
    /// The system does not read a file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line of a file cannot be used.
    #[error("line {number}")]
    Line {
        /// Its number, from 1.
        number: usize,
        /// The error.
        source: Box<DataError>,
    },
    /// A line of a tab-separated file has another number of columns.
    #[error("has {found} columns; it takes a text, optionally a second one, and a label")]
    Columns {
        /// How many it has.
        found: usize,
    },
    /// A line of a tab-separated file has another number of columns than those before it.
    #[error(
        "has {found} columns, and the lines before it have {expected}: a line end or a tab is missing, or a text holds one; `records` reads \
         samples with and without a second text"
    )]
    OtherColumns {
        /// How many it has.
        found: usize,
        /// How many the first sample has.
        expected: usize,
    },
    /// A label is no number.
    #[error(
        "`{label}` is not a label; write a number from 0. For names of classes or columns use `records`; `skip = 1` leaves a header out"
    )]
    Label {
        /// The label.
        label: String,
    },
    /// A file of records has a format that is not read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A line of a JSON file is not an object.
    #[error("it is not a record; write one JSON object per line (`jq -c '.[]'` splits an array)")]
    NoObject,
    /// A line of a JSON file is too long.
    #[error("it is longer than 16 MiB; write one JSON object per line")]
    LongLine,
    /// A line of a JSON file, or a list of labels, is not JSON.
    #[error("it is not valid JSON: {}", without_line(.0))]
    Json(serde_json::Error),
    /// A text has another encoding.
    #[error("it is not UTF-8; convert it (`iconv -f WINDOWS-1252 -t UTF-8` if Excel wrote it)")]
    NotUtf8,
    /// A file is compressed, and its name does not say so.
    #[error("it is compressed by gzip; add `.gz` to its name, as in `data.csv.gz`")]
    Gzip,
    /// A file is compressed, and its format is read uncompressed only.
    #[error("it is compressed by gzip; decompress it (`gunzip`), or use `records`, which read `.gz` files")]
    UnreadGzip,
    /// A file is not compressed, and its name says so.
    #[error(
        "it is not compressed by gzip, although its name ends in `.gz`; remove that ending, or download the file again"
    )]
    NotGzip,
    /// A file has another encoding.
    #[error("it is UTF-16; convert it (`iconv -f UTF-16 -t UTF-8`)")]
    Utf16,
    /// A file of a folder of classes is an image that is not read.
    #[error("its name is not that of a PNG, JPEG, WebP, GIF or BMP file; convert it, or remove it")]
    OtherImage,
    /// A directory of a class has a directory with samples.
    #[error("it is a directory in that of a class, whose samples would be left out; move them up")]
    FolderInClass,
    /// A Parquet file is compressed by a method that is not read.
    #[error(
        "it is compressed by {method}, and Snappy, Zstandard, gzip and LZ4 are read; write it again, as by \
         `pandas.read_parquet(FILE).to_parquet(FILE, compression=\"zstd\")`"
    )]
    ParquetCompression {
        /// The method.
        method: &'static str,
    },
    /// A Parquet file is malformed.
    #[error("it is not a valid Parquet file")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A file of columns is malformed.
    #[error("it is not valid CSV")]
    Csv(#[source] csv::Error),
    /// A record of a file of columns has another number of columns than the header.
    #[error("the number of its columns is {found}, that of the header {expected}; {}", about_columns(*lines, *expected))]
    UnequalColumns {
        /// Its columns.
        found: u64,
        /// Columns of the header.
        expected: u64,
        /// Line ends within its texts.
        lines: usize,
    },
    /// A text of a tab-separated file continues in the next line.
    #[error(
        "a text begins with a quotation mark that ends {} later, so that these lines are one record; double the quotation marks of a text and \
         put it between two, or write JSON lines",
        units::count_of(*lines, "line", "lines")
    )]
    OpenQuote {
        /// Further lines of the record.
        lines: usize,
    },
    /// The columns have no usual name.
    #[error(
        "there is no column for the {what} among {}; name it under `columns`{}",
        listed(found),
        if *what == "label" { ", or use `--judge largest`, which needs no labels" } else { "" }
    )]
    NoColumn {
        /// Its use.
        what: &'static str,
        /// The columns that there are.
        found: Vec<String>,
    },
    /// The first line of a file of columns is a sample.
    #[error(
        "it seems to be a sample, and not the names of the columns: add a line with these before it, such as `text` and `label`, \
         with the separator of the file between them (in .tsv files a tab). `tsv` needs none, and takes a text, a tab and the number of a class"
    )]
    NoHeader,
    /// A record lacks a value.
    #[error(
        "column `{column}` is missing or null; the record has {}{}",
        listed(found),
        if column.contains('.') { "; values within a value are not read: write them into a column of their own" } else { "" }
    )]
    NoValue {
        /// The column.
        column: String,
        /// The columns that there are.
        found: Vec<String>,
    },
    /// A value is no text.
    #[error("column `{column}` is not text")]
    NoText {
        /// The column.
        column: String,
    },
    /// A value is no conversation.
    #[error(
        "column `{column}` is not a list of messages, each with a role and a content, of which one at least is before the answer"
    )]
    NoMessages {
        /// The column.
        column: String,
    },
    /// A conversation has no answer that the task needs.
    #[error(
        "there is no right answer: the last message is not the assistant's, and there is no column for the label"
    )]
    NoAnswer,
    /// A label that the task needs is empty.
    #[error(
        "the label is empty; write one, or leave the record out (a set for `profile --judge` needs no labels)"
    )]
    EmptyLabel,
    /// A row has no label.
    #[error(
        "the label is -1, which the Hugging Face Hub writes for rows without one: drop them, or use `--judge largest`, which needs no labels"
    )]
    UnlabelledRow,
    /// Several classes have one name.
    #[error("several classes of the model are named {name}: write the number of the class")]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// The model has no class of this name.
    #[error("`{label}` is not a class: {}", known_classes(known))]
    UnknownLabel {
        /// The label.
        label: String,
        /// The names of the model's classes.
        known: Vec<String>,
    },
    /// The model has no class of this number.
    #[error("there is no class {class}: the model has classes 0 to {}", count.saturating_sub(1))]
    LabelRange {
        /// The label.
        class: usize,
        /// Number of classes.
        count: usize,
    },
    /// Directories are not one per class.
    #[error(
        "it has {found} directories of classes, and the model {count} classes without names: the mapping between them is unknown; name the classes in \
         the model's `id2label`, or the directories by their numbers"
    )]
    ClassFolders {
        /// Directories.
        found: usize,
        /// Classes of the model.
        count: usize,
    },
    /// A label has another form than the task needs.
    #[error("{label} is not a label of this task; write {expected}")]
    LabelForm {
        /// The label.
        label: String,
        /// The forms that are read.
        expected: &'static str,
    },
    /// No answer is right.
    #[error(
        "it lists no right answer, as the unanswerable questions of SQuAD 2.0 do; every answer would count as wrong, because models answer with \
         a text of the context: remove the sample"
    )]
    NoRightAnswer,
    /// Answers of this task have no labels.
    #[error(
        "the answers of this model have no label format here; classes, several classes, texts, answers to questions, and in `records` \
         entities of texts have one"
    )]
    NoLabelFormat,
    /// Words and their tags differ in number.
    #[error("it has {tags} tags for {words} words; write one for each word")]
    Tags {
        /// Number of the words.
        words: usize,
        /// Number of the tags.
        tags: usize,
    },
    /// An entity is none of its text.
    #[error(
        "{found} is not an entity of its text, which has {characters} characters; write {{\"start\": FIRST, \"end\": AFTER_LAST, \"label\": NAME}}, \
         counted in characters from 0"
    )]
    Entity {
        /// The entity.
        found: String,
        /// Characters of the text.
        characters: usize,
    },
    /// A ranking has too few passages.
    #[error("it has {found} passages; a ranking needs at least 2")]
    FewPassages {
        /// The number.
        found: usize,
    },
    /// A ranking has no right answer.
    #[error("no passage is relevant; leave the query out, or name a relevant one")]
    NoRelevantPassage,
    /// A format holds only classes as labels.
    #[error(
        "the labels of this format are numbers of classes, and the answers of this task are none; use `records`"
    )]
    ClassesOnly,
    /// The model takes no image files.
    #[error(
        "the model takes no image files; add the `preprocessor_config.json` that it was trained with to its directory"
    )]
    NoImageFiles,
    /// A folder lacks the split.
    #[error(
        "it has no split `{split}` of a known layout; it holds {}: set `split`{}",
        listed(found),
        other.map_or_else(String::new, |other| format!(" to `{other}`, which it has"))
    )]
    NoSplit {
        /// The split.
        split: String,
        /// What is in the folder.
        found: Vec<String>,
        /// A usual split that the folder has.
        other: Option<&'static str>,
    },
    /// A text has too few words.
    #[error("there are {found} words between {from} and {to} of the text, {wanted} are required")]
    Words {
        /// The number.
        found: usize,
        /// Where the part of the text begins, as a share.
        from: f64,
        /// Where it ends, as a share.
        to: f64,
        /// The required number.
        wanted: usize,
    },
    /// The set has no samples.
    #[error("there are no samples in it")]
    NoSamples,
    /// The set has too few samples.
    #[error("it has {} after the first {skip}; correct `skip` and `take`", units::count_of(*found, "sample", "samples"))]
    Count {
        /// The number.
        found: usize,
        /// How many were skipped.
        skip: usize,
    },
    /// A sample is not what the model takes.
    #[error(
        "sample {number}{} is not what the model takes",
        origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})"))
    )]
    Sample {
        /// Its number, from 0.
        number: usize,
        /// Where it comes from.
        origin: Option<String>,
        /// What the model takes instead.
        source: ModelError,
    },
    /// Images go to models with one input.
    #[error("images go to models with one required FP32 input; this one takes {inputs:?}")]
    NoImageInput {
        /// What the model takes.
        inputs: Vec<InputSpec>,
    },
    /// The set holds scenes, which only a pipeline takes.
    #[error("scenes are samples of a pipeline, and this app has no `[pipeline]`")]
    NeedsPipeline,
    /// The set holds no scenes.
    #[error("a pipeline is measured on `scenes`; name such a set")]
    NeedsScenes,
    /// Two files do not hold scenes together.
    #[error("{} with {} cannot be used", images.display(), objects.display())]
    Scenes {
        /// The images.
        images: PathBuf,
        /// What is in them.
        objects: PathBuf,
        /// What is wrong with them.
        source: Box<SceneError>,
    },
    /// An IDX file cannot be read.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A sample is no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Describes an error of JSON that is on one line of a file, which is named beside it.
fn without_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    match said.rsplit_once(" at line ") {
        // The control character that ends an open text is the end of the line.
        Some((what, _)) if error.line() > 1 => format!("{what} at its end"),
        Some((what, _)) => format!("{what} at column {}", error.column()),
        None => said,
    }
}

/// The first of some names.
fn listed(names: &[String]) -> String {
    const MAX_NAMES: usize = 12;
    let shown: Vec<String> = names
        .iter()
        .take(MAX_NAMES)
        .map(|name| format!("`{name}`"))
        .collect();
    match names.len() {
        0 => "nothing".to_owned(),
        all if all > MAX_NAMES => format!("{}, ... ({all} in all)", shown.join(", ")),
        _ => shown.join(", "),
    }
}

/// Says what is probably wrong with the quotation marks of a record with so many line ends in its texts.
fn about_columns(lines: usize, expected: u64) -> String {
    match lines {
        0 if expected == 1 => {
            "the header names one column; separate its names as the values are, in .tsv files by a tab"
                .to_owned()
        }
        0 => "put a text that holds the separator between quotation marks".to_owned(),
        _ => format!(
            "a text in it goes on for {} lines, because a quotation mark begins it and none ends it: add the mark, or double one that is part \
             of the text",
            lines + 1
        ),
    }
}

fn known_classes(names: &[String]) -> String {
    if names.is_empty() {
        return "the model names no classes (`id2label`), so write numbers from 0".to_owned();
    }
    let shown: Vec<&str> = names.iter().take(12).map(String::as_str).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    format!("the model's are {}{more}", shown.join(", "))
}

impl DataError {
    /// Names the line in which something is wrong.
    pub(super) fn at(self, number: usize) -> Self {
        Self::Line {
            number,
            source: Box::new(self),
        }
    }

    /// Names the file in which something is wrong.
    pub(super) fn in_file<E: Into<Self>>(file: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::File {
            file: file.to_owned(),
            source: Box::new(source.into()),
        }
    }
}
