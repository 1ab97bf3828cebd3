//! Allowed sizes of the dimensions of an input.

/// Allowed sizes of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Exactly this size.
    Exactly(usize),
    /// Any size from 1 to this, such as a sequence length.
    UpTo(usize),
    /// Any size from 0 to this.
    AtMost(usize),
    /// Any number of tokens from 1 to this. A request with more tokens fails with
    /// [`ModelError::TooLong`](super::model::ModelError::TooLong), so that a model with a longer context can answer
    /// it.
    Tokens(usize),
}

impl Extent {
    /// Returns whether a dimension may have this size.
    pub(crate) fn holds(self, size: usize) -> bool {
        match self {
            Self::Exactly(expected) => size == expected,
            Self::UpTo(limit) | Self::Tokens(limit) => (1..=limit).contains(&size),
            Self::AtMost(limit) => size <= limit,
        }
    }
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(extent) => write!(f, "{extent}"),
            Self::UpTo(limit) | Self::Tokens(limit) => write!(f, "1..={limit}"),
            Self::AtMost(limit) => write!(f, "0..={limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::model::{InputSpec, ModelError, Signature};
    use crate::runtime::tensor::{Datatype, Tensor};

    #[test]
    fn more_tokens_than_a_model_takes_are_too_long() {
        let signature = Signature {
            inputs: vec![InputSpec::optional(
                "input_ids",
                Datatype::I64,
                vec![Extent::Tokens(3)],
            )],
        };
        let check = |count: usize| {
            signature.check(&[Tensor::from_i64("input_ids", &[count], &vec![1; count]).unwrap()])
        };
        assert_eq!(check(3), Ok(()));
        assert!(matches!(check(4), Err(ModelError::TooLong { .. })));
        assert!(matches!(check(0), Err(ModelError::WrongShape { .. })));
    }
}
