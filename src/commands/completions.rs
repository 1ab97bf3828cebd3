//! `kaskade completions`: completions for a shell.

use clap_complete::Shell;

use crate::output;

/// Prints completions for a shell.
///
/// For bash: `kaskade completions bash > ~/.local/share/bash-completion/completions/kaskade`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell that reads them.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the completions.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    output::print(&of(args.shell))
}

fn of(shell: Shell) -> String {
    let mut root = crate::command();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut root, "kaskade", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        let root = crate::command();
        for shell in Shell::value_variants() {
            let script = of(*shell);
            for command in root.get_subcommands() {
                assert!(
                    script.contains(command.get_name()),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }
}
