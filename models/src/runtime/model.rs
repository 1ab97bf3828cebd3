//! The one trait that everything servable implements.

use thiserror::Error;

use crate::runtime::tensor::{Datatype, Tensor, TensorError};

/// What one request brings: its input tensors, without a batch dimension.
pub type Inputs = Vec<Tensor>;

/// What one request gets: its output tensors, without a batch dimension.
pub type Outputs = Vec<Tensor>;

/// Something that answers requests, one batch at a time.
///
/// It lives on a thread of its own and may block. It is called with one batch at a time and never with an empty one.
pub trait Model: Send {
    /// What a request must bring. Checked before a request is queued, so that `run` only sees inputs that fit; an empty
    /// signature accepts anything.
    fn signature(&self) -> Signature {
        Signature::default()
    }

    /// Runs one batch: one result per request, in the same order. A request that cannot be answered fails alone.
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>>;

    /// The same model for requests that come and go between its steps; `None` for one that answers whole batches only.
    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        None
    }
}

/// Something that takes and finishes requests while others run. A model says that it is so by
/// [`Model::continuous`](crate::Model::continuous).
///
/// Requests go by numbers that the caller gives, each unlike every other under way.
pub trait Continuous {
    /// Takes a request; the next steps tell of it.
    ///
    /// # Errors
    /// [`ModelError`] for one that cannot be answered.
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError>;

    /// Ends a request, if it is under way; nothing more is told of it.
    fn cancel(&mut self, number: u64);

    /// Takes all requests under way one step on: what is new of each.
    fn step(&mut self) -> Vec<Progress>;
}

/// What is new of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The request.
    pub number: u64,
    /// Pieces that its answer has by now, the new ones included: of a language model, tokens.
    pub pieces: u32,
    /// What is new of the answer, for whoever reads along; it may be empty.
    pub part: Outputs,
    /// What it came to, or why it came to nothing, once it has ended.
    pub end: Option<Result<Outputs, ModelError>>,
}

/// The inputs that a model takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// The ones it knows; others are refused.
    pub inputs: Vec<InputSpec>,
}

/// One input of a [`Signature`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub datatype: Datatype,
    /// Its extents, without the batch dimension.
    pub shape: Vec<Extent>,
    /// Whether a request may leave it out.
    pub optional: bool,
}

impl InputSpec {
    /// An input that every request must bring.
    pub fn required(name: impl Into<String>, datatype: Datatype, shape: Vec<Extent>) -> Self {
        Self {
            name: name.into(),
            datatype,
            shape,
            optional: false,
        }
    }

    /// An input that a request may leave out.
    pub fn optional(name: impl Into<String>, datatype: Datatype, shape: Vec<Extent>) -> Self {
        Self {
            optional: true,
            ..Self::required(name, datatype, shape)
        }
    }
}

/// What one dimension may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Exactly this.
    Exactly(usize),
    /// Anything from 1 to this, such as a sequence length.
    UpTo(usize),
}

impl Signature {
    /// Nothing, if the inputs are the ones it names, of its types and shapes, and finite.
    ///
    /// # Errors
    /// The first [`ModelError`] found, naming the input.
    pub fn check(&self, inputs: &[Tensor]) -> Result<(), ModelError> {
        if self.inputs.is_empty() {
            return Ok(());
        }
        if let Some(stranger) = inputs
            .iter()
            .find(|input| !self.inputs.iter().any(|spec| spec.name == input.name))
        {
            return Err(ModelError::UnknownInput {
                name: stranger.name.clone(),
                expected: self.names(),
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

/// The outputs themselves, if they can leave as an answer: at least one, each well-formed, not empty and finite.
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
        let fits = input.shape.len() == self.shape.len()
            && input
                .shape
                .iter()
                .zip(&self.shape)
                .all(|(actual, extent)| match extent {
                    Extent::Exactly(expected) => actual == expected,
                    Extent::UpTo(limit) => (1..=*limit).contains(actual),
                });
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

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(extent) => write!(f, "{extent}"),
            Self::UpTo(limit) => write!(f, "1..={limit}"),
        }
    }
}

/// Why a request was not answered by a model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModelError {
    /// An input is not a well-formed tensor of the right type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A required input is absent.
    #[error("input `{name}` is missing; this model takes {expected:?}")]
    MissingInput {
        /// The input.
        name: String,
        /// All inputs it takes.
        expected: Vec<String>,
    },
    /// An input that the model does not take.
    #[error("input `{name}` is not one of this model's: {expected:?}")]
    UnknownInput {
        /// The input.
        name: String,
        /// All inputs it takes.
        expected: Vec<String>,
    },
    /// The same input twice.
    #[error("input `{name}` is given more than once")]
    RepeatedInput {
        /// The input.
        name: String,
    },
    /// An input of the wrong shape.
    #[error("input `{name}` has shape {actual:?}; this model takes [{expected}]")]
    WrongShape {
        /// The input.
        name: String,
        /// The shape it takes, for people.
        expected: String,
        /// The shape received.
        actual: Vec<usize>,
    },
    /// An input of the right type and shape whose values the model cannot take, such as a token it does not know.
    #[error("input `{name}` cannot be used: {reason}")]
    BadInput {
        /// The input.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The model answered, and the answer must not leave: empty, ill-shaped, NaN or infinite.
    #[error("the model's answer cannot be served: {reason}")]
    BadOutput {
        /// What is wrong with it.
        reason: String,
    },
    /// The model itself failed.
    #[error("the model failed: {reason}")]
    Failed {
        /// What it said.
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
    fn inputs_that_fit_pass() {
        let image = Tensor::from_f32("image", &[2, 3], &[0.0; 6]).unwrap();
        assert_eq!(signature().check(std::slice::from_ref(&image)), Ok(()));
        let weight = |shape: &[usize]| Tensor::from_f32("weight", shape, &vec![0.0; shape[0]]).unwrap();
        assert_eq!(signature().check(&[image.clone(), weight(&[1])]), Ok(()));
        assert!(matches!(
            signature().check(&[image, weight(&[2])]),
            Err(ModelError::WrongShape { .. })
        ));
    }

    #[test]
    fn outputs_that_must_not_leave_are_refused() {
        let logits = |values: &[f32]| Tensor::from_f32("logits", &[values.len()], values).unwrap();
        assert!(check_outputs(vec![logits(&[0.5, -0.5])]).is_ok());
        for refused in [
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
                check_outputs(refused),
                Err(ModelError::BadOutput { .. })
            ));
        }
    }

    #[test]
    fn each_misfit_is_named() {
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
        let nan = Tensor::from_f32("image", &[2, 1], &[0.0, f32::NAN]).unwrap();
        assert!(matches!(
            check(&[nan]),
            ModelError::Tensor(TensorError::NotFinite { .. })
        ));
    }
}
