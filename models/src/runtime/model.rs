//! The `Model` trait, implemented by everything that can be served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;

use crate::runtime::answers::Answers;
pub use crate::runtime::extent::Extent;
use crate::runtime::tensor::{Datatype, Tensor, TensorError};

/// Inputs of one request, without a batch dimension.
pub type Inputs = Vec<Tensor>;

/// Outputs of one request, without a batch dimension.
pub type Outputs = Vec<Tensor>;

/// A model that answers requests, one batch at a time.
///
/// The executor runs it on a dedicated thread, so it may block, unless it [runs inline](Self::runs_inline). It never receives an
/// empty batch.
pub trait Model: Send {
    /// The inputs that a request must have. They are checked before a request is queued, so `run` receives only inputs
    /// that match. An empty signature accepts anything.
    fn signature(&self) -> Signature {
        Signature::default()
    }

    /// Returns what the model answers, as far as it is known before the first request. Workers announce it, so that a gateway can
    /// describe the app, and an ingress knows the names of the classes.
    fn answers(&self) -> Answers {
        Answers::default()
    }

    /// Runs one batch and returns one result per request, in the same order. A request that cannot be answered fails
    /// alone.
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>>;

    /// Returns whether batches run on the thread that routes their results, instead of a thread of their own: for a model that
    /// never waits for anything, and whose batches take less time than a switch between threads, some tens of microseconds.
    /// Everything else on that thread waits meanwhile, so a model whose batches take longer than 1 ms three times in a row is
    /// given a thread of its own. A model that batches continuously always has one.
    fn runs_inline(&self) -> bool {
        false
    }

    /// Returns the interface for continuous batching, or `None` if the model only runs whole batches.
    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        None
    }

    /// Returns the model's availability flag, or `None` if nothing but this process decides whether it can answer. A model
    /// behind an endpoint that is down cannot; its replica is avoided until it can again.
    fn availability(&self) -> Option<Availability> {
        None
    }
}

/// Availability flag of a model: whether it can answer at present. Clones share it.
#[derive(Debug, Clone)]
pub struct Availability(Arc<AtomicBool>);

impl Default for Availability {
    /// True by default.
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Availability {
    /// Returns whether the model can answer.
    pub fn is_available(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets whether the model can answer. Returns whether that is a change.
    pub fn set(&self, available: bool) -> bool {
        self.0.swap(available, Ordering::Relaxed) != available
    }
}

/// Continuous batching: requests join and leave a model's batch between two of its steps.
/// [`Model::continuous`](crate::Model::continuous) returns it for models that support it.
///
/// The caller identifies requests by numbers that are unique among the requests in flight.
pub trait Continuous {
    /// Accepts a request; the following steps report its progress.
    ///
    /// # Errors
    /// [`ModelError`] if the request cannot be answered.
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError>;

    /// Accepts a request that must be answered within `budget`. A model that computes needs no such limit: the caller
    /// cancels late requests between two steps. One that waits for others ends the request itself.
    ///
    /// # Errors
    /// As [`Continuous::submit`].
    fn submit_within(&mut self, number: u64, inputs: &Inputs, _budget: Duration) -> Result<(), ModelError> {
        self.submit(number, inputs)
    }

    /// Cancels a request if it is in flight; later steps report nothing about it.
    fn cancel(&mut self, number: u64);

    /// Returns what ends a step that waits, or `None` if no step waits for anything but the processor. The time of steps
    /// that wait is no run time of this machine.
    fn waker(&self) -> Option<Waker> {
        None
    }

    /// Returns what turns requests into inputs that the model reads faster, such as texts into tokens, or `None` if there
    /// is nothing to do before. The executor calls it on another thread than the model's.
    fn preprocessor(&self) -> Option<Preprocessor> {
        None
    }

    /// Runs one step for all requests in flight and returns their progress.
    fn step(&mut self) -> Vec<Progress>;
}

/// Preprocesses inputs off the model thread, for example by tokenisation; `None` if they stay as they are, also if they are
/// wrong. May be called from any thread.
pub type Preprocessor = Arc<dyn Fn(&Inputs) -> Option<Inputs> + Send + Sync>;

/// Ends a step of a [`Continuous`] model that waits; may be called from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Progress of a request in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Number of the request.
    pub number: u64,
    /// Output units so far, the new ones included: tokens of a language model.
    pub pieces: u32,
    /// New part of the answer, for streaming; may be empty.
    pub part: Outputs,
    /// Final result or error once the request has ended.
    pub end: Option<Result<Outputs, ModelError>>,
}

/// The inputs that a model takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// The inputs the model knows; it rejects others.
    pub inputs: Vec<InputSpec>,
}

/// An input of a [`Signature`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub datatype: Datatype,
    /// Its dimensions, without the batch dimension.
    pub shape: Vec<Extent>,
    /// Whether a request may omit it.
    pub optional: bool,
}

impl InputSpec {
    /// An input that every request must have.
    pub fn required(name: impl Into<String>, datatype: Datatype, shape: Vec<Extent>) -> Self {
        Self {
            name: name.into(),
            datatype,
            shape,
            optional: false,
        }
    }

    /// An input that a request may omit.
    pub fn optional(name: impl Into<String>, datatype: Datatype, shape: Vec<Extent>) -> Self {
        Self {
            optional: true,
            ..Self::required(name, datatype, shape)
        }
    }
}

/// Input that holds the seed of a request for which neither the request nor the app states one. Models behind endpoints choose their own.
pub const DEFAULT_SEED: &str = "default_seed";

/// Input that holds the temperature of a request for which neither the request, nor the app, nor the checkpoint states one.
pub const DEFAULT_TEMPERATURE: &str = "default_temperature";

/// Inputs that the gateway adds to requests of language models. Models that do not sample ignore them.
const DEFAULTS: [&str; 2] = [DEFAULT_SEED, DEFAULT_TEMPERATURE];

/// Why a text is refused by a model that takes the tokens of one.
pub(crate) const NO_TOKENIZER: &str = "this checkpoint has no tokenizer.json, and no files that a known tokenizer is built from \
     (such as vocab.txt, spiece.model, or source.spm with vocab.json); transformers writes them: \
     AutoTokenizer.from_pretrained(NAME).save_pretrained(DIRECTORY). Or send `input_ids`";

impl Signature {
    /// Checks that the inputs are known and complete, match in type and shape, and are finite. The inputs [`DEFAULT_SEED`] and
    /// [`DEFAULT_TEMPERATURE`] are known to all models, which may ignore them.
    ///
    /// # Errors
    /// The first [`ModelError`] found, naming the input.
    pub fn check(&self, inputs: &[Tensor]) -> Result<(), ModelError> {
        if self.inputs.is_empty() {
            return Ok(());
        }
        if let Some(unknown) = inputs
            .iter()
            .filter(|input| !DEFAULTS.contains(&input.name.as_str()))
            .find(|input| !self.inputs.iter().any(|spec| spec.name == input.name))
        {
            let names = self.names();
            let has = |name: &str| names.iter().any(|known| known == name);
            let is_text = matches!(unknown.name.as_str(), "text" | "text_pair" | "messages");
            if is_text && has("input_ids") && !has("text") {
                return Err(ModelError::BadInput {
                    name: unknown.name.clone(),
                    reason: NO_TOKENIZER.into(),
                });
            }
            return Err(ModelError::UnknownInput {
                name: unknown.name.clone(),
                expected: names,
            });
        }
        for spec in &self.inputs {
            let mut named = inputs.iter().filter(|input| input.name == spec.name);
            let Some(input) = named.next() else {
                if spec.optional {
                    continue;
                }
                return Err(ModelError::MissingInput {
                    name: spec.name.clone(),
                    expected: self.names(),
                });
            };
            if named.next().is_some() {
                return Err(ModelError::RepeatedInput {
                    name: spec.name.clone(),
                });
            }
            spec.check(input)?;
        }
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        self.inputs.iter().map(|spec| spec.name.clone()).collect()
    }
}

/// Returns the outputs if they can be served: at least one, each well-formed, not empty and finite.
///
/// # Errors
/// [`ModelError::BadOutput`] for the first that is not.
pub fn check_outputs(outputs: Outputs) -> Result<Outputs, ModelError> {
    let bad = |reason: String| ModelError::BadOutput { reason };
    if outputs.is_empty() {
        return Err(bad("it has no outputs".into()));
    }
    outputs
        .into_iter()
        .map(|output| {
            let output = output.checked().map_err(|error| bad(error.to_string()))?;
            if output.data.is_empty() {
                return Err(bad(format!("output `{}` is empty", output.name)));
            }
            output.check_finite().map_err(|error| bad(error.to_string()))?;
            Ok(output)
        })
        .collect()
}

impl InputSpec {
    fn check(&self, input: &Tensor) -> Result<(), ModelError> {
        if input.datatype != self.datatype {
            return Err(TensorError::WrongDatatype {
                name: input.name.clone(),
                expected: self.datatype.name(),
                actual: input.datatype.name(),
            }
            .into());
        }
        if let ([Extent::Tokens(limit)], [tokens]) = (self.shape.as_slice(), input.shape.as_slice())
            && tokens > limit
        {
            return Err(ModelError::TooLong {
                reason: format!(
                    "`{}` has {tokens} tokens and this model takes {limit} at most; shorten it",
                    self.name
                ),
            });
        }
        let fits = input.shape.len() == self.shape.len()
            && input
                .shape
                .iter()
                .zip(&self.shape)
                .all(|(actual, extent)| extent.holds(*actual));
        if !fits {
            return Err(ModelError::WrongShape {
                name: input.name.clone(),
                expected: self
                    .shape
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
                actual: input.shape.clone(),
            });
        }
        input.check_finite()?;
        Ok(())
    }
}

/// Returns the kind of a model with inputs of these names, as far as they tell.
fn kind_of(inputs: &[String]) -> &'static str {
    let takes = |name: &str| inputs.iter().any(|input| input == name);
    if takes("max_tokens") {
        "language model"
    } else {
        "model"
    }
}

/// Why a model did not answer a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// An input is not a well-formed tensor of the right type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A required input is missing.
    #[error("input `{name}` is missing; this model takes {}", expected.join(", "))]
    MissingInput {
        /// The input.
        name: String,
        /// All inputs it takes.
        expected: Vec<String>,
    },
    /// An input that the model does not take.
    #[error("input `{name}` is unknown; this {} takes {}", kind_of(expected), expected.join(", "))]
    UnknownInput {
        /// The input.
        name: String,
        /// All inputs it takes.
        expected: Vec<String>,
    },
    /// An input is given twice.
    #[error("input `{name}` is given more than once")]
    RepeatedInput {
        /// The input.
        name: String,
    },
    /// An input has the wrong shape.
    #[error("input `{name}` has shape {actual:?}; this model takes [{expected}]")]
    WrongShape {
        /// The input.
        name: String,
        /// The shape the model takes, as text.
        expected: String,
        /// The shape received.
        actual: Vec<usize>,
    },
    /// An input has the right type and shape, but values that the model cannot use, such as an unknown token.
    #[error("input `{name}` cannot be used: {reason}")]
    BadInput {
        /// The input.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The request, with its answer, has more tokens than the model or its cache takes.
    #[error("the request is too long for the model: {reason}")]
    TooLong {
        /// The reason.
        reason: String,
    },
    /// The outputs cannot be served: empty, malformed, NaN or infinite.
    #[error("the model's output cannot be served: {reason}")]
    BadOutput {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model does not answer now; the same request may succeed later.
    #[error("the endpoint is unavailable: {reason}")]
    Unavailable {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model finds the request invalid; the same request fails again.
    #[error("the endpoint finds the request invalid: {reason}")]
    InvalidRequest {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model refuses the request, its key or its user for good.
    #[error("the endpoint refused the request: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model was not called, because a limit of spending would be exceeded.
    #[error("the endpoint was not called: {reason}")]
    SpendLimit {
        /// The reason.
        reason: String,
    },
    /// The budget of the request ended before the endpoint behind the model had answered.
    #[error("the budget ended before the endpoint had answered: {reason}")]
    Late {
        /// What was awaited.
        reason: String,
    },
    /// The model itself failed.
    #[error("the model failed: {reason}")]
    Failed {
        /// The reason.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature() -> Signature {
        Signature {
            inputs: vec![
                InputSpec::required("image", Datatype::F32, vec![Extent::Exactly(2), Extent::UpTo(3)]),
                InputSpec::optional("weight", Datatype::F32, vec![Extent::Exactly(1)]),
            ],
        }
    }

    #[test]
    fn matching_inputs_pass() {
        let image = Tensor::from_f32("image", &[2, 3], &[0.0; 6]).unwrap();
        assert_eq!(signature().check(std::slice::from_ref(&image)), Ok(()));
        let seed = Tensor::from_i64("default_seed", &[1], &[3]).unwrap();
        assert_eq!(signature().check(&[image.clone(), seed]), Ok(()), "ignored");
        let weight = |shape: &[usize]| Tensor::from_f32("weight", shape, &vec![0.0; shape[0]]).unwrap();
        assert_eq!(signature().check(&[image.clone(), weight(&[1])]), Ok(()));
        assert!(matches!(
            signature().check(&[image, weight(&[2])]),
            Err(ModelError::WrongShape { .. })
        ));
    }

    #[test]
    fn invalid_outputs_are_rejected() {
        let logits = |values: &[f32]| Tensor::from_f32("logits", &[values.len()], values).unwrap();
        assert!(check_outputs(vec![logits(&[0.5, -0.5])]).is_ok());
        for rejected in [
            vec![],
            vec![logits(&[])],
            vec![logits(&[1.0]), logits(&[0.0, f32::NAN])],
            vec![logits(&[f32::NEG_INFINITY])],
            vec![Tensor {
                shape: vec![3],
                ..logits(&[1.0])
            }],
        ] {
            assert!(matches!(
                check_outputs(rejected),
                Err(ModelError::BadOutput { .. })
            ));
        }
    }

    #[test]
    fn each_mismatch_names_the_input() {
        let image =
            |shape: &[usize]| Tensor::from_f32("image", shape, &vec![0.0; shape.iter().product()]).unwrap();
        let check = |inputs: &[Tensor]| signature().check(inputs).unwrap_err();
        assert!(matches!(check(&[]), ModelError::MissingInput { .. }));
        assert!(matches!(
            check(&[image(&[2, 3]), image(&[2, 3])]),
            ModelError::RepeatedInput { .. }
        ));
        assert_eq!(
            check(&[image(&[2, 4])]).to_string(),
            "input `image` has shape [2, 4]; this model takes [2, 1..=3]"
        );
        let other = Tensor {
            name: "mask".into(),
            ..image(&[2, 3])
        };
        assert!(matches!(
            check(&[image(&[2, 3]), other]),
            ModelError::UnknownInput { .. }
        ));
        assert_eq!(
            check(&[image(&[2, 3]), Tensor::from_f32("text", &[1], &[0.0]).unwrap()]).to_string(),
            "input `text` is unknown; this model takes image, weight"
        );
        assert_eq!(
            kind_of(&["text".to_owned(), "max_tokens".to_owned()]),
            "language model"
        );
        let nan = Tensor::from_f32("image", &[2, 1], &[0.0, f32::NAN]).unwrap();
        assert!(matches!(
            check(&[nan]),
            ModelError::Tensor(TensorError::NotFinite { .. })
        ));
    }
}
