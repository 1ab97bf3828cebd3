//! The commands as Markdown, between the markers of `docs/reference/cli.md`. The test keeps the page current.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command};

use crate::help::GROUPS;

/// Lines of the page that enclose the generated part.
const MARKERS: [&str; 2] = ["<!-- cli -->\n", "<!-- /cli -->"];

/// Returns the commands of the root as Markdown.
fn page(root: &Command) -> String {
    let mut page = String::new();
    for (group, commands) in GROUPS {
        let _ = write!(page, "### {group}\n\n");
        for name in commands {
            if let Some(command) = root.find_subcommand(name) {
                write_command(&mut page, &format!("{} {name}", root.get_name()), command);
            }
        }
    }
    page
}

fn write_command(page: &mut String, name: &str, command: &Command) {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let mut usage = command.clone().bin_name(name).render_usage().to_string();
    usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let usage: Vec<&str> = usage.lines().map(str::trim).collect();
    let _ = write!(
        page,
        "#### {name}\n\n{}\n\n```text\n{}\n```\n\n",
        sentence(&about),
        usage.join("\n")
    );
    let options: Vec<&Arg> = command.get_arguments().filter(|arg| is_shown(arg)).collect();
    if !options.is_empty() {
        page.push_str("| option | effect |\n|---|---|\n");
        for option in options {
            let _ = writeln!(page, "| {} | {} |", signature(option), effect(option));
        }
        page.push('\n');
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        if inner.get_name() != "help" {
            write_command(page, &format!("{name} {}", inner.get_name()), inner);
        }
    }
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// Returns the flag or the positional with its value, as code.
fn signature(arg: &Arg) -> String {
    let values: Vec<String> = arg
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| format!("<{name}>"))
        .collect();
    let takes_value = !matches!(
        arg.get_action(),
        ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count
    );
    let values = if takes_value {
        values.join(" ")
    } else {
        String::new()
    };
    let text = match arg.get_long() {
        Some(long) if values.is_empty() => format!("--{long}"),
        Some(long) => format!("--{long} {values}"),
        None => values,
    };
    format!("`{}`", text.replace('|', "\\|"))
}

/// Returns the description of an option, its values, default and environment variable.
fn effect(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
    let help = one_line(&help.unwrap_or_default());
    // The default that a doc comment states comes last, as the parser's does.
    let (help, stated) = match help
        .strip_suffix(']')
        .and_then(|help| help.rsplit_once(" [default: "))
    {
        Some((help, default)) => (help.to_owned(), Some(default.to_owned())),
        None => (help, None),
    };
    let mut text = sentence(&help);
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
    let values: Vec<String> = if takes_value {
        let shown = arg
            .get_possible_values()
            .into_iter()
            .filter(|value| !value.is_hide_set());
        shown
            .map(|value| {
                let help = value
                    .get_help()
                    .map(|help| format!(" ({})", one_line(&help.to_string())));
                format!("`{}`{}", value.get_name(), help.unwrap_or_default())
            })
            .collect()
    } else {
        Vec::new()
    };
    if !values.is_empty() {
        let _ = write!(text, " Values: {}.", values.join(", "));
    }
    if arg.is_required_set() {
        text.push_str(" Required.");
    }
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(text, " Default: `{}`.", defaults.join(","));
    }
    if let Some(default) = stated {
        let _ = write!(text, " Default: {default}.");
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " Environment: `{}`.", variable.to_string_lossy());
    }
    text.trim().replace('|', "\\|")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a text on one line, with a full stop at its end.
fn sentence(text: &str) -> String {
    let text = one_line(text);
    if text.is_empty() || text.ends_with(['.', '!', '?', ']', ')']) {
        return text;
    }
    format!("{text}.")
}

#[test]
fn the_reference_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/cli.md");
    let written = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = written.split_once(MARKERS[0]).unwrap();
    let (_, tail) = rest.split_once(MARKERS[1]).unwrap();
    let mut root = crate::command();
    root.build();
    let current = format!("{head}{}\n{}{}{tail}", MARKERS[0], page(&root), MARKERS[1]);
    if std::env::var_os("KASKADE_BLESS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        current,
        "docs/reference/cli.md is stale: KASKADE_BLESS=1 cargo test --release --bin kaskade reference_page"
    );
}
