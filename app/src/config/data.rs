//! Where labelled samples come from.
//!
//! Their files are often not the app's to hand on. So a path may begin with `$NAME`: there the environment variable
//! `NAME` says where the folder is, and an app whose data is not at hand can still be served.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Finite, Positive, Token};

/// Labelled samples of one app.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DataSets {
    /// What `profile` measures and calibrates on. Never the set that a model was trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<DataSet>,
    /// What accuracy is reported on: seen by nobody before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<DataSet>,
}

/// One labelled set, by its format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DataSet {
    /// Images and labels as two IDX files, the format of MNIST.
    Idx(IdxImages),
    /// Texts and labels as tab-separated lines.
    Tsv(TsvTexts),
    /// Images with several objects each, as two IDX files: what a pipeline is measured on.
    Scenes(Scenes),
    /// Texts and what should come of them, as JSON lines: questions and answers, or any task put into words.
    Completions(Completions),
    /// A running text, some of whose words are to be foretold from what stands before them, in the manner of LAMBADA.
    Words(Words),
}

/// One sample per line: an object with `text`, and with `answer`, the text that should come of it. Space around an answer does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Completions {
    /// The file, relative to this one or to a folder that an environment variable names: `$NAME/test.jsonl`.
    pub file: PathBuf,
    /// First line used.
    #[serde(default)]
    pub skip: usize,
    /// Number of lines used; all that follow where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
}

/// Words of a running text, evenly spaced over a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Words {
    /// The file, relative to this one or to a folder that an environment variable names: `$NAME/text.txt`.
    pub file: PathBuf,
    /// Where the part begins, as a share of the text; it begins with the next line.
    #[serde(default = "beginning")]
    pub from: Finite,
    /// Where it ends, as a share of the text.
    #[serde(default = "end")]
    pub to: Finite,
    /// Number of words to foretell.
    pub take: NonZeroUsize,
    /// Letters of each word that are shown, so that only its rest is to be foretold; the word has at least one more.
    #[serde(default)]
    pub shown: usize,
    /// Most characters before a word that a model is shown; they begin with a line.
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
    /// IDX file of the labels, `[n]`, named in the same way.
    pub labels: PathBuf,
    /// First sample used.
    #[serde(default)]
    pub skip: usize,
    /// Number of samples used; all that follow where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
    /// Shape that the models take, without the batch dimension; the image's own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<NonZeroUsize>>,
    /// How a byte becomes a number.
    #[serde(default)]
    pub normalise: Normalise,
}

/// Images of several objects and what is where in them, as two IDX files of unsigned bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Scenes {
    /// IDX file of the images, `[n, height, width]`, relative to this file or to a folder that an environment variable
    /// names: `$NAME/images`.
    pub images: PathBuf,
    /// IDX file of what is in each cell of a grid over the image, `[n, rows, columns]`, named in the same way: 0 for nothing, then the
    /// classes of the first task below, then those of the second, and so on.
    pub objects: PathBuf,
    /// The tasks that look at the objects, and how many classes each tells apart.
    #[schemars(length(min = 1))]
    pub kinds: Vec<Kind>,
    /// First image used.
    #[serde(default)]
    pub skip: usize,
    /// Number of images used; all that follow where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
    /// How a byte becomes a number.
    #[serde(default)]
    pub normalise: Normalise,
}

/// Objects that one task looks at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Kind {
    /// The task.
    pub task: Token,
    /// Classes that it tells apart.
    pub classes: NonZeroUsize,
}

/// How a byte of an image becomes a number: `(byte / divide_by - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Normalise {
    /// What a byte is divided by first.
    pub divide_by: Positive,
    /// What is taken off then.
    pub mean: Finite,
    /// What the rest is divided by.
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
    /// The number that a byte stands for.
    pub fn apply(&self, byte: u8) -> f32 {
        ((f64::from(byte) / self.divide_by.get() - self.mean.get()) / self.std.get()) as f32
    }
}

/// One sample per line: a text, optionally a second one, and the label (a number from 0), separated by tabs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TsvTexts {
    /// The file, relative to this one or to a folder that an environment variable names: `$NAME/test.tsv`.
    pub file: PathBuf,
    /// First line used.
    #[serde(default)]
    pub skip: usize,
    /// Number of lines used; all that follow where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<NonZeroUsize>,
}

impl DataSets {
    /// Both sets that are named, with their paths in the file.
    fn named(&self) -> impl Iterator<Item = (&'static str, &DataSet)> {
        let validation = self.validation.as_ref().map(|set| ("data.validation", set));
        let test = self.test.as_ref().map(|set| ("data.test", set));
        validation.into_iter().chain(test)
    }

    /// Makes relative paths relative to `folder`, and those that begin with `$NAME` to the folder that `variable` gives
    /// for `NAME`; without one they stay as they are.
    pub(super) fn resolve(&mut self, folder: &Path, variable: impl Fn(&str) -> Option<OsString>) {
        for set in self.validation.iter_mut().chain(&mut self.test) {
            for path in set.paths_mut() {
                *path = match variable_of(path) {
                    None => folder.join(&path),
                    Some(name) => match variable(name) {
                        None => path.clone(),
                        Some(value) => Path::new(&value).join(path.components().skip(1).collect::<PathBuf>()),
                    },
                };
            }
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let missing = |path: String, file: &PathBuf| {
            (variable_of(file).is_none() && !file.is_file())
                .then(|| format!("{path}: `{}` is not there", file.display()))
        };
        self.named()
            .flat_map(|(name, set)| match set {
                DataSet::Idx(idx) => vec![
                    missing(format!("{name}.idx.images"), &idx.images),
                    missing(format!("{name}.idx.labels"), &idx.labels),
                ],
                DataSet::Tsv(tsv) => vec![missing(format!("{name}.tsv.file"), &tsv.file)],
                DataSet::Completions(set) => vec![missing(format!("{name}.completions.file"), &set.file)],
                DataSet::Words(set) => {
                    let empty = !(0.0 <= set.from.get() && set.from < set.to && set.to.get() <= 1.0);
                    let part = format!(
                        "{name}.words: from {} to {} is no part of a text; take shares from 0 to 1",
                        set.from.get(),
                        set.to.get()
                    );
                    vec![
                        missing(format!("{name}.words.file"), &set.file),
                        empty.then_some(part),
                    ]
                }
                DataSet::Scenes(scenes) => vec![
                    missing(format!("{name}.scenes.images"), &scenes.images),
                    missing(format!("{name}.scenes.objects"), &scenes.objects),
                ],
            })
            .flatten()
            .collect()
    }
}

impl DataSet {
    /// The environment variable that names the folder of this set and is not set.
    pub fn unset_variable(&self) -> Option<&str> {
        match self {
            Self::Idx(idx) => variable_of(&idx.images).or(variable_of(&idx.labels)),
            Self::Tsv(tsv) => variable_of(&tsv.file),
            Self::Completions(set) => variable_of(&set.file),
            Self::Words(set) => variable_of(&set.file),
            Self::Scenes(scenes) => variable_of(&scenes.images).or(variable_of(&scenes.objects)),
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Idx(idx) => vec![&mut idx.images, &mut idx.labels],
            Self::Tsv(tsv) => vec![&mut tsv.file],
            Self::Completions(set) => vec![&mut set.file],
            Self::Words(set) => vec![&mut set.file],
            Self::Scenes(scenes) => vec![&mut scenes.images, &mut scenes.objects],
        }
    }
}

/// `NAME` of a path that begins with `$NAME`.
fn variable_of(path: &Path) -> Option<&str> {
    match path.components().next()? {
        Component::Normal(first) => first.to_str()?.strip_prefix('$'),
        _ => None,
    }
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
    fn a_variable_at_the_beginning_of_a_path_is_what_the_environment_says() {
        for (file, value, path) in [
            ("a/test.tsv", Some("/d"), "/app/a/test.tsv"),
            ("/x/test.tsv", Some("/d"), "/x/test.tsv"),
            ("$DATA/a/test.tsv", Some("/d"), "/d/a/test.tsv"),
            ("$DATA/test.tsv", Some("d"), "d/test.tsv"),
            ("$DATA", Some("/d/test.tsv"), "/d/test.tsv"),
            ("a/$DATA", Some("/d"), "/app/a/$DATA"),
        ] {
            let (resolved, sets) = resolved(file, value);
            assert_eq!(resolved, Path::new(path));
            assert_eq!(sets.test.unwrap().unset_variable(), None, "{file}");
        }
    }

    #[test]
    fn data_that_the_environment_does_not_say_is_named_by_its_variable_and_stops_nobody_who_needs_none() {
        let (_, sets) = resolved("$DATA/test.tsv", None);
        assert_eq!(sets.problems(), Vec::<String>::new());
        assert_eq!(sets.test.unwrap().unset_variable(), Some("DATA"));
        let (_, sets) = resolved("$DATA/test.tsv", Some("/nowhere"));
        assert_eq!(
            sets.problems(),
            ["data.test.tsv.file: `/nowhere/test.tsv` is not there"]
        );
    }
}
