//! Where labelled samples come from.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Finite, Positive};

/// Labelled samples of one app.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
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
}

/// Images and labels as two IDX files of unsigned bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdxImages {
    /// IDX file of the images, `[n, height, width]` or `[n, height, width, channels]`, relative to this file.
    pub images: PathBuf,
    /// IDX file of the labels, `[n]`, relative to this file.
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

/// How a byte of an image becomes a number: `(byte / divide_by - mean) / std`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
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
pub struct TsvTexts {
    /// The file, relative to this one.
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

    pub(super) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let sets = self.validation.iter_mut().chain(&mut self.test);
        sets.flat_map(|set| match set {
            DataSet::Idx(idx) => vec![&mut idx.images, &mut idx.labels],
            DataSet::Tsv(tsv) => vec![&mut tsv.file],
        })
        .collect()
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let missing = |path: String, file: &PathBuf| {
            (!file.is_file()).then(|| format!("{path}: `{}` is not there", file.display()))
        };
        self.named()
            .flat_map(|(name, set)| match set {
                DataSet::Idx(idx) => vec![
                    missing(format!("{name}.idx.images"), &idx.images),
                    missing(format!("{name}.idx.labels"), &idx.labels),
                ],
                DataSet::Tsv(tsv) => vec![missing(format!("{name}.tsv.file"), &tsv.file)],
            })
            .flatten()
            .collect()
    }
}
