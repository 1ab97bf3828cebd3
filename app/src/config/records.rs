//! Labelled records with named columns, and folders of them as Hugging Face's `datasets` lays them out.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A file of records with named columns: JSON lines (`.jsonl`, `.ndjson`, `.json`), CSV or TSV with a header, of which a further `.gz` is
/// decompressed, or Parquet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Records {
    /// The file, relative to this file or to a folder that an environment variable names: `$NAME/test.jsonl`.
    pub file: PathBuf,
    /// Names of the columns [default: the usual ones].
    #[serde(default, skip_serializing_if = "Columns::is_default")]
    pub columns: Columns,
    /// First record used.
    #[serde(default)]
    pub skip: usize,
    /// Number of records used [default: all that follow].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
}

/// A folder with one split of a data set: `<split>/metadata.jsonl` or `.csv` beside images, one directory per class in `<split>/`
/// (images or `.txt` files), `<split>.jsonl`, `.csv`, `.tsv` or `.parquet`, or `data/<split>*` in one or more such files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Folder {
    /// The folder, relative to this file or to a folder that an environment variable names.
    pub folder: PathBuf,
    /// The split [default: `validation` (also `valid`, `val` or `dev`) and `test`]. `.` is the folder itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Names of the columns [default: the usual ones].
    #[serde(default, skip_serializing_if = "Columns::is_default")]
    pub columns: Columns,
    /// First sample used. Files of directories of classes are interleaved in proportion to their number.
    #[serde(default)]
    pub skip: usize,
    /// Number of samples used [default: all that follow].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
}

/// Names of the columns of a record. By default the usual names are looked for in the first record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Columns {
    /// The text, or the first of two [default: `text`, `sentence`, `sentence1`, `premise`, `question`, `prompt`, `content` ...]. Of a
    /// token classifier also the list of its words (`tokens`, `words`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The second text [default: `text_pair`, `sentence2`, `hypothesis`, `context` ..., beside the first of its pair].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_pair: Option<String>,
    /// A conversation for a chat model: a list of messages with `role` and `content`, or JSON of it. Without a label, a last message of
    /// the assistant is the right answer [default: `messages`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<String>,
    /// The path of an image file (PNG, JPEG, WebP, GIF, BMP), relative to the file of the records [default: `image`, `file_name`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The passages of a ranking, as a list [default: `passages`, `documents`, `texts`; or `positive` and `negative` without a label].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passages: Option<String>,
    /// The right answer: a class by number or name, a list of classes, a text, or the answers of a question [default: `label`,
    /// `labels`, `answer`, `answers`, `target`, `class`]; the entities of a text or the tags of its words (`entities`,
    /// `ner_tags`, `tags`, `labels` ...).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl Columns {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Format of a file of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object per line.
    JsonLines,
    /// Columns with a header and this separator.
    Separated(u8),
    /// Rows of a Parquet file.
    Parquet,
}

/// A file of records has a format that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A file is an Arrow file, as `save_to_disk` of `datasets` writes it.
    #[error(
        "Arrow files are not read; convert them: python -c \"import datasets; \
         datasets.load_from_disk('FOLDER')['validation'].to_parquet('validation.parquet')\""
    )]
    Arrow,
    /// The name of a file does not tell its format.
    #[error(
        "the name must end with .jsonl, .ndjson, .json, .csv or .tsv, optionally followed by .gz, or with .parquet"
    )]
    Unknown,
}

impl Format {
    /// Returns the format of a file and whether it is compressed, by the ending of its name.
    ///
    /// # Errors
    /// [`FormatError`] for other endings.
    pub(crate) fn of(path: &Path) -> Result<(Self, bool), FormatError> {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_ascii_lowercase();
        let (name, compressed) = name
            .strip_suffix(".gz")
            .map_or((name.as_str(), false), |name| (name, true));
        let format = match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "jsonl" | "ndjson" | "json" => Self::JsonLines,
            "csv" => Self::Separated(b','),
            "tsv" => Self::Separated(b'\t'),
            "parquet" if !compressed => Self::Parquet,
            "arrow" => return Err(FormatError::Arrow),
            _ => return Err(FormatError::Unknown),
        };
        Ok((format, compressed))
    }
}
