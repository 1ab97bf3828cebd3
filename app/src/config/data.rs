//! Sources of labelled samples.
//!
//! Data often cannot be distributed with the app. So a path may begin with `$NAME`, the environment variable that names
//! the folder; an app whose data is missing can still be served.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};

use kaskade_policy::text_metrics::Metric;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::records::{Folder, Format, Records};
use super::scalar::{Finite, Positive, SubjectToken};

/// Labelled samples of one app.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DataSets {
    /// Samples to profile and calibrate on. They must not be training samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<DataSet>,
    /// Samples to report accuracy on. They must be used for nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<DataSet>,
    /// How an answer is compared with the right ones: of language models and of question answering, and the entities of a token
    /// classifier [default: `exact`].
    #[serde(skip_serializing_if = "is_exact")]
    pub metric: Metric,
    /// Least score of a right answer: of the metric, in (0, 1], or of the program of `kaskade profile --judge`. A metric needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_score: Option<Finite>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes what it skips by reference"
)]
fn is_exact(metric: &Metric) -> bool {
    *metric == Metric::Exact
}

/// A labelled set, by its format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DataSet {
    /// Texts, pairs, questions, prompts or images with labels, in a file with named columns: JSON lines, CSV or TSV with a header.
    Records(Records),
    /// A folder as Hugging Face's `datasets` lays it out: directories of classes, `metadata.jsonl`, or a file per split.
    Folder(Folder),
    /// Images and labels as two IDX files, the format of MNIST.
    Idx(IdxImages),
    /// Texts and labels as tab-separated lines.
    Tsv(TsvTexts),
    /// Images with several objects each, as two IDX files: samples of a pipeline.
    Scenes(Scenes),
    /// Next-word prediction on a running text, in the style of LAMBADA.
    Words(Words),
}

/// Words of a running text, evenly spaced over a section of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Words {
    /// The file, relative to this file or to a folder that an environment variable names: `$NAME/text.txt`.
    pub file: PathBuf,
    /// Beginning of the section, as a share of the text; the section begins with the next line.
    #[serde(default = "beginning")]
    pub from: Finite,
    /// End of the section, as a share of the text.
    #[serde(default = "end")]
    pub to: Finite,
    /// Number of words to predict.
    pub take: NonZeroUsize,
    /// Letters of each word that belong to the prompt; the word has at least one more.
    #[serde(default)]
    pub shown: usize,
    /// Maximum characters of context before a word; the context begins with a line.
    #[serde(default = "context")]
    pub context: NonZeroUsize,
}

fn beginning() -> Finite {
    Finite::ZERO
}

fn end() -> Finite {
    Finite::ONE
}

fn context() -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(399)
}

/// Images and labels as two IDX files of unsigned bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct IdxImages {
    /// IDX file of the images, `[n, height, width]` or `[n, height, width, channels]`, relative to this file
    /// or to a folder that an environment variable names: `$NAME/images`.
    pub images: PathBuf,
    /// IDX file of the labels, `[n]`, with a path as above.
    pub labels: PathBuf,
    /// First sample used.
    #[serde(default)]
    pub skip: usize,
    /// Number of samples used [default: all that follow].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
    /// Input shape of the models, without the batch dimension [default: the image's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<NonZeroUsize>>,
    /// Normalisation of a byte.
    #[serde(default)]
    pub normalise: Normalise,
}

/// Images with several objects and the class in each cell of a grid, as two IDX files of unsigned bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Scenes {
    /// IDX file of the images, `[n, height, width]`, relative to this file or to a folder that an environment variable
    /// names: `$NAME/images`.
    pub images: PathBuf,
    /// IDX file of the class in each cell of a grid over the image, `[n, rows, columns]`, with a path as above: 0 for an empty
    /// cell, then the classes of the first child task, then those of the second, and so on.
    pub objects: PathBuf,
    /// The tasks that classify the objects, with their numbers of classes.
    #[schemars(length(min = 1))]
    pub kinds: Vec<Kind>,
    /// First image used.
    #[serde(default)]
    pub skip: usize,
    /// Number of images used [default: all that follow].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
    /// Normalisation of a byte.
    #[serde(default)]
    pub normalise: Normalise,
}

/// Objects that one task classifies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Kind {
    /// The task.
    pub task: SubjectToken,
    /// Number of classes.
    pub classes: NonZeroUsize,
}

/// Normalisation of an image byte: `(byte / divide_by - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Normalise {
    /// Divisor of the byte.
    pub divide_by: Positive,
    /// Subtracted after the division.
    pub mean: Finite,
    /// Divisor of the difference.
    pub std: Positive,
}

impl Default for Normalise {
    fn default() -> Self {
        Self {
            divide_by: Positive::BYTE,
            mean: Finite::ZERO,
            std: Positive::ONE,
        }
    }
}

impl Normalise {
    /// Returns the normalised value of a byte.
    pub fn apply(&self, byte: u8) -> f32 {
        ((f64::from(byte) / self.divide_by.get() - self.mean.get()) / self.std.get()) as f32
    }
}

/// One sample per line: a text, optionally a second one, and the label (a number from 0), separated by tabs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TsvTexts {
    /// The file, relative to this file or to a folder that an environment variable names: `$NAME/test.tsv`.
    pub file: PathBuf,
    /// First line used.
    #[serde(default)]
    pub skip: usize,
    /// Number of lines used [default: all that follow].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
}

impl DataSets {
    /// Returns the sets of the app, with their paths in the file.
    fn named(&self) -> impl Iterator<Item = (&'static str, &DataSet)> {
        let validation = self.validation.as_ref().map(|set| ("data.validation", set));
        let test = self.test.as_ref().map(|set| ("data.test", set));
        validation.into_iter().chain(test)
    }

    /// Returns whether a set holds samples for a model of texts, if its variants read texts: all formats but those of images.
    pub(crate) fn hold_texts(&self) -> bool {
        self.named()
            .any(|(_, set)| !matches!(set, DataSet::Idx(_) | DataSet::Scenes(_)))
    }

    /// Makes relative paths relative to `folder`, and those that begin with `$NAME` relative to the folder that `variable`
    /// returns for `NAME`; if it returns none, they are left unchanged.
    pub(super) fn resolve(&mut self, folder: &Path, variable: impl Fn(&str) -> Option<OsString>) {
        if let Some(DataSet::Folder(set)) = &mut self.test {
            set.split.get_or_insert_with(|| "test".to_owned());
        }
        for set in self.validation.iter_mut().chain(&mut self.test) {
            for path in set.paths_mut() {
                *path = match variable_of(path) {
                    None => relative_to(folder, path, &variable),
                    // An empty one names no folder.
                    Some(name) => match variable(name).filter(|value| !value.is_empty()) {
                        None => path.clone(),
                        Some(value) => Path::new(&value).join(path.components().skip(1).collect::<PathBuf>()),
                    },
                };
            }
        }
    }

    /// Returns the contradictions between values.
    pub(super) fn problems(&self) -> Vec<String> {
        let grading = match (self.metric, self.min_score) {
            (Metric::Exact, _) => None,
            (_, None) => Some(
                "data.min_score: is missing; an answer counts as right if its score by `metric` is at least this"
                    .to_owned(),
            ),
            (_, Some(from)) => (!(0.0 < from.get() && from.get() <= 1.0)).then(|| {
                format!("data.min_score: {} is not a valid score of `metric`; use a number above 0 and up to 1", from.get())
            }),
        };
        let sets = self.named().filter_map(|(name, set)| match set {
            DataSet::Records(set) => Format::of(&set.file)
                .err()
                .map(|error| format!("{name}.records.file: {error}")),
            DataSet::Words(set) => {
                let empty = !(0.0 <= set.from.get() && set.from < set.to && set.to.get() <= 1.0);
                empty.then(|| {
                    format!(
                        "{name}.words: from {} to {} is not a valid section of a text; use shares from 0 to 1",
                        set.from.get(),
                        set.to.get()
                    )
                })
            }
            _ => None,
        });
        grading.into_iter().chain(sets).collect()
    }

    /// Returns a problem for every file or folder that is not there; those below an environment variable may appear later.
    pub(super) fn missing_files(&self) -> Vec<String> {
        let missing = |path: String, file: &PathBuf| {
            (variable_of(file).is_none() && !file.is_file())
                .then(|| format!("{path}: `{}` is not there", file.display()))
        };
        self.named()
            .flat_map(|(name, set)| match set {
                DataSet::Records(set) => vec![missing(format!("{name}.records.file"), &set.file)],
                DataSet::Folder(set) => {
                    let absent = variable_of(&set.folder).is_none() && !set.folder.is_dir();
                    let problem =
                        || format!("{name}.folder.folder: `{}` is not a folder", set.folder.display());
                    vec![absent.then(problem)]
                }
                DataSet::Idx(idx) => vec![
                    missing(format!("{name}.idx.images"), &idx.images),
                    missing(format!("{name}.idx.labels"), &idx.labels),
                ],
                DataSet::Tsv(tsv) => vec![missing(format!("{name}.tsv.file"), &tsv.file)],
                DataSet::Words(set) => vec![missing(format!("{name}.words.file"), &set.file)],
                DataSet::Scenes(scenes) => vec![
                    missing(format!("{name}.scenes.images"), &scenes.images),
                    missing(format!("{name}.scenes.objects"), &scenes.objects),
                ],
            })
            .flatten()
            .collect()
    }
}

/// Returns a path relative to a folder, or to the user's own if it begins with `~`.
pub(super) fn relative_to(
    folder: &Path,
    path: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> PathBuf {
    let in_home = path.strip_prefix("~").ok();
    let home = variable("HOME").filter(|home| !home.is_empty());
    let home = in_home.and_then(|inside| Some(PathBuf::from(home?).join(inside)));
    home.unwrap_or_else(|| folder.join(path))
}

impl DataSet {
    /// Returns the environment variable that names the folder of this set, if it is not set.
    pub(crate) fn unset_variable(&self) -> Option<&str> {
        match self {
            Self::Idx(idx) => variable_of(&idx.images).or(variable_of(&idx.labels)),
            Self::Records(set) => variable_of(&set.file),
            Self::Folder(set) => variable_of(&set.folder),
            Self::Tsv(tsv) => variable_of(&tsv.file),
            Self::Words(set) => variable_of(&set.file),
            Self::Scenes(scenes) => variable_of(&scenes.images).or(variable_of(&scenes.objects)),
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Idx(idx) => vec![&mut idx.images, &mut idx.labels],
            Self::Records(set) => vec![&mut set.file],
            Self::Folder(set) => vec![&mut set.folder],
            Self::Tsv(tsv) => vec![&mut tsv.file],
            Self::Words(set) => vec![&mut set.file],
            Self::Scenes(scenes) => vec![&mut scenes.images, &mut scenes.objects],
        }
    }
}

/// Returns `NAME` of a path that begins with `$NAME` or `${NAME}`.
fn variable_of(path: &Path) -> Option<&str> {
    let Component::Normal(first) = path.components().next()? else {
        return None;
    };
    let name = first.to_str()?.strip_prefix('$')?;
    let braced = name.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    Some(braced.unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(file: &str, value: Option<&str>) -> (PathBuf, DataSets) {
        let tsv = TsvTexts {
            file: file.into(),
            skip: 0,
            take: None,
        };
        let mut sets = DataSets {
            test: Some(DataSet::Tsv(tsv)),
            ..DataSets::default()
        };
        sets.resolve(Path::new("/app"), |name| {
            value.filter(|_| name == "DATA").map(OsString::from)
        });
        let Some(DataSet::Tsv(tsv)) = &sets.test else {
            panic!("{sets:?}")
        };
        (tsv.file.clone(), sets)
    }

    #[test]
    fn a_variable_at_the_beginning_of_a_path_is_replaced() {
        for (file, value, path) in [
            ("a/test.tsv", Some("/d"), "/app/a/test.tsv"),
            ("/x/test.tsv", Some("/d"), "/x/test.tsv"),
            ("$DATA/a/test.tsv", Some("/d"), "/d/a/test.tsv"),
            ("$DATA/test.tsv", Some("d"), "d/test.tsv"),
            ("$DATA", Some("/d/test.tsv"), "/d/test.tsv"),
            ("${DATA}/test.tsv", Some("/d"), "/d/test.tsv"),
            ("${DATA}/test.tsv", None, "${DATA}/test.tsv"),
            ("$DATA/test.tsv", Some(""), "$DATA/test.tsv"),
            ("a/$DATA", Some("/d"), "/app/a/$DATA"),
        ] {
            let (resolved, sets) = resolved(file, value);
            assert_eq!(resolved, Path::new(path));
            let unset = path.starts_with('$').then_some("DATA");
            assert_eq!(sets.test.unwrap().unset_variable(), unset, "{file}");
        }
    }

    #[test]
    fn a_path_may_begin_in_the_folder_of_the_user() {
        let of = |path: &str, home: Option<&str>| {
            relative_to(Path::new("/app"), Path::new(path), |name| {
                home.filter(|_| name == "HOME").map(OsString::from)
            })
        };
        assert_eq!(of("~/models/a", Some("/home/u")), Path::new("/home/u/models/a"));
        for unset in [None, Some("")] {
            assert_eq!(of("~/models/a", unset), Path::new("/app/~/models/a"));
        }
        assert_eq!(of("~models/a", Some("/home/u")), Path::new("/app/~models/a"));
        assert_eq!(of("/x/~", Some("/home/u")), Path::new("/x/~"));
    }

    #[test]
    fn a_metric_needs_a_score_from_which_an_answer_is_right() {
        let problems = |text: &str| toml::from_str::<DataSets>(text).unwrap().problems().join("; ");
        assert_eq!(problems("metric = 'exact'"), "");
        assert_eq!(
            problems("min_score = 3.5"),
            "",
            "a program may score by any scale"
        );
        assert_eq!(problems("metric = 'rouge_l'\nmin_score = 1.0"), "");
        assert!(problems("metric = 'f1'").contains("data.min_score: is missing"));
        for from in ["0.0", "1.5", "-1.0"] {
            let problems = problems(&format!("metric = 'f1'\nmin_score = {from}"));
            assert!(problems.contains("up to 1"), "{problems}");
        }
        assert!(toml::from_str::<DataSets>("metric = 'bleu'").is_err());
    }

    #[test]
    fn data_with_an_unset_variable_is_no_problem_until_it_is_read() {
        let (_, sets) = resolved("$DATA/test.tsv", None);
        assert_eq!(sets.missing_files(), Vec::<String>::new());
        assert_eq!(sets.test.unwrap().unset_variable(), Some("DATA"));
        let (_, sets) = resolved("$DATA/test.tsv", Some("/nowhere"));
        assert_eq!(
            sets.missing_files(),
            ["data.test.tsv.file: `/nowhere/test.tsv` is not there"]
        );
    }
}
