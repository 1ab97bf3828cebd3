//! What becomes of texts that are longer than a model reads.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;

use crate::failure::Failure;
use crate::state::{GatewayState, Served};
use crate::tokenizer::{refused, with_tokenizer};

/// The fields of text-embeddings-inference that say it. Models cut the end off.
#[derive(Deserialize, Default)]
pub(super) struct Truncation {
    #[serde(default)]
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Option<String>,
}

impl Truncation {
    /// Refuses texts that are too long for a request with `truncate: false`, as far as the gateway has the tokenizer of the app.
    ///
    /// # Errors
    /// `KSK0001` with status 413 for a text that is too long, and for a direction other than `Right`.
    pub(super) async fn check<T: AsRef<str>>(
        &self,
        shared: &GatewayState,
        app: &Arc<Served>,
        texts: &[T],
    ) -> Result<(), Failure> {
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
        let texts: Vec<String> = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        let checked = with_tokenizer(shared, app, move |tokenizer| {
            let Some(most) = tokenizer.context() else {
                return Ok(());
            };
            for text in &texts {
                // A token has at least one byte.
                let count = if text.len() < most / 2 {
                    0
                } else {
                    let tokens = tokenizer.tokens(text, true, None);
                    tokens.map_err(|error| refused(error, None))?.len()
                };
                if count > most {
                    return Err(too_long(count, most));
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

fn too_long(count: usize, most: usize) -> Failure {
    Failure {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        ..Failure::param(
            "inputs",
            format!(
                "a text has {count} tokens, and the model reads {most}; shorten it, or send `truncate: true`"
            ),
        )
    }
}
