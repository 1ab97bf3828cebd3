//! Models behind endpoints of other parties, as [`Model`](kaskade_models::Model)s.
//!
//! | module | holds |
//! |---|---|
//! | [`secret`] | keys that no log, error or metric shows |
//! | [`endpoint`] | what is known about an endpoint: address, protocol, limits, price |
//! | `http` | requests over connections that are kept and reused |
//! | `connector`, `tls` | the way to an endpoint: proxies, certificates |
//! | `call` | one request: its place among others, retries, deadline |
//! | `circuit` | the circuit breaker of a model that is called |
//! | `spending` | a limit of spending |
//! | `prepared` | a request as written for an endpoint, and its answer as read |
//! | `health` | an endpoint that is down makes its model unavailable |
//! | `model` | the `Model`: requests join and leave while others wait for their answers |
//! | `openai/` | the OpenAI API: chat completions, completions and embeddings; judges |
//! | `oip/` | the Open Inference Protocol v2 over HTTP with binary tensors, and over gRPC |
//! | `error` | failures of calls |
//! | `error_body` | errors as endpoints state them in bodies |
//! | [`cache`] | answers on disk, by the hash of their request |
//!
//! The decisions are `kaskade_policy::remote`'s.

pub mod cache;
mod call;
mod circuit;
mod connector;
pub mod endpoint;
mod error;
mod error_body;
mod health;
mod http;
mod model;
mod oip;
mod openai;
mod prepared;
pub mod secret;
mod spending;
mod tls;

pub use endpoint::{Api, Chat, ChatTask, Confidence, Endpoint, Fields, Judge, Style};
pub use error::{CallError, ConnectError};
pub use model::connect;
pub use secret::Secret;
pub use spending::SpendLimit;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what is consistent at every moment: its changes are single assignments and cannot panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
