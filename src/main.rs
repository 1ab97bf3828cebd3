//! The command line: one file per command in `commands/`.
//!
//! | module | holds |
//! |---|---|
//! | [`commands`] | one file per command |
//! | `app_address` | the app and broker that a command addresses |
//! | [`args`] | flags that several commands share |
//! | [`help`] | the grouped help of the root |
//! | `reference` | the reference page of the documentation, in tests |
//! | [`output`] | results on standard output, errors on standard error |
//! | [`failure`] | classification of errors, exit codes |
//! | `interrupt` | Ctrl-C in commands that say something before they end |
//! | [`log`] | the log on standard error |
//! | `stderr` | lines on standard error, which a thread writes |
//!
//! Exit codes: 0 done, 1 wrong input or refused for good, 2 wrong command line, 75 temporary failure, 130 interrupted.

mod app_address;
mod args;
mod commands;
#[cfg(test)]
mod docs_tests;
mod failure;
mod help;
mod interrupt;
mod log;
mod output;
#[cfg(test)]
mod reference;
mod stderr;

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use kaskade_app::config::guarantee::Share;
use kaskade_app::config::scalar::{ByteSize, HumanDuration};

use failure::Failure;

/// A request makes some hundred small allocations, most of which another thread frees: the system's allocator takes a fifth of the
/// processor time for them, and locks that the threads wait for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves several models of one task behind one endpoint, by confidence cascades.
#[derive(Debug, Parser)]
#[command(name = "kaskade", version, max_term_width = 110, after_help = help::AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(commands::demo::Args),
    Init(commands::init::Args),
    Quantise(commands::quantise::Args),
    Profile(commands::profile::Args),
    #[command(subcommand)]
    Plan(commands::plan::Planner),
    Simulate(commands::simulate::Args),
    Serve(commands::serve::Args),
    Top(commands::top::Args),
    Probe(commands::probe::Args),
    #[command(subcommand)]
    Auth(commands::auth::Auth),
    Infer(commands::infer::Args),
    Submit(commands::submit::Args),
    Feedback(commands::feedback::Args),
    Result(commands::result::Args),
    Bench(commands::bench::Args),
    Generate(commands::generate::Args),
    Validate(commands::validate::Args),
    Schema(commands::schema::Args),
    Explain(commands::explain::Args),
    Selftest(commands::selftest::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

fn main() -> ExitCode {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let matches = match without_variables(command(), &is_empty).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refuse_usage(&with_app_flag(error, std::env::args_os())),
    };
    let json = asks_for_json(&matches);
    let command = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli.command,
        Err(error) => return refuse_usage(&error),
    };
    // Processes that run on log each event when it happens.
    let ends = !matches!(command, Command::Serve(_) | Command::Demo(_) | Command::Top(_));
    match log::init(json, ends).and_then(|()| run(&command)) {
        Ok(()) => {
            log::release(false);
            stderr::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let failure = Failure::from_error(&error);
            log::release(failure.is_about_permissions());
            output::print_error(&failure, json);
            failure.exit().into()
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    use commands::plan::Planner;
    match command {
        Command::Demo(args) => commands::demo::run(args),
        Command::Init(args) => commands::init::run(args),
        Command::Quantise(args) => commands::quantise::run(args),
        Command::Profile(args) => commands::profile::run(args),
        Command::Plan(Planner::Cascade(args)) => commands::plan::cascade::run(args),
        Command::Plan(Planner::Gears(args)) => commands::plan::gears::run(args),
        Command::Plan(Planner::Pipeline(args)) => commands::plan::pipeline::run(args),
        Command::Plan(Planner::Placement(args)) => commands::plan::placement::run(args),
        Command::Plan(Planner::Cache(args)) => commands::plan::cache::run(args),
        Command::Plan(Planner::Request(args)) => commands::plan::request::run(args),
        Command::Plan(Planner::Apply(args)) => commands::plan::store::apply(args),
        Command::Plan(Planner::Get(args)) => commands::plan::store::get(args),
        Command::Plan(Planner::History(args)) => commands::plan::store::history(args),
        Command::Plan(Planner::Rollback(args)) => commands::plan::store::rollback(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Probe(args) => commands::probe::run(args),
        Command::Auth(auth) => commands::auth::run(auth),
        Command::Infer(args) => commands::infer::run(args),
        Command::Submit(args) => commands::submit::run(args),
        Command::Feedback(args) => commands::feedback::run(args),
        Command::Result(args) => commands::result::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Validate(args) => commands::validate::run(args),
        Command::Schema(args) => commands::schema::run(args),
        Command::Explain(args) => commands::explain::run(args),
        Command::Selftest(args) => commands::selftest::run(args),
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::man::run(args),
    }
}

/// Returns the whole command line, with its commands in groups and examples of values in their help.
pub(crate) fn command() -> clap::Command {
    with_negative_numbers(help::with_values(help::grouped(Cli::command())))
}

/// Makes options take negative numbers and quantities such as `-1s`, so that their own message names the range; clap would take the value
/// for an option and propose `--`.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let (takes_values, is_quantity) = (arg.get_action().takes_values(), is_quantity(&arg));
        arg.allow_negative_numbers(takes_values)
            .allow_hyphen_values(is_quantity)
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Returns whether the value of an option is a number with a unit.
fn is_quantity(arg: &clap::Arg) -> bool {
    let parsed = arg.get_value_parser().type_id();
    let quantities = [
        TypeId::of::<HumanDuration>(),
        TypeId::of::<Duration>(),
        TypeId::of::<ByteSize>(),
        TypeId::of::<Share>(),
    ];
    arg.get_long().is_some() && quantities.iter().any(|quantity| parsed == *quantity)
}

/// Makes flags ignore those environment variables of theirs that `is_empty` names: an empty value is as if unset, as in a deployment
/// that passes a variable on.
fn without_variables(command: clap::Command, is_empty: &dyn Fn(&OsStr) -> bool) -> clap::Command {
    let command = command.mut_args(|arg| {
        if arg.get_env().is_some_and(is_empty) {
            arg.env(Resettable::Reset)
        } else {
            arg
        }
    });
    command.mut_subcommands(|command| without_variables(command, is_empty))
}

/// Returns whether the command of a valid command line has the flag `--json`.
fn asks_for_json(matches: &ArgMatches) -> bool {
    let given = matches.try_get_one::<bool>("json").ok().flatten();
    given.copied().unwrap_or(false)
        || matches
            .subcommand()
            .is_some_and(|(_, command)| asks_for_json(command))
}

/// Names `--app` where the file of an app is given without it to a command that takes it so.
fn with_app_flag(mut error: clap::Error, line: impl Iterator<Item = OsString>) -> clap::Error {
    let unknown = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let Some(ContextValue::String(file)) = unknown.into_iter().find_map(|kind| error.get(kind)) else {
        return error;
    };
    let tip = format!("the file of an app is named by a flag: '--app {file}'");
    if Path::new(file).extension().is_some_and(|ending| ending == "toml") && takes_app(line) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Returns whether the command of a command line has the flag `--app`.
fn takes_app(line: impl Iterator<Item = OsString>) -> bool {
    let mut command = command();
    for word in line {
        if let Some(named) = command.find_subcommand(word) {
            command = named.clone();
        }
    }
    command.get_arguments().any(|arg| arg.get_long() == Some("app"))
}

/// Prints an error of the command line itself, or the help that was asked for.
fn refuse_usage(error: &clap::Error) -> ExitCode {
    match Failure::of_usage(error) {
        Some(failure) if std::env::args_os().any(|arg| arg == "--json") => {
            output::print_error(&failure, true);
            failure.exit().into()
        }
        _ => match error.print().and_then(|()| std::io::stdout().flush()) {
            // The help and the version are results.
            Err(failed) if !error.use_stderr() && failed.kind() != ErrorKind::BrokenPipe => {
                let failed = anyhow::Error::new(failed).context("standard output cannot be written");
                let failure = Failure::from_error(&failed);
                output::print_error(&failure, false);
                failure.exit().into()
            }
            _ => u8::try_from(error.exit_code()).unwrap_or(1).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// `NATS_URL=""` was an URL that cannot be parsed.
    #[test]
    fn an_empty_variable_is_as_if_unset() {
        let variables = |command: &clap::Command| -> Vec<String> {
            let infer = command.find_subcommand("infer").unwrap();
            let names = infer.get_arguments().filter_map(clap::Arg::get_env);
            names.map(|name| name.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(
            variables(&command()),
            [
                "NATS_URL",
                "NATS_NKEY",
                "NATS_CREDS",
                "NATS_CA",
                "NATS_CERT",
                "NATS_KEY"
            ]
        );
        let left = without_variables(command(), &|name| name == "NATS_URL");
        assert_eq!(variables(&left), variables(&command())[1..]);
    }

    #[test]
    fn json_is_found_at_the_verb_that_has_it() {
        let asks = |line: &str| {
            let matches = command().try_get_matches_from(line.split(' ')).unwrap();
            asks_for_json(&matches)
        };
        assert!(asks("kaskade explain --json"));
        assert!(asks("kaskade plan cascade --profile p.json --json"));
        assert!(asks("kaskade profile memory --app a.toml --json"));
        assert!(!asks("kaskade explain"));
        assert!(!asks("kaskade schema app"));
    }

    #[test]
    fn a_wrong_command_line_is_classified_as_usage() {
        let error = command()
            .try_get_matches_from(["kaskade", "plan", "poem"])
            .unwrap_err();
        let failure = Failure::of_usage(&error).unwrap();
        assert_eq!(failure.exit(), 2);
        assert!(failure.message().contains("poem"), "{failure:?}");
        let help = command().try_get_matches_from(["kaskade", "--help"]).unwrap_err();
        assert_eq!(Failure::of_usage(&help), None);
    }

    /// The message was clap's hint about `--`.
    #[test]
    fn a_negative_number_is_refused_with_the_range() {
        for (line, range) in [
            ("kaskade bench a --texts t.txt --rate -1", "-1 is not above zero"),
            (
                "kaskade plan gears --profile p.json --rate -0.5",
                "-0.5 is not above zero",
            ),
            ("kaskade bench a --texts t.txt --concurrency -1", "-1 is not in 1"),
            (
                "kaskade infer a --text t --budget -1s",
                "`-1s` is not a length of time",
            ),
            (
                "kaskade bench a --texts t.txt --warm-up -1s",
                "`-1s` is not a length of time",
            ),
            ("kaskade plan cascade --profile p.json --max-loss -1%", "-1%"),
        ] {
            let error = command().try_get_matches_from(line.split(' ')).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(range) && !error.contains("'-- -"), "{error}");
        }
    }

    /// The usage of an error named one of several options as required.
    #[test]
    fn the_usage_of_an_error_names_every_choice() {
        let error = |line: &str| {
            let error = command().try_get_matches_from(line.split(' ')).unwrap_err();
            error.to_string()
        };
        let cache = error("kaskade plan cache");
        assert!(cache.contains("<--model <NAME>|--config <FILE>>"), "{cache}");
        assert!(error("kaskade plan cache --model opt-30b --config c.json").contains("--config"));
        let validate = error("kaskade validate");
        assert!(validate.contains("--app <FILE>>"), "{validate}");
        let parse = |line: &str| command().try_get_matches_from(line.split(' '));
        for valid in [
            "a.json",
            "--app a.conf",
            "a.json b.json --app a.conf --app b.conf",
        ] {
            assert!(parse(&format!("kaskade validate {valid}")).is_ok(), "{valid}");
        }
    }

    /// The message was that of an unexpected argument.
    #[test]
    fn an_app_without_its_flag_is_told_the_flag() {
        let error = |line: &str| {
            let error = command().try_get_matches_from(line.split(' ')).unwrap_err();
            with_app_flag(error, line.split(' ').map(OsString::from))
        };
        for verb in ["serve", "profile", "plan cascade"] {
            let error = error(&format!("kaskade {verb} reviews/app.toml"));
            let text = error.to_string();
            assert!(
                text.contains("tip: the file of an app") && text.contains("'--app reviews/app.toml'"),
                "{text}"
            );
            let failure = Failure::of_usage(&error).unwrap();
            assert!(failure.json().contains("--app reviews/app.toml"), "{failure:?}");
        }
        assert!(
            !error("kaskade serve reviews")
                .to_string()
                .contains("tip: the file")
        );
        assert!(
            !error("kaskade plan cache app.toml")
                .to_string()
                .contains("--app app.toml")
        );
    }

    #[test]
    fn profile_needs_its_app_unless_a_subcommand_is_given() {
        let parse = |line: &str| command().try_get_matches_from(line.split(' '));
        assert!(parse("kaskade profile").is_err());
        assert!(parse("kaskade profile --app app.toml").is_ok());
        assert!(parse("kaskade profile channels").is_ok());
        assert!(parse("kaskade profile memory").is_err());
        assert!(parse("kaskade profile --app app.toml channels").is_err());
    }
}
