//! The grouped help of the root. clap has no headings for subcommands: [`grouped`] writes the list of commands into the help
//! template.

use std::fmt::Write as _;

use clap::Command;

/// Commands by the step of the work that they belong to.
pub(crate) const GROUPS: [(&str, &[&str]); 6] = [
    ("Start", &["demo"]),
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
Exit codes: 0 done, 1 wrong input or refused for good, 2 wrong usage, 75 temporary failure.
With --json, results are JSON on standard output, and an error is one JSON object in the last line of standard error.";

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
        for text in ["Usage: kaskade", "--version", "Precedence: flag", "75 temporary"] {
            assert!(help.contains(text), "{text}: {help}");
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
