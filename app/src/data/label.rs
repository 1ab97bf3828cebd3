//! Labels: how data sets write correct answers, and what they mean to a model.

use std::collections::{HashMap, HashSet};

use kaskade_models::class_names::{are_placeholders, comparable_name};
use kaskade_models::entities::{OUTSIDE, group_label};
use kaskade_models::{Loaded, Task};
use serde::Serialize;
use serde_json::Value;

use super::DataError;

/// An answer, as a label or as predicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Label {
    /// A class index.
    Class(usize),
    /// A text, trimmed.
    Text(String),
    /// All classes that apply, ascending.
    Classes(Vec<usize>),
    /// Alternative correct texts, trimmed.
    Texts(Vec<String>),
    /// Alternative correct classes, ascending: the relevant passages of a ranking, or several classes with one name.
    AnyOf(Vec<usize>),
    /// Unknown; a judge decides whether an answer is correct.
    Unknown,
    /// A span: the most probable start and end token.
    Span {
        /// Position of the start.
        start: usize,
        /// Position of the end.
        end: usize,
        /// The text of the span, trimmed. Spans that both have a text are compared by it, because positions depend on
        /// the tokenizer.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
}

impl Label {
    /// Creates a text label.
    pub fn text(text: &str) -> Self {
        Self::Text(text.trim().to_owned())
    }

    /// Returns whether an answer is correct if `self` is the label.
    pub fn accepts(&self, answer: &Self) -> bool {
        match (self, answer) {
            (Self::Texts(right), Self::Text(answer)) => right.contains(answer),
            (Self::AnyOf(right), Self::Class(answer)) => right.contains(answer),
            (Self::Unknown, _) => false,
            _ => self == answer,
        }
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Class(class) => write!(f, "{class}"),
            Self::Text(text) | Self::Span { text: Some(text), .. } => write!(f, "{text:?}"),
            Self::Classes(classes) => write!(f, "{classes:?}"),
            Self::Texts(texts) => write!(f, "{texts:?}"),
            Self::AnyOf(classes) => write!(f, "one of {classes:?}"),
            Self::Unknown => f.write_str("unknown"),
            Self::Span { start, end, .. } => write!(f, "tokens {start} to {end}"),
        }
    }
}

/// Use of the labels of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelUse {
    /// Labels decide correctness: every sample needs one.
    Required,
    /// Labels are references for a judge: a sample may lack one.
    Reference,
    /// Labels are not read.
    Ignored,
}

/// Reads labels for a model.
pub(super) struct LabelReader {
    task: Task,
    pub(super) used: LabelUse,
    /// Class indices by class name; empty if the model has no class names.
    classes: HashMap<String, Vec<usize>>,
    /// Class names that differ only in spelling, by their normalised form.
    spellings: HashMap<String, Vec<String>>,
    /// Names of the token labels.
    names: Vec<String>,
    /// Number of classes; `None` if unknown, for instance for a remote model.
    count: Option<usize>,
    /// Whether all class names are numbers that differ from the class indices; a number in a data set is then
    /// ambiguous.
    numbered: bool,
}

impl LabelReader {
    /// Creates a reader for the task and the class names of a model.
    pub(super) fn of(loaded: &Loaded, used: LabelUse) -> Self {
        Self {
            used,
            ..Self::new(loaded.info.task, &loaded.info.labels)
        }
    }

    pub(super) fn new(task: Task, labels: &[String]) -> Self {
        let mut classes: HashMap<String, Vec<usize>> = HashMap::new();
        let mut spellings: HashMap<String, Vec<String>> = HashMap::new();
        if !are_placeholders(labels) {
            for (class, label) in labels.iter().enumerate() {
                let numbers = classes.entry(label.clone()).or_default();
                if numbers.is_empty() {
                    spellings
                        .entry(comparable_name(label))
                        .or_default()
                        .push(label.clone());
                }
                numbers.push(class);
            }
        }
        Self {
            task,
            used: LabelUse::Required,
            names: labels.to_vec(),
            classes,
            spellings,
            count: (!labels.is_empty()).then_some(labels.len()),
            numbered: labels.iter().all(|label| label.trim().parse::<f64>().is_ok())
                && labels
                    .iter()
                    .enumerate()
                    .any(|(class, label)| label.trim().parse() != Ok(class)),
        }
    }

    /// Returns whether requests are queries with passages.
    pub(super) fn ranks(&self) -> bool {
        self.task == Task::Ranking
    }

    /// Returns whether requests are texts whose tokens are labelled.
    pub(super) fn tags(&self) -> bool {
        self.task == Task::TokenClassification
    }

    /// Returns the name of a token label written as a number or a name.
    ///
    /// # Errors
    /// [`DataError::LabelRange`] or [`DataError::LabelForm`].
    pub(super) fn tag<'a>(&'a self, written: &'a Value) -> Result<&'a str, DataError> {
        match written {
            Value::String(name) => Ok(name.trim()),
            Value::Number(number) if number.is_u64() && !self.names.is_empty() => {
                let class = number.as_u64().and_then(|class| usize::try_from(class).ok());
                let class = class.unwrap_or(usize::MAX);
                self.names
                    .get(class)
                    .map(String::as_str)
                    .ok_or(DataError::LabelRange {
                        class,
                        count: self.names.len(),
                    })
            }
            _ => Err(DataError::LabelForm {
                label: shortened(written),
                expected: "the name of a label, or its number from 0 in the `id2label` of the smallest variant",
            }),
        }
    }

    /// Returns the label of an entity in the model's spelling, without a prefix. If the model names no labels, every
    /// label is accepted.
    ///
    /// # Errors
    /// [`DataError::UnknownLabel`].
    pub(super) fn entity<'a>(&'a self, label: &'a str) -> Result<&'a str, DataError> {
        let known = self.names.iter().map(|name| group_label(name));
        let mut known: Vec<&str> = known.filter(|name| *name != OUTSIDE).collect();
        known.sort_unstable();
        known.dedup();
        let label = label.trim();
        if known.is_empty() || known.contains(&label) {
            return Ok(label);
        }
        let mut alike = known.iter().filter(|name| name.eq_ignore_ascii_case(label));
        if let (Some(name), None) = (alike.next(), alike.next()) {
            return Ok(name);
        }
        Err(DataError::UnknownLabel {
            label: label.to_owned(),
            known: known.into_iter().map(str::to_owned).collect(),
        })
    }

    /// Returns whether every sample needs a label.
    pub(super) fn required(&self) -> bool {
        self.used == LabelUse::Required
    }

    /// Returns whether labels are not read.
    pub(super) fn ignored(&self) -> bool {
        self.used == LabelUse::Ignored
    }

    /// Converts a class index to a label, for a data format that has only classes.
    ///
    /// # Errors
    /// [`DataError::ClassesOnly`] if the model's answers are not classes; [`DataError::LabelRange`] if it has no such
    /// class.
    pub(super) fn class_only(&self, class: usize) -> Result<Label, DataError> {
        let others = [
            Task::Generation,
            Task::QuestionAnswering,
            Task::MultiLabel,
            Task::TokenClassification,
            Task::Ranking,
        ];
        match self.used {
            LabelUse::Ignored => Ok(Label::Unknown),
            _ if !others.contains(&self.task) => self.in_range(class).map(Label::Class),
            LabelUse::Reference => Ok(Label::Unknown),
            LabelUse::Required => Err(DataError::ClassesOnly),
        }
    }

    /// Returns whether the model has class names.
    pub(super) fn has_names(&self) -> bool {
        !self.classes.is_empty()
    }

    /// Returns the number of classes; `None` if it is unknown.
    pub(super) fn class_count(&self) -> Option<usize> {
        self.count
    }

    /// Converts a written label to the model's form.
    ///
    /// # Errors
    /// [`DataError::UnknownLabel`], [`DataError::EmptyLabel`], [`DataError::LabelRange`], [`DataError::LabelForm`], or
    /// [`DataError::NoRightAnswer`] for an empty list of texts that would decide correctness.
    pub(super) fn read(&self, written: &Value) -> Result<Label, DataError> {
        match self.task {
            Task::Classification => self.class(written).map(|classes| match classes.as_slice() {
                [class] => Label::Class(*class),
                _ => Label::AnyOf(classes),
            }),
            Task::MultiLabel => self.classes(written).map(Label::Classes),
            Task::Generation | Task::QuestionAnswering => match texts(written) {
                Some(Label::Texts(texts)) if texts.is_empty() => match self.used {
                    LabelUse::Required => Err(DataError::NoRightAnswer),
                    LabelUse::Reference | LabelUse::Ignored => Ok(Label::Unknown),
                },
                Some(label) => Ok(label),
                None => Err(DataError::LabelForm {
                    label: shortened(written),
                    expected: "a text, a list of texts, or {\"text\": [..]}",
                }),
            },
            _ => Err(DataError::NoLabelFormat),
        }
    }

    /// Converts a label that may be missing, that is, null or an empty CSV cell. For a multi-label classifier an empty
    /// cell means that no label applies.
    ///
    /// # Errors
    /// As [`LabelReader::read`].
    pub(super) fn read_if_any(&self, written: Option<&Value>) -> Result<Label, DataError> {
        let is_empty = |text: &str| text.trim().is_empty() && self.task != Task::MultiLabel;
        match written {
            _ if self.ignored() => Ok(Label::Unknown),
            None | Some(Value::Null) => Ok(Label::Unknown),
            Some(Value::String(text)) if is_empty(text) => Ok(Label::Unknown),
            Some(written) if self.is_class() && is_unlabelled(written) => Ok(Label::Unknown),
            Some(written) => self.read(written),
        }
    }

    /// Returns whether labels are single classes.
    fn is_class(&self) -> bool {
        self.task == Task::Classification && !self.classes.contains_key("-1")
    }

    /// Returns the classes that a label may mean; several only if they share one name.
    fn class(&self, written: &Value) -> Result<Vec<usize>, DataError> {
        let form = || DataError::LabelForm {
            label: shortened(written),
            expected: "a number from 0, or the name of a class",
        };
        if self.is_class() && is_unlabelled(written) {
            return Err(DataError::UnlabelledRow);
        }
        match written {
            Value::Number(_) if self.numbered => Err(DataError::LabelForm {
                label: shortened(written),
                expected: "the name of a class as a text: the model's classes have numbers for names, so that a number may be either",
            }),
            Value::Number(number) => {
                let class = number.as_u64().and_then(|class| usize::try_from(class).ok());
                let class = class.or_else(|| number.as_f64().and_then(whole));
                self.in_range(class.ok_or_else(form)?).map(|class| vec![class])
            }
            Value::String(name) => self.named(name.trim()),
            _ => Err(form()),
        }
    }

    fn named(&self, name: &str) -> Result<Vec<usize>, DataError> {
        if let Some(classes) = self.classes.get(name) {
            return Ok(classes.clone());
        }
        if name.is_empty() {
            return Err(DataError::EmptyLabel);
        }
        let number = name.parse().ok();
        let number = number.or_else(|| name.parse().ok().and_then(whole));
        // transformers uses these placeholders if a model has no class names.
        let placeholder = || name.strip_prefix("LABEL_")?.parse().ok();
        let number = match number {
            None if self.classes.is_empty() => placeholder(),
            number => number.filter(|_| !self.numbered),
        };
        if let Some(class) = number {
            return self.in_range(class).map(|class| vec![class]);
        }
        // Data sets and checkpoints often differ only in spelling: `positive`, `POSITIVE`.
        if let Some([known]) = self.spellings.get(&comparable_name(name)).map(Vec::as_slice)
            && let Some(classes) = self.classes.get(known)
        {
            return Ok(classes.clone());
        }
        Err(DataError::UnknownLabel {
            label: name.to_owned(),
            known: self.known(),
        })
    }

    /// Returns the distinct class names in class order; empty if the model has no meaningful names.
    fn known(&self) -> Vec<String> {
        let mut known: Vec<(&String, &Vec<usize>)> = self.classes.iter().collect();
        known.sort_by_key(|(_, classes)| classes.first().copied());
        known.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether class numbers in a column are replaced by `names`, the class names that the data file states.
    /// They are kept as the model's class indices if the model has no names, if it has as many classes with entirely
    /// different names, or if `names` are numerals that the model does not know, because those would be read as other
    /// indices.
    pub(super) fn reads_names(&self, names: &[String]) -> bool {
        let are_numerals = names.iter().all(|name| name.trim().parse::<f64>().is_ok());
        let are_known = names.iter().all(|name| self.classes.contains_key(name.trim()));
        !are_placeholders(&self.names) && !self.has_other_names(names) && (are_known || !are_numerals)
    }

    /// Returns whether the model has the same number of classes with entirely different names.
    pub(super) fn has_other_names(&self, names: &[String]) -> bool {
        let comparable = |names: &[String]| -> HashSet<String> {
            names.iter().map(|name| comparable_name(name)).collect()
        };
        !are_placeholders(&self.names)
            && names.len() == self.names.len()
            && comparable(&self.names).is_disjoint(&comparable(names))
    }

    fn in_range(&self, class: usize) -> Result<usize, DataError> {
        match self.count {
            Some(count) if class >= count => Err(DataError::LabelRange { class, count }),
            _ => Ok(class),
        }
    }

    /// Converts a multi-hot list (a zero or one for each class), as multi-label models are trained on, to class
    /// indices. `None` if the list is not multi-hot: a list of class numbers names no class twice.
    ///
    /// # Errors
    /// [`DataError::LabelForm`] if a list of two is ambiguous.
    fn one_hot(&self, listed: &[Value]) -> Result<Option<Vec<usize>>, DataError> {
        let marks = listed.iter().map(|mark| match mark {
            Value::Bool(mark) => Some((*mark, true)),
            Value::Number(number) => match number.as_f64() {
                Some(0.0) => Some((false, number.is_f64())),
                Some(1.0) => Some((true, number.is_f64())),
                _ => None,
            },
            _ => None,
        });
        let marks: Option<Vec<(bool, bool)>> = marks.collect();
        let Some(marks) = marks.filter(|marks| marks.len() > 1 && Some(marks.len()) == self.count) else {
            return Ok(None);
        };
        let certain = marks.len() > 2
            || marks.iter().any(|(_, no_number)| *no_number)
            || matches!(marks.as_slice(), [(one, _), (other, _)] if one == other);
        if !certain {
            return Err(DataError::LabelForm {
                label: shortened(&Value::from(listed)),
                expected: "names of classes, or a mark for each class written 0.0 or 1.0: whole numbers may be numbers of classes or marks",
            });
        }
        let set = marks.iter().enumerate().filter(|(_, (mark, _))| *mark);
        Ok(Some(set.map(|(class, _)| class).collect()))
    }

    /// Returns one class of a multi-label answer, whose name must be unique.
    fn single_class(&self, written: &Value) -> Result<usize, DataError> {
        match self.class(written)?.as_slice() {
            [class] => Ok(*class),
            _ => Err(DataError::RepeatedName {
                name: shortened(written),
            }),
        }
    }

    /// Reads a list of classes. In CSV, whose columns hold no lists, it may be JSON or comma-separated names.
    fn classes(&self, written: &Value) -> Result<Vec<usize>, DataError> {
        let mut classes = match written {
            Value::Array(listed) => match self.one_hot(listed)? {
                Some(classes) => classes,
                None => listed
                    .iter()
                    .map(|one| self.single_class(one))
                    .collect::<Result<Vec<_>, _>>()?,
            },
            Value::String(text) if text.trim_start().starts_with('[') => {
                let listed = serde_json::from_str::<Vec<Value>>(text)
                    .ok()
                    .or_else(|| python_list(text));
                let listed = listed.ok_or_else(|| DataError::LabelForm {
                    label: shortened(written),
                    expected: "a list of classes in JSON, such as [\"joy\", \"anger\"], or names with commas between them",
                })?;
                return self.classes(&Value::Array(listed));
            }
            Value::String(text) => {
                let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
                let numbers = names.clone().map(|name| {
                    let number = serde_json::from_str(name).ok()?;
                    let is_name = self.classes.contains_key(name);
                    Some(Value::Number(number)).filter(|_| !is_name)
                });
                // One number is a class; several may be a multi-hot list.
                let numbers: Option<Vec<Value>> = numbers.collect();
                if let Some(numbers) = numbers.filter(|numbers| numbers.len() > 1) {
                    return self.classes(&Value::Array(numbers));
                }
                names
                    .map(|name| self.single_class(&Value::from(name)))
                    .collect::<Result<Vec<_>, _>>()?
            }
            one => vec![self.single_class(one)?],
        };
        classes.sort_unstable();
        classes.dedup();
        Ok(classes)
    }
}

/// Reads a text, a list of texts, or the `SQuAD` form `{"text": [..], "answer_start": [..]}`.
fn texts(written: &Value) -> Option<Label> {
    match written {
        Value::String(text) => Some(Label::text(text)),
        Value::Array(listed) => {
            let texts = listed.iter().map(|text| Some(text.as_str()?.trim().to_owned()));
            texts.collect::<Option<Vec<_>>>().map(Label::Texts)
        }
        Value::Object(fields) => match fields.get("text")? {
            listed @ Value::Array(_) => texts(listed),
            text => texts(&Value::Array(vec![text.clone()])),
        },
        _ => None,
    }
}

/// Parses a list as Python prints it, which pandas writes to CSV: `['joy', "don't"]`, or with `NumPy` `[1 0 1]`.
fn python_list(text: &str) -> Option<Vec<Value>> {
    let mut rest = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut listed = Vec::new();
    loop {
        rest = rest.trim_start_matches(|character: char| character == ',' || character.is_whitespace());
        let Some(first) = rest.chars().next() else {
            return Some(listed);
        };
        if matches!(first, '\'' | '"') {
            let (name, after) = rest.strip_prefix(first)?.split_once(first)?;
            // Class names contain no characters that Python escapes.
            if name.contains('\\') {
                return None;
            }
            listed.push(Value::from(name));
            rest = after;
        } else {
            let end = rest.find(|character: char| character == ',' || character.is_whitespace());
            let (word, after) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
            listed.push(match word {
                "True" => Value::Bool(true),
                "False" => Value::Bool(false),
                // NumPy prints `1.`.
                number => {
                    Value::Number(serde_json::from_str(number.strip_suffix('.').unwrap_or(number)).ok()?)
                }
            });
            rest = after;
        }
    }
}

/// Formats a written label for an error message.
pub(super) fn shortened(written: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = written.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Returns whether a label is -1, which the Hub uses for unlabelled rows.
fn is_unlabelled(written: &Value) -> bool {
    match written {
        Value::Number(number) => number.as_f64() == Some(-1.0),
        Value::String(text) => text.trim().parse() == Ok(-1.0_f64),
        _ => false,
    }
}

/// Returns the class of a number with a zero fraction, as pandas writes a column of integers with missing values.
fn whole(number: f64) -> Option<usize> {
    let is_class = number >= 0.0 && number.fract() == 0.0 && number <= f64::from(u32::MAX);
    is_class.then_some(number as usize)
}

#[cfg(test)]
mod tests;
