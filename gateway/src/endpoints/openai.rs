//! The OpenAI API: models, chat, completions, responses, embeddings. An app is a model.

mod chat;
mod choice;
mod completions;
mod described_prompt;
mod embeddings;
mod formats_and_tools;
mod models;
mod refused_fields;
mod responses;
mod sampling;
mod sse;
mod stream_events;
mod text_offsets;
pub(crate) mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::state::GatewayState;

pub(crate) use embeddings::{NOT_EMBEDDING, embedding, normalise, of_dimensions, prompt_name};

/// Returns the routes.
pub(crate) fn routes() -> Router<Arc<GatewayState>> {
    Router::new()
        .route("/v1/models", get(models::all))
        .route("/v1/models/{model}", get(models::one))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/embeddings", post(embeddings::create))
}
