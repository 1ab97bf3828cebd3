//! Integration tests of the actors over the embedded broker and a real nats-server: one binary, because each one links
//! everything again. All tests share the embedded broker of the process, so each uses an app name of its own.
//!
//! `codec_memory` and `ingress_memory` are apart: they measure their processes, and are tests of `kaskade-actors`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod adoption;
mod audits;
mod cluster;
mod common;
mod control;
mod durable;
mod ensembles;
mod foreign;
mod gears;
mod health;
mod inline;
mod leaving;
mod local;
mod pipelines;
mod plan_store;
mod planners;
mod serving;
mod shards;
mod stages;
