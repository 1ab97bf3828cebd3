//! What people and machines read: results on standard output, everything else on standard error.

pub(crate) mod bars;
pub(crate) mod deployment;
mod drawing;
pub(crate) mod graph;
pub(crate) mod grid;
pub(crate) mod log;
pub(crate) mod panels;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod units;

use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

/// Prints a result for people.
///
/// # Errors
/// When standard output cannot be written; a reader that has gone away is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let text = text.trim_end_matches('\n');
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        _ => Ok(()),
    }
}

/// Prints a result for machines: one JSON object.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Says on one line of standard error why nothing came of it.
pub(crate) fn refuse(error: &anyhow::Error) {
    let line = in_one_line(error);
    // There is nowhere left to say that standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "kaskade: {line}");
}

/// An error and its causes, each reason once: many errors say in their own words what their cause says again.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let reason = cause.to_string();
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        if said.ends_with(&reason) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&reason);
    }
    said
}

/// Writes a file whole: a reader sees the old one or the new one, never half of it.
///
/// # Errors
/// When the folder cannot be made or the file not written, naming it.
pub(crate) fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("{} cannot be written", path.display());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(failed)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    std::fs::write(&beside, text).with_context(failed)?;
    std::fs::rename(&beside, path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use kaskade::policy::plan::Plan;

    use super::*;

    #[test]
    fn a_reason_is_said_once() {
        let error = Plan::from_json("{\n").context("plan.json").unwrap_err();
        let said = in_one_line(&error);
        assert_eq!(said.matches("EOF while parsing").count(), 1, "{said}");
        assert!(said.starts_with("plan.json: not a valid file: EOF"), "{said}");
        let error = anyhow::anyhow!("low").context("middle\n line").context("high");
        assert_eq!(in_one_line(&error), "high: middle line: low");
    }
}
