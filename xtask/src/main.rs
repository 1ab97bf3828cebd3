//! Development tasks that take too long, or need too many processes, for `cargo test`.
//!
//! - `cargo xtask faults`: injects the faults of docs/evidence/results/faults.md into a deployment and counts the fate of every request.
//! - `cargo xtask soak`: runs a steady load and compares memory, files and server resources at its start and end.
//! - `cargo xtask compose`: brings up docker/compose.yaml and replaces every service under load.
#![allow(clippy::print_stdout, reason = "its output is for users")]

mod compose;
mod deployed_plan;
mod faults;
mod node;
mod remote_model;
mod soak;

use std::process::ExitCode;

use clap::Parser;

/// The allocator of the program: what the faults and the soak say about memory is said about it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Development tasks.
#[derive(Debug, Parser)]
enum Task {
    /// Injects faults into a deployment of real processes over a real nats-server, and reports the fate of every request.
    Faults(faults::Args),
    /// Runs a steady load, and fails if memory, open files or server resources grow.
    Soak(soak::Args),
    /// Brings docker/compose.yaml up as a cluster, sends requests, and replaces every service under load.
    Compose(compose::Args),
    /// A process of an app with scripted models, which the tasks above start.
    #[command(hide = true)]
    Node(Box<node::Args>),
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Faults(args) => faults::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Soak(args) => soak::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Compose(args) => compose::run(&args),
        Task::Node(args) => node::run(&args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
