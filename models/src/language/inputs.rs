//! Text inputs, and errors that name an input.

use crate::runtime::model::ModelError;
use crate::runtime::tensor::Tensor;

/// Maximum text of a request, bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Returns the text of a tensor with one element.
///
/// # Errors
/// [`ModelError`] if the text is too long, or the tensor does not hold one text.
pub fn only_text(input: &Tensor) -> Result<&str, ModelError> {
    check_length(&input.name, input.data.len())?;
    Ok(input.to_texts()?.into_iter().next().unwrap_or_default())
}

/// Rejects a text that exceeds the maximum length of a request.
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
