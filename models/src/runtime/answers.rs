//! Outputs and class names of a model, announced to clients before their first request.

use super::datatype::Datatype;
use super::model::{Availability, Continuous, Inputs, Model, ModelError, Outputs, Signature};
use super::sample_request::{SampleSize, sample_request};

/// Sizes of the synthetic requests that show which output dimensions vary: elements, and tokens of a language model.
const SIZES: [SampleSize; 2] = [
    SampleSize {
        elements: 4,
        tokens: 1,
    },
    SampleSize {
        elements: 6,
        tokens: 2,
    },
];

/// Description of the answers of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answers {
    /// Outputs; empty if they are unknown.
    pub outputs: Vec<OutputSpec>,
    /// Class names in the order of the logits; empty if there are no classes, or they have no names.
    pub labels: Vec<String>,
}

/// Specification of an output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSpec {
    /// Name of the output.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Dimensions, without the batch dimension; `None` for a dimension whose size varies.
    pub shape: Vec<Option<usize>>,
}

/// Runs synthetic requests of two sizes and returns the observed outputs; empty if the model takes no synthetic
/// request.
pub fn observe_outputs(model: &mut dyn Model) -> Vec<OutputSpec> {
    let signature = model.signature();
    if signature.inputs.is_empty() {
        return Vec::new();
    }
    let mut observed: Vec<OutputSpec> = Vec::new();
    let mut asked: Option<Inputs> = None;
    for size in SIZES {
        let Ok(request) = sample_request(&signature, size) else {
            return observed;
        };
        if asked.as_ref() == Some(&request) {
            break;
        }
        for outputs in model.run(std::slice::from_ref(&request)).into_iter().flatten() {
            add(&mut observed, &outputs);
        }
        asked = Some(request);
    }
    observed
}

fn add(observed: &mut Vec<OutputSpec>, outputs: &Outputs) {
    for output in outputs {
        match observed.iter_mut().find(|known| known.name == output.name) {
            None => observed.push(OutputSpec {
                name: output.name.clone(),
                datatype: output.datatype,
                shape: output.shape.iter().copied().map(Some).collect(),
            }),
            Some(known) if known.shape.len() == output.shape.len() => {
                for (extent, now) in known.shape.iter_mut().zip(&output.shape) {
                    *extent = extent.filter(|before| before == now);
                }
            }
            Some(known) => known.shape = vec![None; output.shape.len()],
        }
    }
}

/// A model with the description of its answers.
pub struct Described {
    model: Box<dyn Model>,
    answers: Answers,
}

impl Described {
    /// Attaches the description of its answers to a model.
    pub fn new(model: Box<dyn Model>, answers: Answers) -> Self {
        Self { model, answers }
    }
}

impl Model for Described {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.model.check_request(inputs)
    }

    fn answers(&self) -> Answers {
        self.answers.clone()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.model.run(batch)
    }

    fn runs_inline(&self) -> bool {
        self.model.runs_inline()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        self.model.continuous()
    }

    fn availability(&self) -> Option<Availability> {
        self.model.availability()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::model::{Extent, InputSpec};
    use crate::runtime::tensor::Tensor;

    /// Test model: returns the input vector and the sum of its elements.
    struct Sums;

    impl Model for Sums {
        fn signature(&self) -> Signature {
            Signature {
                inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::UpTo(40)])],
            }
        }

        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let answer = |inputs: &Inputs| {
                let values = inputs[0].to_f32()?;
                let vectors = vec![0.0; values.len() * 3];
                Ok(vec![
                    Tensor::from_f32("vectors", &[values.len(), 3], &vectors)?,
                    Tensor::from_f32("sum", &[1], &[values.iter().sum()])?,
                ])
            };
            batch.iter().map(answer).collect()
        }
    }

    #[test]
    fn outputs_are_observed_with_the_dimensions_that_vary() {
        let output = |name: &str, shape: &[Option<usize>]| OutputSpec {
            name: name.to_owned(),
            datatype: Datatype::F32,
            shape: shape.to_vec(),
        };
        assert_eq!(
            observe_outputs(&mut Sums),
            [output("vectors", &[None, Some(3)]), output("sum", &[Some(1)])]
        );
    }

    #[test]
    fn a_described_model_is_that_model() {
        let answers = Answers {
            labels: vec!["sea".to_owned()],
            outputs: observe_outputs(&mut Sums),
        };
        let mut described = Described::new(Box::new(Sums), answers.clone());
        assert_eq!(described.answers(), answers);
        assert_eq!(described.signature(), Sums.signature());
        let request = vec![Tensor::from_f32("x", &[2], &[1.0, 2.0]).unwrap()];
        let batch = [request];
        assert_eq!(described.run(&batch), Sums.run(&batch));
        assert!(!described.runs_inline() && described.continuous().is_none());
    }
}
