//! The grouped help of the root. clap has no headings for subcommands: [`grouped`] writes the list of commands into the help
//! template.

use std::fmt::Write as _;

use clap::Command;

/// Commands by the step of the work that they belong to.
pub(crate) const GROUPS: [(&str, &[&str]); 6] = [
    ("Start", &["demo", "init"]),
    ("Build", &["quantise", "profile", "plan", "simulate"]),
    ("Serve", &["serve", "top", "probe", "auth"]),
    (
        "Clients",
        &["infer", "submit", "result", "feedback", "bench", "generate"],
    ),
    ("Files", &["validate", "schema"]),
    ("Help", &["explain", "selftest", "completions", "man"]),
];

/// Text after the options of the root.
pub(crate) const AFTER: &str = "\
Precedence: flag, then environment variable, then app.toml, then default.
Exit codes: 0 done, 1 wrong input or refused for good, 2 wrong usage, 75 temporary failure,
130 ended by Ctrl-C. `kaskade probe` exits with 1 if the process is not live or ready.
With --json, results are JSON on standard output, and an error is one JSON object in the last line of standard error.
Values: TIME: 250ms, 2s, 5m; SIZE: 64KiB, 16GB; SHARE: 1% or 0.01; ADDRESS: 127.0.0.1:8080.";

/// Values with a form of their own, by the name that the help shows, with examples.
const VALUES: [(&str, &str); 4] = [
    ("TIME", "250ms, 2s, 5m"),
    ("SIZE", "64KiB, 16GB"),
    ("SHARE", "1% or 0.01"),
    ("ADDRESS", "127.0.0.1:8080"),
];

/// Adds examples of the values that its options take to the help of a command, and of those below it.
pub(crate) fn with_values(command: Command) -> Command {
    let is_root = command.get_after_help().is_some();
    let names: Vec<String> = command
        .get_arguments()
        .flat_map(|arg| arg.get_value_names().unwrap_or_default())
        .map(ToString::to_string)
        .collect();
    let takes = |value: &str| names.iter().any(|name| name.split('=').any(|part| part == value));
    let shown = VALUES.iter().filter(|(value, _)| takes(value));
    let shown: Vec<String> = shown
        .map(|(value, examples)| format!("{value}: {examples}"))
        .collect();
    let command = if is_root || shown.is_empty() {
        command
    } else {
        command.after_help(format!("Values: {}.", shown.join("; ")))
    };
    command.mut_subcommands(with_values)
}

/// Width of the column of commands.
const COLUMN: usize = 13;

/// Lists the commands of the root in groups.
pub(crate) fn grouped(root: Command) -> Command {
    let mut list = String::new();
    for (group, commands) in GROUPS {
        let _ = writeln!(list, "{group}:");
        for command in commands {
            let about = root.find_subcommand(command).map(summary).unwrap_or_default();
            let _ = writeln!(list, "  {command:COLUMN$}{about}");
        }
        list.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    );
    root.help_template(template)
}

/// Returns the first sentence of a command's description.
fn summary(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let sentence = about.split(". ").next().unwrap_or_default();
    sentence.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let root = crate::command();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, commands)| commands.iter().copied())
            .collect();
        let mut known: Vec<&str> = root
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .filter(|name| *name != "help")
            .collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }

    #[test]
    fn the_help_lists_groups_commands_and_precedence() {
        let help = crate::command().render_help().to_string();
        for (group, commands) in GROUPS {
            assert!(help.contains(&format!("\n{group}:\n")), "{help}");
            for command in commands {
                let line = help
                    .lines()
                    .find(|line| line.starts_with(&format!("  {command} ")));
                assert!(
                    line.is_some_and(|line| line.len() > COLUMN + 10),
                    "{command}: {help}"
                );
            }
        }
        for text in [
            "Usage: kaskade",
            "--version",
            "Precedence: flag",
            "75 temporary",
            "130 ended by",
        ] {
            assert!(help.contains(text), "{text}: {help}");
        }
    }

    /// No help said what a `<TIME>` or a `<SIZE>` is.
    #[test]
    fn the_help_of_a_command_shows_the_values_that_it_takes() {
        fn check(command: &mut Command, seen: &mut usize) {
            let help = command.render_help().to_string();
            for (value, examples) in VALUES {
                if help.contains(&format!("<{value}>")) {
                    *seen += 1;
                    let shown = format!("{value}: {examples}");
                    assert!(help.contains(&shown), "{}: {shown}", command.get_name());
                }
            }
            command
                .get_subcommands_mut()
                .for_each(|command| check(command, seen));
        }
        let (mut root, mut seen) = (crate::command(), 0);
        check(&mut root, &mut seen);
        assert!(seen > 20, "{seen}");
        let root = root.render_help().to_string();
        for (value, examples) in VALUES {
            assert!(root.contains(&format!("{value}: {examples}")), "{root}");
        }
    }

    #[test]
    fn every_command_and_option_is_described() {
        fn check(command: &Command) {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name}");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{name} {}", arg.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&crate::command());
    }
}
