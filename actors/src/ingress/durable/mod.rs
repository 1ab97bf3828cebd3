//! Durable requests: `kaskade.<app>.submit` on JetStream.
//!
//! Accepted means written by the stream, which says so itself: no actor of ours stands between a client and that promise. An ingress
//! takes what was submitted as it takes what is asked, with room of its own for it, and acknowledges a request once its result is
//! kept. So a request is delivered again whenever anybody in between is lost, and is run at least once; its result is written only
//! where there is none under its id, and so there is one.
//!
//! | stream | subjects | keeps |
//! |---|---|---|
//! | `kaskade-<app>-submit` | `kaskade.<app>.submit` | requests until they are settled |
//! | `kaskade-<app>-results` | `kaskade.<app>.result.<id>` | one result per request, for a time |
//! | `kaskade-<app>-dead` | `kaskade.<app>.dead.<id>` | requests that were given up, with the reason, for longer |
//!
//! What is given up when is [`kaskade_plans::redelivery`].

mod config;
mod pump;
mod streams;
mod submission;

pub use config::{DurableConfig, DurableError};
pub(crate) use pump::{DurableIntake, open};
pub(crate) use submission::{Submission, Submitted};
