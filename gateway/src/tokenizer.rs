//! Tokenizers of apps, loaded from a checkpoint on this machine.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderMap, HeaderValue};
use kaskade_actors::{Code, Fault};
use kaskade_models::ModelError;
use kaskade_models::language::tokenization::CheckpointTokenizer;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::config::{AppOptions, TokenizerPath};
use crate::http::failure::Failure;
use crate::http::header_names;

/// Tokenizer of an app, loaded on first use.
pub(crate) struct AppTokenizer {
    /// Name of the app.
    app: String,
    paths: Vec<TokenizerPath>,
    loaded: OnceLock<Result<LoadedTokenizer, String>>,
}

/// A loaded tokenizer.
pub(crate) struct LoadedTokenizer {
    /// Variant of the checkpoint.
    variant: String,
    pub(crate) tokenizer: CheckpointTokenizer,
}

impl AppTokenizer {
    pub(crate) fn new(options: &AppOptions) -> Self {
        Self {
            app: options.name.clone(),
            paths: options.tokenizers.clone(),
            loaded: OnceLock::new(),
        }
    }

    /// Returns the tokenizer. The first call loads it, which may take seconds.
    ///
    /// # Errors
    /// The reason why there is no tokenizer.
    fn get(&self) -> Result<&LoadedTokenizer, &str> {
        let loaded = self.loaded.get_or_init(|| load(&self.paths));
        loaded.as_ref().map_err(String::as_str)
    }

    /// Runs `work` with the tokenizer on a thread that serves no connections, while it holds one of the `permits`.
    /// Returns the result as JSON, with a header that names the tokenizer's variant.
    ///
    /// # Errors
    /// `no_tokenizer` with status 404; `KSK0001` if the tokenizer refuses the input.
    pub(crate) async fn run<T: Serialize>(
        self: &Arc<Self>,
        permits: &Arc<Semaphore>,
        work: impl FnOnce(&CheckpointTokenizer) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(String, HeaderMap), Failure> {
        let internal = |reason: String| Failure::from(Fault::new(Code::Internal, reason));
        let permit = Arc::clone(permits).acquire_owned().await;
        let permit = permit.map_err(|error| internal(error.to_string()))?;
        let tokenizer = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let loaded = tokenizer.get();
            let loaded = loaded.map_err(|reason| Failure::no_tokenizer(&tokenizer.app, reason))?;
            let mut headers = HeaderMap::new();
            if let Ok(variant) = HeaderValue::from_str(&loaded.variant) {
                headers.insert(&header_names::VARIANT, variant);
            }
            let json = serde_json::to_string(&work(&loaded.tokenizer)?);
            Ok((json.map_err(|error| internal(error.to_string()))?, headers))
        });
        done.await
            .map_err(|error| internal(format!("a text was not tokenized: {error}")))?
    }
}

/// Loads the first tokenizer that exists on this machine.
fn load(paths: &[TokenizerPath]) -> Result<LoadedTokenizer, String> {
    let mut failed = None;
    for TokenizerPath { variant, path } in paths.iter().filter(|known| known.path.exists()) {
        match CheckpointTokenizer::open(path) {
            Ok(Some(tokenizer)) => {
                let variant = variant.clone();
                return Ok(LoadedTokenizer { variant, tokenizer });
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(variant, %error, "the tokenizer of a variant cannot be loaded");
                failed.get_or_insert_with(|| {
                    format!("that of the variant `{variant}` cannot be loaded: {error}")
                });
            }
        }
    }
    let missing = || {
        "no variant has a checkpoint with a tokenizer on this machine; put `tokenizer.json` and its configuration files there, \
         weights are not needed"
            .to_owned()
    };
    Err(failed.unwrap_or_else(missing))
}

/// Returns the failure of a field that the tokenizer refuses. `field` is the field's name in the body, if it differs
/// from the input's.
pub(crate) fn refused(error: ModelError, field: Option<&'static str>) -> Failure {
    match error {
        ModelError::BadInput { name, reason } => match field {
            Some(field) => Failure::param(field, reason),
            None => Failure::param(name, reason),
        },
        other => Failure::malformed(other.to_string()),
    }
}
