//! Results on standard output, errors on standard error.

use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use kaskade_app::report;
use serde::Serialize;

use crate::failure::Failure;
use crate::stderr;

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

/// Writes measurements to a file. If that fails, they are kept in the folder for temporary files, or else printed.
///
/// # Errors
/// When the file cannot be written; the message says where the measurements are.
pub(crate) fn write_measured(path: &Path, text: &str) -> anyhow::Result<()> {
    let Err(error) = report::write_file(path, text) else {
        return Ok(());
    };
    let place = if let Ok(kept) = report::write_elsewhere(path, text) {
        format!("in {}", kept.display())
    } else {
        print(text)?;
        "on standard output".to_owned()
    };
    Err(error).context(format!("the measurements are {place} instead"))
}

/// Prints an error as one line of standard error: a message for people, or a JSON object. Waits until it is written.
pub(crate) fn print_error(failure: &Failure, json: bool) {
    let line = if json {
        failure.json()
    } else {
        format!("kaskade: {}", failure.message())
    };
    stderr::say(&line);
    stderr::flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile was lost if the disk was full when it was written.
    #[test]
    fn measurements_that_cannot_be_written_are_kept_elsewhere() {
        let error = write_measured(Path::new("/proc/kept-profile.json"), "measured").unwrap_err();
        let message = report::in_one_line(error.as_ref());
        assert!(
            message.contains("/proc/kept-profile.json cannot be written"),
            "{message}"
        );
        let kept = message.strip_prefix("the measurements are in ").unwrap();
        let (kept, _) = kept.split_once(" instead: ").unwrap();
        assert_eq!(std::fs::read_to_string(kept).unwrap(), "measured");
        std::fs::remove_file(kept).unwrap();
    }
}
