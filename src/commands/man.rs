//! `kaskade man`: manual pages.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Command;

use crate::args::Overwrite;
use crate::output;

/// Writes manual pages, one per command.
///
/// `man --local-file DIR/kaskade.1` shows the first one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the pages; it is created if it does not exist.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
}

/// Writes the pages.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let dir = &args.dir;
    args.overwrite.check([dir.join("kaskade.1").as_path()])?;
    std::fs::create_dir_all(dir).with_context(|| format!("{} cannot be created", dir.display()))?;
    let mut root = crate::command();
    root.build();
    let pages = write(&root, root.get_name(), dir)?;
    output::print(&format!("{pages} pages written to {}", dir.display()))
}

/// Writes the page of a command and of the commands below it; returns their number.
fn write(command: &Command, name: &str, dir: &Path) -> anyhow::Result<usize> {
    let path = dir.join(format!("{name}.1"));
    let unwritable = || format!("{} cannot be written", path.display());
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .with_context(unwritable)?;
    std::fs::write(&path, page).with_context(unwritable)?;
    let mut pages = 1;
    for inner in command.get_subcommands() {
        if inner.get_name() != "help" && !inner.is_hide_set() {
            pages += write(inner, &format!("{name}-{}", inner.get_name()), dir)?;
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let mut root = crate::command();
        root.build();
        let pages = write(&root, "kaskade", folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), pages);
        for name in ["kaskade", "kaskade-plan-cascade", "kaskade-profile-memory"] {
            let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
        for command in root
            .get_subcommands()
            .filter(|command| command.get_name() != "help")
        {
            let path = folder.path().join(format!("kaskade-{}.1", command.get_name()));
            assert!(
                std::fs::metadata(path).unwrap().len() > 200,
                "{}",
                command.get_name()
            );
        }
    }
}
