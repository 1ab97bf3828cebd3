//! The command line: one file per verb in `verbs/`.
//!
//! | module | holds |
//! |---|---|
//! | [`verbs`] | what the command line does, one file per verb |
//! | [`args`] | flags that several verbs share |
//! | [`output`] | results on standard output, errors on standard error |
//! | [`log`] | the log on standard error |
//!
//! Exit codes: 0 done, 1 the input or the service refused, 2 the command line itself is wrong.

mod args;
mod log;
mod output;
mod verbs;

#[cfg(test)]
mod docs_tests;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Serves a family of models, from tiny to giant, as if it were one model.
#[derive(Debug, Parser)]
#[command(name = "kaskade", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(verbs::demo::Args),
    Profile(verbs::profile::Args),
    Weigh(verbs::weigh::Args),
    Channels(verbs::channels::Args),
    #[command(subcommand)]
    Plan(verbs::plan::Planner),
    Simulate(verbs::simulate::Args),
    #[command(subcommand)]
    Auth(verbs::auth::Auth),
    Serve(verbs::serve::Args),
    Probe(verbs::probe::Args),
    Replan(verbs::replan::Args),
    Top(verbs::top::Args),
    Infer(verbs::infer::Args),
    Submit(verbs::submit::Args),
    Result(verbs::result::Args),
    Generate(verbs::generate::Args),
    Bench(verbs::bench::Args),
    Validate(verbs::validate::Args),
    Selftest(verbs::selftest::Args),
    Explain(verbs::explain::Args),
    Schema(verbs::schema::Args),
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    log::init();
    let done = match verb {
        Verb::Demo(args) => verbs::demo::run(&args),
        Verb::Channels(args) => verbs::channels::run(&args),
        Verb::Weigh(args) => verbs::weigh::run(&args),
        Verb::Profile(args) => verbs::profile::run(&args),
        Verb::Plan(verbs::plan::Planner::Cache(args)) => verbs::cache::run(&args),
        Verb::Plan(verbs::plan::Planner::Cascade(args)) => verbs::plan::cascade(&args),
        Verb::Plan(verbs::plan::Planner::Gears(args)) => verbs::gears::run(&args),
        Verb::Plan(verbs::plan::Planner::Pipeline(args)) => verbs::pipeline::run(&args),
        Verb::Plan(verbs::plan::Planner::Placement(args)) => verbs::placement::run(&args),
        Verb::Simulate(args) => verbs::simulate::run(&args),
        Verb::Auth(auth) => verbs::auth::run(&auth),
        Verb::Serve(args) => verbs::serve::run(&args),
        Verb::Probe(args) => verbs::probe::run(&args),
        Verb::Replan(args) => verbs::replan::run(&args),
        Verb::Top(args) => verbs::top::run(&args),
        Verb::Generate(args) => verbs::generate::run(&args),
        Verb::Infer(args) => verbs::infer::run(&args),
        Verb::Submit(args) => verbs::submit::run(&args),
        Verb::Result(args) => verbs::result::run(&args),
        Verb::Bench(args) => verbs::bench::run(&args),
        Verb::Validate(args) => verbs::validate::run(&args),
        Verb::Selftest(args) => verbs::selftest::run(&args),
        Verb::Explain(args) => verbs::explain::run(&args),
        Verb::Schema(args) => verbs::schema::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::refuse(&error);
            ExitCode::FAILURE
        }
    }
}
