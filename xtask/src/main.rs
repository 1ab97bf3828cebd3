//! Tasks of Kaskade's development that are too long, or too much about whole processes, for `cargo test`.
//!
//! - `cargo xtask faults`: breaks a deployment in every way that [DESIGN's promises](../../ARCHITECTURE.md) speak of, and counts.
//! - `cargo xtask soak`: a steady load for a time; what grows?
//! - `cargo xtask compose`: the walk through docker/compose.yaml, by a script.
#![allow(clippy::print_stdout, reason = "its users read what it prints")]

mod compose;
mod faults;
mod node;
mod soak;

use std::process::ExitCode;

use clap::Parser;

/// Tasks of Kaskade's development.
#[derive(Debug, Parser)]
enum Task {
    /// Breaks a deployment of real processes over a real nats-server, fault by fault, and says what became of every request.
    Faults(faults::Args),
    /// A steady load for a time, and what the processes hold at its beginning and its end.
    Soak(soak::Args),
    /// Brings docker/compose.yaml up as a cluster, asks it, and replaces every service under load.
    Compose(compose::Args),
    /// What the tasks above start: a process of an app whose models do as their requests say.
    #[command(hide = true)]
    Node(node::Args),
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Faults(args) => faults::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Compose(args) => compose::run(&args),
        Task::Node(args) => node::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
