//! Integration tests of the `kaskade` program and library: one binary, because each one links everything again.
//!
//! Tests that measure, or that serve a load, are in `tests/load`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod auth;
mod bench;
mod cache;
mod cli;
mod docs;
mod endpoints;
mod entities;
mod examples;
mod gears;
mod generate;
mod language;
mod measure;
mod partitions;
mod pipelines;
mod placement;
mod plans;
mod probes;
mod remote;
mod serving;
mod support;
mod validate;
mod workspace;
