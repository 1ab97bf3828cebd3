//! What people and machines read: results on standard output, everything else on standard error.

use std::io::Write;

use anyhow::Context as _;
use kaskade_app::report::in_one_line;
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
    let line = in_one_line(error.as_ref());
    // There is nowhere left to say that standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "kaskade: {line}");
}
