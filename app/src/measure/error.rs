//! Errors of measuring a family or a pipeline.

use kaskade_models::{DeviceError, ModelError, TensorError, power::PowerError};
use kaskade_policy::confidence::ConfidenceError;
use kaskade_policy::invalid::Invalid;
use thiserror::Error;

use super::channels::ChannelError;
use super::judge::JudgeError;
use super::memory::MemoryError;
use crate::data::reply::ReplyError;
use crate::data::scenes::SceneError;
use crate::data::{DataError, Samples};
use crate::family::{ClassMismatch, FamilyError};
use crate::serving::ServingError;

/// Error of measuring a family or a pipeline.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A variant cannot be measured.
    #[error("variant `{variant}`")]
    Variant {
        /// The variant.
        variant: String,
        /// The error.
        source: Box<MeasureError>,
    },
    /// A batch of one size cannot be run.
    #[error("at batch size {batch}")]
    BatchSize {
        /// Batch size, requests.
        batch: u32,
        /// The error.
        source: Box<MeasureError>,
    },
    /// A sample of the set has no usable answer.
    #[error("sample {number}{}", origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})")))]
    Sample {
        /// Index of the sample, from 0.
        number: usize,
        /// Location of the sample in its file, if known.
        origin: Option<String>,
        /// The error.
        source: Box<MeasureError>,
    },
    /// The model refuses a sample of the set.
    #[error("the model does not answer a sample of the set")]
    Refused(#[source] ModelError),
    /// The model refuses every sample of the set as too long.
    #[error("every sample of the set is too long for the model")]
    AllTooLong,
    /// The model returned fewer answers than requests.
    #[error("the model answered {answered} of {requests} requests")]
    Unanswered {
        /// Number of answers.
        answered: usize,
        /// Number of requests.
        requests: usize,
    },
    /// The set has samples without labels.
    #[error("every sample needs a label")]
    Unlabelled,
    /// A label and an answer cannot be compared.
    #[error(
        "the label, {label}, and the answer of the model are of different kinds; check `task`, `columns` and the model"
    )]
    OtherLabel {
        /// The label.
        label: String,
    },
    /// A judge is given for a pipeline.
    #[error("a pipeline is measured by the labels of its scenes; leave `--judge` out")]
    JudgedPipeline,
    /// The judge fails.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// The app states no labelled set to measure on.
    #[error("data.validation: is missing; name the labelled set to measure on")]
    NoValidationSet,
    /// Workers serve a variant on devices of different kinds, and the variant does not state which one to use.
    #[error(
        "variant `{variant}` is served on {} by worker `{}` and on {} by `{}`, and its times differ between them: state as its `device` the one \
         that plans place it on",
        devices[0], workers[0], devices[1], workers[1]
    )]
    SeveralDevices {
        /// The variant.
        variant: String,
        /// Names of two workers.
        workers: [String; 2],
        /// Devices of these workers.
        devices: [String; 2],
    },
    /// A spending limit applies to a variant or its judge, whose calls have no known price.
    #[error(
        "`--spend-limit` cannot bound what `{variant}` costs: its {field} is not stated; state it in the app's file, `{{ request = 0 }}` if calls \
         cost nothing"
    )]
    NoPrice {
        /// The variant.
        variant: String,
        /// The missing setting.
        field: &'static str,
    },
    /// Answers of the app's task have no labelled data format.
    #[error(
        "task: vectors and scores of single pairs are neither right nor wrong and have no confidence; for a cascade of embedders or \
         cross-encoders use `task = \"ranking\"`, or write the profile yourself (`kaskade schema profile`)"
    )]
    NoLabelFormat,
    /// The labelled set was not read.
    #[error("the labelled set was not read")]
    NoSamples,
    /// The family is empty.
    #[error("the family has no members")]
    NoMembers,
    /// There are no requests to measure with.
    #[error("there is nothing to measure with")]
    NoRequests,
    /// There are fewer requests than the batch size.
    #[error("there are fewer requests than a batch")]
    TooFewRequests,
    /// No run was measured.
    #[error("nothing was measured")]
    Nothing,
    /// The app has no pipeline.
    #[error("the app has no `[pipeline]` to measure")]
    NoPipeline,
    /// A task names a variant that the app does not have.
    #[error("the app has no variant `{variant}`")]
    NoVariant {
        /// The variant.
        variant: String,
    },
    /// The root task has no variants.
    #[error("the root task has no variants")]
    EmptyRoot,
    /// Every task is the child of another task.
    #[error("every task has a parent; a pipeline needs a root")]
    NoRoot,
    /// A kind of object has no task.
    #[error("a kind is not a task")]
    NoTask,
    /// The tree has more than two levels.
    #[error(
        "task `{task}` is below the root and has children; only trees of two levels have a labelled data format yet, write the \
         profile of a deeper one yourself (`kaskade schema pipeline`)"
    )]
    Deep {
        /// The task below the root that has children.
        task: String,
    },
    /// The kinds of the set differ from the tasks below the root.
    #[error("the set's kinds are {kinds:?} and the tasks below the root {tasks:?}; they must be the same")]
    Kinds {
        /// Kinds of the set.
        kinds: Vec<String>,
        /// Tasks below the root.
        tasks: Vec<String>,
    },
    /// An output that should hold requests to another task has no rows.
    #[error("`{output}` has no rows")]
    NoRows {
        /// The output.
        output: String,
    },
    /// The time of a message cannot be measured.
    #[error("the time of a message cannot be measured")]
    Hop(#[source] ChannelError),
    /// The app cannot be served to measure the serving overhead.
    #[error("the overhead of serving cannot be measured: the app cannot be served")]
    Serving(#[source] Box<ServingError>),
    /// The latencies of the served requests cannot be recorded.
    #[error(transparent)]
    Record(#[from] hdrhistogram::CreationError),
    /// The threads of the broker cannot be started.
    #[error("the broker of the measurement cannot be started")]
    Runtime(#[source] std::io::Error),
    /// Memory cannot be measured.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A model cannot be loaded.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The variants have different classes.
    #[error(transparent)]
    Classes(#[from] ClassMismatch),
    /// A labelled set cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Scenes cannot be used.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// An answer cannot be read.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// Confidences cannot be calibrated.
    #[error(transparent)]
    Confidence(#[from] ConfidenceError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The meter cannot be set up.
    #[error(transparent)]
    Power(#[from] PowerError),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A request's tensor is invalid.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The measurements are not a valid pipeline.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl From<ServingError> for MeasureError {
    fn from(source: ServingError) -> Self {
        Self::Serving(Box::new(source))
    }
}

impl MeasureError {
    /// Adds the location of the sample in the set.
    pub(super) fn in_set(self, set: &Samples) -> Self {
        match self {
            Self::Sample { number, source, .. } => Self::Sample {
                number,
                origin: set.origins.of(number),
                source,
            },
            other => other,
        }
    }

    /// Adds the name of the variant.
    pub(super) fn of_variant<E: Into<Self>>(variant: &str) -> impl FnOnce(E) -> Self {
        move |source| Self::Variant {
            variant: variant.to_owned(),
            source: Box::new(source.into()),
        }
    }
}
