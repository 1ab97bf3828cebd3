//! Durable requests: `kaskade.<app>.submit` on JetStream.
//!
//! A request is accepted once the stream has stored it; the stream sends the acknowledgement itself, without any actor
//! in between. An ingress handles submitted requests like others, with separate permits, and acknowledges a request
//! once its result is stored. If a process is lost in between, the stream redelivers the request, so it runs at least
//! once. A result is written only if its id has none, so there is exactly one.
//!
//! | stream | subjects | stores |
//! |---|---|---|
//! | `kaskade-<app>-submit` | `kaskade.<app>.submit` | requests until they are settled |
//! | `kaskade-<app>-results` | `kaskade.<app>.result.<id>` | one result per request, for a limited time |
//! | `kaskade-<app>-dead` | `kaskade.<app>.dead.<id>` | dead letters with the reason, for a longer time |
//! | `kaskade-<app>-failures` | `kaskade.<app>.failures.<seq>` | how often models have failed at a request, for a day |
//!
//! [`kaskade_policy::redelivery`] decides when a request becomes a dead letter.

mod config;
mod failures;
mod pump;
mod streams;
mod submission;

pub use config::{DurableConfig, DurableError};
pub(crate) use pump::{DurableIntake, open};
pub(crate) use submission::{Submission, Submitted};
