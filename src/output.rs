//! Results on standard output, errors on standard error.

use std::io::Write;

use anyhow::Context as _;
use serde::Serialize;

use crate::failure::Failure;

/// Prints a result for people.
///
/// # Errors
/// When standard output cannot be written; a closed pipe is no error.
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

/// Prints a result for machines: one JSON value.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Prints an error as one line of standard error: a message for people, or a JSON object.
pub(crate) fn print_error(failure: &Failure, json: bool) {
    let line = if json {
        failure.json()
    } else {
        format!("kaskade: {}", failure.message())
    };
    // A closed standard error leaves no place for a message.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
