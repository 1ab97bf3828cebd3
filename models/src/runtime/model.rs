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
/// The executor runs a model on a dedicated thread, so a model may block, unless it [runs inline](Self::runs_inline).
/// A batch is never empty.
pub trait Model: Send {
    /// Returns the inputs of a request. Requests are checked against them before they are queued, so `run` receives
    /// only matching inputs. An empty signature accepts anything.
    fn signature(&self) -> Signature {
        Signature::default()
    }

    /// Checks a request as [`run`](Self::run) does before it computes, for example that its text has a length that the
    /// model takes. The default checks the [signature](Self::signature) only.
    ///
    /// # Errors
    /// The [`ModelError`] with which `run` rejects the request.
    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.signature().check(inputs)
    }

    /// Returns the model's outputs and class names, as far as they are known before the first request. Workers
    /// announce them, so that a gateway can describe the app and an ingress knows the class names.
    fn answers(&self) -> Answers {
        Answers::default()
    }

    /// Runs one batch and returns one result per request, in request order. A request that cannot be answered fails
    /// alone.
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>>;

    /// Returns whether batches run on the thread that routes their results instead of a dedicated thread. Meant for
    /// models that never block and whose batches take less time than a thread switch, some tens of microseconds.
    ///
    /// An inline batch blocks that thread, so a model whose batches take longer than 1 ms three times in a row gets a
    /// dedicated thread. A model with continuous batching always has one.
    fn runs_inline(&self) -> bool {
        false
    }

    /// Returns the interface for continuous batching, or `None` if the model only runs whole batches.
    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        None
    }

    /// Returns the model's availability flag, or `None` if the model is always available. A model behind an endpoint
    /// that is down is not; routers avoid its replica until the flag is set again.
    fn availability(&self) -> Option<Availability> {
        None
    }
}

/// Flag that says whether a model can answer at present. Clones share it.
#[derive(Debug, Clone)]
pub struct Availability(Arc<AtomicBool>);

impl Default for Availability {
    /// Returns a flag that is set.
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Availability {
    /// Returns whether the model can answer.
    pub fn is_available(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets whether the model can answer. Returns whether the flag changed.
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

    /// Accepts a request that must be answered within `budget`. A model that computes can ignore the budget: the
    /// caller cancels late requests between steps. A model that waits for others must end the request itself.
    ///
    /// # Errors
    /// Same as [`Continuous::submit`].
    fn submit_within(&mut self, number: u64, inputs: &Inputs, _budget: Duration) -> Result<(), ModelError> {
        self.submit(number, inputs)
    }

    /// Cancels a request if it is in flight; later steps do not report it.
    fn cancel(&mut self, number: u64);

    /// Returns the function that wakes a waiting step, or `None` if steps only compute. The duration of a step that
    /// waits is not counted as run time of this machine.
    fn waker(&self) -> Option<Waker> {
        None
    }

    /// Returns the function that converts requests to inputs that the model parses faster, such as texts to tokens, or
    /// `None` if there is no preprocessing. The executor calls it on another thread than the model's.
    fn preprocessor(&self) -> Option<Preprocessor> {
        None
    }

    /// Runs one step for all requests in flight and returns their progress.
    fn step(&mut self) -> Vec<Progress>;
}

/// Preprocesses inputs off the model's thread, for example by tokenization. Returns `None` to leave the inputs
/// unchanged, also if they are invalid. May be called from any thread.
pub type Preprocessor = Arc<dyn Fn(&Inputs) -> Option<Inputs> + Send + Sync>;

/// Wakes a waiting step of a [`Continuous`] model; may be called from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Progress of a request in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Number of the request.
    pub number: u64,
    /// Output units so far, including new ones; tokens of a language model.
    pub pieces: u32,
    /// New part of the answer, for streaming; may be empty.
    pub part: Outputs,
    /// Final result or error once the request has ended.
    pub end: Option<Result<Outputs, ModelError>>,
}

/// Input specification of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Accepted inputs; others are rejected.
    pub inputs: Vec<InputSpec>,
}

/// Specification of an input in a [`Signature`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Name of the input.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Dimensions, without the batch dimension.
    pub shape: Vec<Extent>,
    /// Whether a request may omit it.
    pub optional: bool,
}

impl InputSpec {
    /// Creates an input that every request must have.
    pub fn required(name: impl Into<String>, datatype: Datatype, shape: Vec<Extent>) -> Self {
        Self {
            name: name.into(),
            datatype,
            shape,
            optional: false,
        }
    }

    /// Creates an input that a request may omit.
    pub fn optional(name: impl Into<String>, datatype: Datatype, shape: Vec<Extent>) -> Self {
        Self {
            optional: true,
            ..Self::required(name, datatype, shape)
        }
    }
}

/// Name of the input with the seed to use if neither the request nor the app states one. Models behind endpoints
/// choose their own.
pub const DEFAULT_SEED: &str = "default_seed";

/// Name of the input with the temperature to use if neither the request, the app nor the checkpoint states one.
pub const DEFAULT_TEMPERATURE: &str = "default_temperature";

/// Inputs that the gateway adds to requests of language models. Models that do not sample ignore them.
const DEFAULTS: [&str; 2] = [DEFAULT_SEED, DEFAULT_TEMPERATURE];

/// Reason for rejecting a text if the checkpoint has no tokenizer.
pub(crate) const NO_TOKENIZER: &str = "this checkpoint has no tokenizer.json, and no vocabulary files of a tokenizer class that is built from them \
     (such as vocab.txt of BERT, spiece.model of T5, or source.spm with vocab.json of Marian); transformers writes tokenizer.json: \
     AutoTokenizer.from_pretrained(NAME).save_pretrained(DIRECTORY). Or send `input_ids`";

impl Signature {
    /// Checks that the inputs are specified and complete, match in type and shape, and are finite. Every model accepts
    /// the inputs [`DEFAULT_SEED`] and [`DEFAULT_TEMPERATURE`], which it may ignore.
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

/// Returns the outputs if they are valid: at least one, each well-formed, not empty and finite.
///
/// # Errors
/// [`ModelError::BadOutput`] for the first invalid output.
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

/// Returns the kind of a model, guessed from the names of its inputs.
fn kind_of(inputs: &[String]) -> &'static str {
    let takes = |name: &str| inputs.iter().any(|input| input == name);
    if takes("max_tokens") {
        "language model"
    } else {
        "model"
    }
}

/// Returns why a model does not take an input that others of its kind take.
fn note_on(input: &str) -> &'static str {
    // The input of models with an image processor.
    if input == "image_file" {
        ": image files need a `preprocessor_config.json` beside the weights"
    } else {
        ""
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
        /// All inputs that the model takes.
        expected: Vec<String>,
    },
    /// An input that the model does not take.
    #[error("input `{name}` is unknown; this {} takes {}{}", kind_of(expected), expected.join(", "), note_on(name))]
    UnknownInput {
        /// The input.
        name: String,
        /// All inputs that the model takes.
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
        /// The shape that the model takes, as text.
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
    /// The request has more tokens, prompt and answer together, than the model or its cache can hold.
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
    /// The endpoint behind the model does not respond; the same request may succeed later.
    #[error("the endpoint is unavailable: {reason}")]
    Unavailable {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model considers the request invalid; a retry would fail too.
    #[error("the endpoint finds the request invalid: {reason}")]
    InvalidRequest {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model permanently refuses the request, its key or its user.
    #[error("the endpoint refused the request: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The endpoint behind the model was not called, because a spending limit would be exceeded.
    #[error("the endpoint was not called: {reason}")]
    SpendLimit {
        /// The reason.
        reason: String,
    },
    /// The request's budget ended before the endpoint behind the model answered.
    #[error("the budget ended before the endpoint had answered: {reason}")]
    Late {
        /// The pending operation.
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
        let file = Tensor::from_texts("image_file", &["x"]).unwrap();
        let unknown = check(&[image(&[2, 3]), file]).to_string();
        assert!(
            unknown.ends_with("image files need a `preprocessor_config.json` beside the weights"),
            "{unknown}"
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
