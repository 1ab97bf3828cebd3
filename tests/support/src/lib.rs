//! Test support: a real nats-server, the `kaskade` program, child processes, a Python with a NATS client, an oracle.
//!
//! - [`NatsServer`] starts, stops, restarts, kills and pauses a real nats-server (`server.rs`).
//! - [`nats_server_binary`] finds that program, and fetches one if none is installed (`binary.rs`).
//! - [`kaskade()`] runs the command line, [`ServeProcess`] is a `kaskade serve` (`kaskade.rs`).
//! - [`Process`] is a child process that is killed when dropped (`process.rs`).
//! - [`DelayProxy`] delays what a server sends (`proxy.rs`).
//! - [`endpoint`] stands in for an endpoint of another party, and behaves as told.
//! - [`certified`] gives a cascade a certified list (`certified.rs`).
//! - [`oracle`] sends requests and counts the terminal replies to each (`oracle.rs`).
//! - [`python`] returns an interpreter that has `nats-py` and `msgpack`, [`onnx_python`] one that has `onnxruntime`
//!   (`python.rs`).
//! - [`mod@bench`] sends the load of the serving benchmarks (`bench.rs`).
//! - [`free_port`], [`wait_until`] and [`eventually`] serve tests that span processes; [`alone`] runs tests one at a time
//!   (`wait.rs`).
//!
//! Downloads go into `testkit` under cargo's target directory, once (`cache.rs`). A test that lacks what it needs has
//! failed, so these functions panic and say what to do. Only the oracle returns errors: the fault suite reports them and
//! goes on.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "test support: panicking with a clear message is its way of failing"
)]

pub mod bench;
mod binary;
mod cache;
mod certified;
pub mod endpoint;
mod kaskade;
pub mod oracle;
mod process;
mod proxy;
mod python;
mod server;
mod wait;

pub use binary::nats_server_binary;
pub use certified::certified;
pub use kaskade::{
    DIGITS, ROOT, ServeProcess, TIMEOUT, built, command, digits_app, digits_profile, http_get, http_post,
    http_post_within, is_ready, json, kaskade, misuse, refusal, said, text,
};
pub use process::Process;
pub use proxy::DelayProxy;
pub use python::{onnx_python, python, sdk_python};
pub use server::{NatsOptions, NatsServer};
pub use wait::{alone, eventually, free_port, wait_until};
