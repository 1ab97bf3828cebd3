//! Labelled samples, ready for a model.

mod columns;
mod conversations;
mod error;
mod folder;
mod label;
mod parquet;
mod rankings;
mod record;
mod records;
pub mod reply;
mod scene_error;
pub mod scenes;
pub mod text_metric;
mod texts;
mod token_labels;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kaskade_models::idx::LabelledImages;
use kaskade_models::{
    Datatype, Extent, InputSpec, Inputs, Loaded, Model, ModelError, Signature, Task, Tensor,
};

pub use self::error::DataError;
pub(crate) use self::folder::has_split;
use self::label::LabelReader;
pub use self::label::{Label, LabelUse};
use self::texts::Completion;
use crate::config::data::{DataSet, IdxImages, TsvTexts};

/// Labelled samples of one set, in its order.
#[derive(Debug, Clone)]
pub struct Samples {
    /// What each request brings.
    pub inputs: Vec<Inputs>,
    /// The right answer to each.
    pub labels: Vec<Label>,
    /// Where they come from.
    pub origins: Origins,
}

/// The files of samples; empty for a set without a file per sample or line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins {
    files: Vec<PathBuf>,
    /// By sample: its file, and its line there.
    places: Vec<(usize, Option<usize>)>,
    /// Names that the files give the classes, if they are others than the model's and the labels are numbers.
    other_names: Vec<String>,
}

impl Origins {
    /// Adds the place of the next sample.
    pub(crate) fn push(&mut self, file: &Path, line: Option<usize>) {
        if self.files.last().is_none_or(|last| last != file) {
            self.files.push(file.to_owned());
        }
        self.places.push((self.files.len().saturating_sub(1), line));
    }

    /// Returns the names that the files give the classes, if they are others than the model's: the numbers were taken to mean the same.
    pub(crate) fn other_names(&self) -> &[String] {
        &self.other_names
    }

    /// Returns where a sample comes from.
    pub fn of(&self, number: usize) -> Option<String> {
        let (file, line) = self.places.get(number)?;
        let file = self.files.get(*file)?.display();
        Some(match line {
            Some(line) => format!("{file}, line {line}"),
            None => file.to_string(),
        })
    }
}

/// What the requests of a set are made for: the task and the classes of a model, and its inputs.
#[derive(Debug, Clone)]
pub(crate) struct RequestForm {
    /// Its answers.
    pub(crate) task: Task,
    /// Names of its classes; empty if it has none.
    pub(crate) labels: Vec<String>,
    /// Its inputs.
    pub(crate) signature: Signature,
}

impl Samples {
    /// Reads a set in the form that a model takes; names of classes are those of the model.
    ///
    /// # Errors
    /// When the location of the files is not configured, a file is invalid, or its samples are not what the model
    /// takes.
    pub fn read(set: &DataSet, loaded: &Loaded) -> Result<Self, DataError> {
        Self::read_for(set, loaded, LabelUse::Required)
    }

    /// The same, of a set whose samples may lack labels; these have [`Label::Unknown`].
    ///
    /// # Errors
    /// As [`Samples::read`].
    pub fn read_labelled_or_not(set: &DataSet, loaded: &Loaded) -> Result<Self, DataError> {
        Self::read_for(set, loaded, LabelUse::Reference)
    }

    /// The same, of a set whose labels are used so.
    ///
    /// # Errors
    /// As [`Samples::read`].
    pub(crate) fn read_for(set: &DataSet, loaded: &Loaded, used: LabelUse) -> Result<Self, DataError> {
        Self::read_with(set, &LabelReader::of(loaded, used), &loaded.model.signature())
    }

    /// Reads a set, whose samples may lack labels, in this form.
    ///
    /// # Errors
    /// As [`Samples::read`].
    pub(crate) fn read_in_form(set: &DataSet, form: &RequestForm) -> Result<Self, DataError> {
        let mut labels = LabelReader::new(form.task, &form.labels);
        labels.used = LabelUse::Reference;
        Self::read_with(set, &labels, &form.signature)
    }

    fn read_with(set: &DataSet, labels: &LabelReader, signature: &Signature) -> Result<Self, DataError> {
        if let Some(name) = set.unset_variable() {
            return Err(DataError::UnsetVariable {
                name: name.to_owned(),
            });
        }
        match set {
            DataSet::Idx(idx) => {
                let images = LabelledImages::read(&idx.images, &idx.labels)?;
                Self::images_with(&images, idx, signature, labels).map_err(DataError::in_file(&idx.images))
            }
            DataSet::Tsv(tsv) => {
                let text = texts::read(&tsv.file)?;
                Self::from_lines(&text, tsv, signature, labels).map_err(DataError::in_file(&tsv.file))
            }
            DataSet::Words(set) => {
                let text = texts::read(&set.file)?;
                let read = texts::words(&text, set).map_err(DataError::in_file(&set.file))?;
                Self::from_completions(read, set.take, signature).map_err(DataError::in_file(&set.file))
            }
            DataSet::Records(set) => Self::from_records(set, signature, labels),
            DataSet::Folder(set) => Self::from_folder(set, signature, labels),
            DataSet::Scenes(_) => Err(DataError::NeedsPipeline),
        }
    }

    /// Images with classes in the form of `signature`: `spec` defines which, of what shape, and how a byte becomes a number.
    ///
    /// # Errors
    /// When none are left, or they are not what the model takes.
    pub fn from_images(
        images: &LabelledImages,
        spec: &IdxImages,
        signature: &Signature,
    ) -> Result<Self, DataError> {
        let classes = LabelReader::new(Task::Classification, &[]);
        Self::images_with(images, spec, signature, &classes)
    }

    fn images_with(
        images: &LabelledImages,
        spec: &IdxImages,
        signature: &Signature,
        labels: &LabelReader,
    ) -> Result<Self, DataError> {
        let input = image_input(signature)?;
        let (height, width) = images.size();
        let shape = match &spec.shape {
            Some(shape) => shape.iter().copied().map(NonZeroUsize::get).collect(),
            None => natural_shape(input, height, width),
        };
        let take = spec.take.map_or(usize::MAX, NonZeroUsize::get);
        let mut samples = Self {
            inputs: Vec::new(),
            labels: Vec::new(),
            origins: Origins::default(),
        };
        for (pixels, label) in images.iter().skip(spec.skip).take(take) {
            let values: Vec<f32> = pixels.iter().map(|pixel| spec.normalise.apply(*pixel)).collect();
            let tensor = Tensor::from_f32(&input.name, &shape, &values)?;
            samples.inputs.push(vec![tensor]);
            samples.labels.push(labels.class_only(usize::from(label))?);
        }
        samples.complete(spec.skip, spec.take, signature)
    }

    /// Texts in the form that a model of text takes: `text`, and `text_pair` where a line has two.
    fn from_lines(
        lines: &str,
        spec: &TsvTexts,
        signature: &Signature,
        labels: &LabelReader,
    ) -> Result<Self, DataError> {
        let take = spec.take.map_or(usize::MAX, NonZeroUsize::get);
        let mut samples = Self {
            inputs: Vec::new(),
            labels: Vec::new(),
            origins: Origins::default(),
        };
        for (number, line) in texts::numbered(lines).skip(spec.skip).take(take) {
            let (inputs, label) = parse_line(line, labels).map_err(|error| error.at(number))?;
            if let Some(first) = samples.inputs.first().filter(|first| first.len() != inputs.len()) {
                let (found, expected) = (inputs.len() + 1, first.len() + 1);
                return Err(DataError::OtherColumns { found, expected }.at(number));
            }
            samples.inputs.push(inputs);
            samples.labels.push(label);
            samples.origins.push(&spec.file, Some(number));
        }
        samples.complete(spec.skip, spec.take, signature)
    }

    /// Texts in the form that a language model takes.
    fn from_completions(
        completions: Vec<Completion>,
        take: NonZeroUsize,
        signature: &Signature,
    ) -> Result<Self, DataError> {
        let mut samples = Self {
            inputs: Vec::new(),
            labels: Vec::new(),
            origins: Origins::default(),
        };
        for Completion { text, answer } in completions {
            samples.inputs.push(vec![Tensor::from_texts("text", &[&text])?]);
            samples.labels.push(Label::text(&answer));
        }
        samples.complete(0, Some(take), signature)
    }

    /// The samples, if they are as many as required, at least one, and what a model of this signature takes.
    fn complete(
        self,
        skip: usize,
        take: Option<NonZeroUsize>,
        signature: &Signature,
    ) -> Result<Self, DataError> {
        if self.labels.is_empty() && skip == 0 {
            return Err(DataError::NoSamples);
        }
        if self.labels.is_empty() || take.is_some_and(|take| self.len() != take.get()) {
            return Err(DataError::Count {
                found: self.len(),
                skip,
            });
        }
        self.check(signature)?;
        Ok(self)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Number of samples whose inputs are those of an earlier one.
    pub fn repeats(&self) -> usize {
        let inputs = self.inputs.iter();
        let keys = inputs.map(|inputs| -> Vec<(&str, &[u8])> {
            let keys = inputs
                .iter()
                .map(|input| (input.name.as_str(), input.data.as_ref()));
            keys.collect()
        });
        self.inputs.len() - keys.collect::<HashSet<_>>().len()
    }

    /// Returns the number of samples of each class.
    pub(crate) fn classes(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for label in &self.labels {
            if let Label::Class(class) = label {
                *counts.entry(*class as u64).or_default() += 1;
            }
        }
        counts
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Checks that every sample has the inputs of this signature.
    ///
    /// # Errors
    /// [`DataError::Sample`] for the first sample that has not.
    pub fn check(&self, signature: &Signature) -> Result<(), DataError> {
        self.check_each(|inputs| signature.check(inputs))
    }

    /// Checks that a model takes every sample, as it does before it computes. `forwards_too_long` states whether requests that are too long
    /// for it go to another model.
    ///
    /// # Errors
    /// [`DataError::Sample`] for the first sample that the model does not take.
    pub fn check_for(&self, model: &dyn Model, forwards_too_long: bool) -> Result<(), DataError> {
        self.check_each(|inputs| match model.check_request(inputs) {
            Err(ModelError::TooLong { .. }) if forwards_too_long => Ok(()),
            checked => checked,
        })
    }

    fn check_each(&self, check: impl Fn(&Inputs) -> Result<(), ModelError>) -> Result<(), DataError> {
        for (number, inputs) in self.inputs.iter().enumerate() {
            check(inputs).map_err(|source| DataError::Sample {
                number,
                origin: self.origins.of(number),
                source,
            })?;
        }
        Ok(())
    }
}

/// Reads one line of a tab-separated file.
fn parse_line(line: &str, labels: &LabelReader) -> Result<(Inputs, Label), DataError> {
    let columns: Vec<&str> = line.split('\t').collect();
    let (texts, label) = match columns.as_slice() {
        [text, label] => (vec![("text", *text)], *label),
        [text, pair, label] => (vec![("text", *text), ("text_pair", *pair)], *label),
        _ => {
            return Err(DataError::Columns { found: columns.len() });
        }
    };
    let label = if labels.ignored() || (!labels.required() && matches!(label.trim(), "" | "-1")) {
        Label::Unknown
    } else {
        match label.trim() {
            "" => return Err(DataError::EmptyLabel),
            "-1" if labels.required() => return Err(DataError::UnlabelledRow),
            _ => {}
        }
        let class = label.trim().parse().map_err(|_| DataError::Label {
            label: label.to_owned(),
        })?;
        labels.class_only(class)?
    };
    let inputs = texts
        .into_iter()
        .map(|(name, text)| Tensor::from_texts(name, &[text]));
    Ok((inputs.collect::<Result<_, _>>()?, label))
}

/// The one input that images go to.
pub(crate) fn image_input(signature: &Signature) -> Result<&InputSpec, DataError> {
    let mut required = signature.inputs.iter().filter(|input| !input.optional);
    // A model that also takes image files requires neither form.
    let mut tensors = signature
        .inputs
        .iter()
        .filter(|input| input.datatype == Datatype::F32);
    match (required.next(), required.next()) {
        (Some(input), None) if input.datatype == Datatype::F32 => Ok(input),
        (None, None) => match (tensors.next(), tensors.next()) {
            (Some(input), None) => Ok(input),
            _ => Err(DataError::NoImageInput {
                inputs: signature.inputs.clone(),
            }),
        },
        _ => Err(DataError::NoImageInput {
            inputs: signature.inputs.clone(),
        }),
    }
}

/// The model's own shape where it holds exactly one image, the image's otherwise.
fn natural_shape(input: &InputSpec, height: usize, width: usize) -> Vec<usize> {
    let exact: Option<Vec<usize>> = input
        .shape
        .iter()
        .map(|extent| match extent {
            Extent::Exactly(extent) => Some(*extent),
            Extent::UpTo(_) | Extent::AtMost(_) | Extent::Tokens(_) => None,
        })
        .collect();
    exact
        .filter(|shape| shape.iter().product::<usize>() == height * width)
        .unwrap_or_else(|| vec![1, height, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::in_one_line;

    fn signature(shape: &[usize]) -> Signature {
        let extents = shape.iter().map(|extent| Extent::Exactly(*extent)).collect();
        Signature {
            inputs: vec![InputSpec::required("pixels", Datatype::F32, extents)],
        }
    }

    /// Three images of 1x2.
    fn images() -> LabelledImages {
        let pixels = [
            0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 51, 102, 153, 204, 255,
        ];
        let labels = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];
        LabelledImages::parse(("i", &pixels), ("l", &labels)).unwrap()
    }

    fn classes() -> LabelReader {
        LabelReader::new(Task::Classification, &[])
    }

    fn spec(extra: &str) -> IdxImages {
        toml::from_str(&format!("images = \"i\"\nlabels = \"l\"\n{extra}")).unwrap()
    }

    #[test]
    fn samples_are_cut_normalised_and_shaped() {
        let samples = Samples::from_images(&images(), &spec("skip = 1\ntake = 1"), &signature(&[2])).unwrap();
        assert_eq!(samples.labels, [Label::Class(8)]);
        let tensor = &samples.inputs[0][0];
        assert_eq!(
            (tensor.name.as_str(), tensor.shape.as_slice()),
            ("pixels", [2].as_slice())
        );
        let values = tensor.to_f32().unwrap();
        assert!(
            (values[0] - 0.4).abs() < 1e-6 && (values[1] - 0.6).abs() < 1e-6,
            "{values:?}"
        );
    }

    #[test]
    fn a_model_of_another_size_and_a_set_too_short_are_refused() {
        let refused = |extra: &str, shape: &[usize]| {
            let error = Samples::from_images(&images(), &spec(extra), &signature(shape)).unwrap_err();
            in_one_line(&error)
        };
        assert!(refused("", &[1, 3, 3]).contains("sample 0"));
        assert!(refused("shape = [3]", &[2]).contains("bytes"));
        assert!(refused("skip = 3", &[2]).contains("0 samples after the first 3"));
        assert!(refused("skip = 2\ntake = 2", &[2]).contains("1 sample after the first 2"));
    }

    #[test]
    fn texts_and_pairs_are_read_and_a_bad_line_is_named() {
        let optional = |name| InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)]);
        let signature = Signature {
            inputs: vec![optional("text"), optional("text_pair")],
        };
        let read = |lines: &str, extra: &str| {
            let spec: TsvTexts = toml::from_str(&format!("file = \"f\"\n{extra}")).unwrap();
            Samples::from_lines(lines, &spec, &signature, &classes())
        };
        let samples = read("good\t1\nbad\t0\n", "").unwrap();
        assert_eq!(samples.labels, [1, 0].map(Label::Class));
        assert_eq!(samples.origins.of(1).as_deref(), Some("f, line 2"));
        assert_eq!(samples.repeats(), 0);
        let pairs = read("is it\tno\t1\nis it\tyes\t0\n", "").unwrap();
        assert_eq!(pairs.inputs[1][1].to_texts().unwrap(), ["yes"]);
        assert_eq!(pairs.repeats(), 0);
        assert_eq!(read("a\t1\na\t0\nb\t1\na\t1\n", "").unwrap().repeats(), 2);
        let last = read("a\t0\n\nb\t1\n \n", "skip = 1\ntake = 1").unwrap();
        assert_eq!(last.labels, [Label::Class(1)]);
        let marked = read("\u{feff}good\t1\r\nbad\t0\r\n", "").unwrap();
        assert_eq!(marked.inputs[0][0].to_texts().unwrap(), ["good"]);
        for (lines, message) in [
            ("a\t0\nlonely\n", "line 2: has 1 columns"),
            (
                "a\t0\nb\t1c\t0\n",
                "line 2: has 3 columns, and the lines before it have 2",
            ),
            ("sentence\tlabel\n", "`label` is not a label"),
            ("sentence\tlabel\n", "`skip = 1`"),
            ("a\t\n", "line 1: the label is empty"),
            ("a\t-1\n", "line 1: the label is -1"),
            ("", "no samples"),
        ] {
            let error = in_one_line(&read(lines, "").unwrap_err());
            assert!(error.contains(message), "{error}");
        }
    }
}
