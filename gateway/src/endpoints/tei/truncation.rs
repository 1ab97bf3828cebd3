//! Handles texts that are longer than a model's context.

use std::sync::Arc;

use axum::http::StatusCode;
use kaskade_models::language::tokenization::CheckpointTokenizer;
use serde::Deserialize;

use super::check_count;
use super::tokens::MAX_BYTES;
use crate::http::failure::Failure;
use crate::state::{GatewayState, ServedApp};
use crate::tokenizer::refused;

/// The truncation fields of text-embeddings-inference. Models truncate at the end.
#[derive(Deserialize, Default)]
pub(super) struct Truncation {
    #[serde(default)]
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Option<String>,
}

impl Truncation {
    /// Checks that no sequence of a request with `truncate: false` is too long, if the gateway has the app's tokenizer.
    /// A sequence is a text, or a pair that the model reads together.
    ///
    /// # Errors
    /// `KSK0001`: with status 413 for a sequence that is too long; for no or too many sequences, for a direction other
    /// than `Right`, and for an unknown prompt.
    pub(super) async fn check(
        &self,
        shared: &GatewayState,
        app: &Arc<ServedApp>,
        sequences: impl ExactSizeIterator<Item = Vec<&str>>,
        prompt_name: Option<&str>,
    ) -> Result<(), Failure> {
        check_count(sequences.len())?;
        let direction = self.truncation_direction.as_deref();
        if direction.is_some_and(|direction| !direction.eq_ignore_ascii_case("right")) {
            return Err(Failure::param(
                "truncation_direction",
                "`truncation_direction` other than `Right` is not supported: models cut the end off; shorten the texts",
            ));
        }
        if self.truncate != Some(false) {
            return Ok(());
        }
        let owned = |texts: Vec<&str>| texts.into_iter().map(ToOwned::to_owned).collect();
        let sequences: Vec<Vec<String>> = sequences.map(owned).collect();
        if sequences.iter().flatten().map(String::len).sum::<usize>() > MAX_BYTES {
            return Err(too_large(format!(
                "the texts have more than {MAX_BYTES} bytes together; send several requests, or `truncate: true`"
            )));
        }
        let prompt_name = prompt_name.map(ToOwned::to_owned);
        let checked = app.tokenizer.run(&shared.tokenizing, move |tokenizer| {
            let Some(max_tokens) = tokenizer.context() else {
                return Ok(());
            };
            for texts in &sequences {
                let count = count(tokenizer, texts, prompt_name.as_deref())?;
                if count > max_tokens {
                    return Err(too_large(format!(
                        "a text has {count} tokens, and the model reads {max_tokens}; shorten it, or send `truncate: true`"
                    )));
                }
            }
            Ok(())
        });
        match checked.await {
            Err(failure) if failure.status == StatusCode::NOT_FOUND => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// Returns a lower bound of the number of tokens of a sequence, special tokens included, so that a sequence that fits
/// is never refused. The number of separators between two texts is unknown.
fn count(
    tokenizer: &CheckpointTokenizer,
    texts: &[String],
    prompt_name: Option<&str>,
) -> Result<usize, Failure> {
    let mut count = 0;
    for text in texts {
        let tokens = tokenizer.tokens(text, true, prompt_name);
        let tokens = tokens.map_err(|error| refused(error, None))?;
        let special = tokens.iter().filter(|token| token.span.is_none()).count();
        // The second text of a pair has no begin token.
        let beginning = if count == 0 { 0 } else { special.min(1) };
        count += tokens.len() - beginning;
    }
    Ok(count)
}

/// Checks that no document has more than `max_tokens` tokens, at which the client wants documents truncated: the gateway does
/// not truncate. Passes if the model's context is at most `max_tokens`, because the model then truncates earlier.
///
/// # Errors
/// `KSK0001`, naming the field; also if the gateway cannot count the tokens.
pub(super) async fn check_documents(
    shared: &GatewayState,
    app: &Arc<ServedApp>,
    texts: &[String],
    max_tokens: usize,
) -> Result<(), Failure> {
    // A token has at least one byte.
    let long: Vec<String> = texts
        .iter()
        .filter(|text| text.len() > max_tokens)
        .cloned()
        .collect();
    if long.is_empty() {
        return Ok(());
    }
    let refusal = || {
        Failure::param(
            "max_tokens_per_doc",
            "a document may have more than `max_tokens_per_doc` tokens, and this gateway cuts none off; leave the field out, documents are \
             cut off at what the model reads, or shorten them",
        )
    };
    let checked = app.tokenizer.run(&shared.tokenizing, move |tokenizer| {
        if tokenizer.context().is_some_and(|context| max_tokens >= context) {
            return Ok(());
        }
        if long.iter().map(String::len).sum::<usize>() > MAX_BYTES {
            return Err(refusal());
        }
        for text in &long {
            let tokens = tokenizer.tokens(text, false, None);
            if tokens.map_err(|error| refused(error, None))?.len() > max_tokens {
                return Err(refusal());
            }
        }
        Ok(())
    });
    match checked.await {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => Err(refusal()),
        other => other.map(|_| ()),
    }
}

fn too_large(message: String) -> Failure {
    Failure {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        ..Failure::param("inputs", message)
    }
}
