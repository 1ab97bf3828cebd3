//! What the tests of Kaskade stand on: a real nats-server, a Python with a NATS client, free ports, polling.
//!
//! - [`NatsServer`] starts, stops, restarts, kills and pauses a real nats-server (`server.rs`).
//! - [`nats_server_binary`] says which binary that is, and obtains one where there is none (`binary.rs`).
//! - [`python`] gives an interpreter that has `nats-py` and `msgpack` (`python.rs`).
//! - [`free_port`], [`wait_until`] and [`eventually`] are for tests over processes (`wait.rs`).
//!
//! What has to be fetched is fetched once, into `testkit` under cargo's target directory (`cache.rs`). Nothing here
//! returns an error: a test that lacks what it stands on has failed, so these functions panic and say what to do.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "test support: panicking with a clear message is its way of failing"
)]

mod binary;
mod cache;
mod python;
mod server;
mod wait;

pub use binary::nats_server_binary;
pub use python::python;
pub use server::{NatsOptions, NatsServer};
pub use wait::{eventually, free_port, wait_until};
