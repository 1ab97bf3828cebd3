//! Inputs that are texts, and errors that name an input.

use crate::runtime::model::ModelError;
use crate::runtime::tensor::Tensor;

/// Maximum text of a request, bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Returns the one text of a tensor.
///
/// # Errors
/// [`ModelError`] if it is too long or no text.
pub fn only_text(input: &Tensor) -> Result<&str, ModelError> {
    check_length(&input.name, input.data.len())?;
    Ok(input.to_texts()?.into_iter().next().unwrap_or_default())
}

/// Refuses a text of more bytes than a request may have.
///
/// # Errors
/// [`ModelError::BadInput`].
pub(super) fn check_length(name: &str, bytes: usize) -> Result<(), ModelError> {
    if bytes > MAX_TEXT_BYTES {
        let reason = format!("it is longer than {MAX_TEXT_BYTES} bytes");
        return Err(bad_input(name, reason));
    }
    Ok(())
}

pub(super) fn bad_input(name: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadInput {
        name: name.to_owned(),
        reason: reason.into(),
    }
}
