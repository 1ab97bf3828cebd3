//! Integration tests of the gateway with a plain HTTP client: one binary, because each one links everything again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod clients;
mod connections;
mod crowds;
mod feedback;
mod grpc;
mod invalid;
mod limits;
mod logs;
mod oip;
mod openai;
mod prompts;
mod remote;
mod responses;
mod streaming;
mod support;
mod tls;
mod tokens;
mod tools;
mod traces;
