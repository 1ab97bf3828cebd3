//! Synthetic requests built from a signature, to measure memory and to warm up a device.

use thiserror::Error;

use super::datatype::Datatype;
use super::model::{Extent, InputSpec, Inputs, Signature};
use super::tensor::{Tensor, TensorError};

/// Number of words of a synthetic text.
const WORDS: usize = 16;

/// Size of a synthetic request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleSize {
    /// Maximum size of a variable dimension; the model's maximum applies if it is smaller.
    pub elements: usize,
    /// Number of tokens that a language model generates.
    pub tokens: usize,
}

impl SampleSize {
    /// The longest request that a model accepts. A language model generates one token.
    pub const LONGEST: Self = Self {
        elements: usize::MAX,
        tokens: 1,
    };
}

/// Why no synthetic request can be built.
#[derive(Debug, Error)]
pub enum SampleError {
    /// An input is of a type without synthetic values.
    #[error("input `{input}` is {datatype:?}; no synthetic values exist for this type")]
    Input {
        /// Name of the input.
        input: String,
        /// Type of the input.
        datatype: Datatype,
    },
    /// The request is not a valid tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Builds a request of ones; a text has 16 words for any size. If all inputs are optional, chooses tokens rather
/// than a text, because the length of a text depends on the tokenizer.
///
/// # Errors
/// [`SampleError`].
pub fn sample_request(signature: &Signature, size: SampleSize) -> Result<Inputs, SampleError> {
    let named = |name: &str| signature.inputs.iter().find(|input| input.name == name);
    if let (Some(ids), Some(_)) = (named("input_ids"), named("max_tokens")) {
        let most: usize = ids.shape.iter().map(Extent::most).product();
        let prompt = most.saturating_sub(size.tokens).min(size.elements).max(1);
        return Ok(vec![
            Tensor::from_i64("input_ids", &[prompt], &vec![1; prompt])?,
            Tensor::from_i64(
                "max_tokens",
                &[1],
                &[i64::try_from(size.tokens).unwrap_or(i64::MAX)],
            )?,
        ]);
    }
    let needed: Vec<&InputSpec> = signature.inputs.iter().filter(|input| !input.optional).collect();
    let tokens = signature
        .inputs
        .iter()
        .find(|input| input.datatype != Datatype::Bytes);
    let either = if needed.is_empty() {
        tokens.or(signature.inputs.first())
    } else {
        None
    };
    let inputs = needed.into_iter().chain(either);
    inputs.map(|spec| input(spec, size)).collect()
}

impl Extent {
    const fn most(&self) -> usize {
        match self {
            Self::Exactly(size) | Self::UpTo(size) | Self::AtMost(size) | Self::Tokens(size) => *size,
        }
    }
}

fn input(spec: &InputSpec, size: SampleSize) -> Result<Tensor, SampleError> {
    let shape: Vec<usize> = spec
        .shape
        .iter()
        .map(|extent| match extent {
            Extent::Exactly(exactly) => *exactly,
            Extent::UpTo(most) | Extent::AtMost(most) | Extent::Tokens(most) => size.elements.min(*most),
        })
        .collect();
    let elements = shape.iter().product();
    let tensor = match spec.datatype {
        Datatype::F32 => Tensor::from_f32(&spec.name, &shape, &vec![1.0; elements])?,
        Datatype::I64 => Tensor::from_i64(&spec.name, &shape, &vec![1; elements])?,
        Datatype::Bytes => {
            let text = vec!["film"; WORDS].join(" ");
            Tensor::from_texts(&spec.name, &vec![text.as_str(); elements.max(1)])?
        }
        datatype => {
            return Err(SampleError::Input {
                input: spec.name.clone(),
                datatype,
            });
        }
    };
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(inputs: Vec<InputSpec>) -> Signature {
        Signature { inputs }
    }

    #[test]
    fn dimensions_that_may_vary_are_bounded() {
        let image = InputSpec::required(
            "pixels",
            Datatype::F32,
            vec![Extent::Exactly(3), Extent::UpTo(100)],
        );
        let of = |elements| {
            let size = SampleSize { elements, tokens: 1 };
            sample_request(&signature(vec![image.clone()]), size)
                .unwrap()
                .remove(0)
                .shape
        };
        assert_eq!(of(7), [3, 7]);
        assert_eq!(of(usize::MAX), [3, 100]);
    }

    #[test]
    fn a_language_model_has_room_for_its_answer() {
        let ids = InputSpec::optional("input_ids", Datatype::I64, vec![Extent::UpTo(10)]);
        let most = InputSpec::optional("max_tokens", Datatype::I64, vec![Extent::Exactly(1)]);
        let of = |size| {
            let request = sample_request(&signature(vec![ids.clone(), most.clone()]), size).unwrap();
            (request[0].shape.clone(), request[1].to_i64().unwrap())
        };
        assert_eq!(of(SampleSize::LONGEST), (vec![9], vec![1]));
        let size = SampleSize {
            elements: 4,
            tokens: 3,
        };
        assert_eq!(of(size), (vec![4], vec![3]));
    }
}
