//! The log on standard error.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Usage;
use crate::stderr;

/// Starts logging: warnings and errors by default, otherwise as the filter in `KASKADE_LOG` says (`info`,
/// `kaskade_actors=debug`). `KASKADE_LOG_FORMAT=json` makes log lines JSON. With `--json` nothing is logged by default: what reads standard
/// error expects the error alone. With `holds`, lines about permissions that the broker refuses are kept back until [`release`].
///
/// # Errors
/// When a variable has a value that is not valid, or the system gives no thread.
pub(crate) fn init(json: bool, holds: bool) -> anyhow::Result<()> {
    let filter = match variable("KASKADE_LOG") {
        Some(text) => filter(&text)?,
        None => EnvFilter::new(if json { "off" } else { "warn" }),
    };
    let lines_are_json = match variable("KASKADE_LOG_FORMAT") {
        Some(text) => is_json(&text)?,
        None => false,
    };
    let started = stderr::start(lines_are_json);
    started.context("the system gives no thread for the log; it may be out of threads or memory")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Line { holds })
        .with_ansi(std::io::stderr().is_terminal());
    // Initialisation fails only if a subscriber is already set; that one stays.
    let _ = if lines_are_json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
    Ok(())
}

/// Texts of the broker about a permission that a user lacks, and about unknown credentials.
const REFUSED: [&str; 2] = ["Permissions Violation", "Authorization Violation"];

/// Lines that are kept back: the error of a command usually says the same.
static HELD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Writes the lines that were kept back; drops them if the error that follows says the same.
pub(crate) fn release(is_said: bool) {
    let held = std::mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
    if !is_said {
        stderr::write(&held);
    }
}

/// Writes one event, which the subscriber formats whole before it writes it.
struct Line {
    holds: bool,
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.holds && is_refusal(line) {
            let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
            held.extend_from_slice(line);
            return Ok(line.len());
        }
        stderr::write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns whether a line is about a permission or credentials that the broker refuses.
fn is_refusal(line: &[u8]) -> bool {
    REFUSED.iter().any(|text| {
        line.windows(text.len())
            .any(|part| part.eq_ignore_ascii_case(text.as_bytes()))
    })
}

/// Returns the value of an environment variable; `None` if it is unset or empty.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

/// Parses `KASKADE_LOG`. A single word is a level: the parser would take another one for the name of a module, and log nothing.
fn filter(text: &str) -> Result<EnvFilter, Usage> {
    let is_level = |part: &str| part.trim().parse::<LevelFilter>().is_ok();
    // Commas may also stand between the fields of a span, in brackets.
    let is_known = |part: &str| part.contains(['=', '[', ']', '{', '}']) || is_level(part);
    let parsed = text.split(',').all(is_known).then(|| EnvFilter::try_new(text));
    match parsed {
        Some(Ok(filter)) => Ok(filter),
        _ => Err(Usage::new(format!(
            "KASKADE_LOG: `{text}` is not a filter of the log; use `error`, `warn`, `info`, `debug`, `trace` or `off`, for single modules \
             `kaskade_actors=debug`, and commas between several"
        ))),
    }
}

/// Parses `KASKADE_LOG_FORMAT`.
fn is_json(text: &str) -> Result<bool, Usage> {
    if text == "json" {
        return Ok(true);
    }
    Err(Usage::new(format!(
        "KASKADE_LOG_FORMAT: `{text}` is not a format of the log; use `json`, or unset it for lines of text"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_permissions_are_told_from_other_lines() {
        let refused = b"WARN error event=nats: Permissions Violation for Publish to \"x\"";
        assert!(is_refusal(refused));
        assert!(is_refusal(
            b"ERROR async_nats::connector: authorization violation"
        ));
        assert!(!is_refusal(b"WARN lost the connection to the broker"));
    }

    /// What is not valid was ignored.
    #[test]
    fn settings_of_the_log_that_are_not_valid_are_refused() {
        for valid in [
            "info",
            "OFF",
            "warn,kaskade_actors=debug",
            "kaskade_actors[request{id=1}]=trace",
        ] {
            assert!(filter(valid).is_ok(), "{valid}");
        }
        for wrong in ["verbose", "warning", "kaskade_actors=loud", "info,debugg"] {
            let error = filter(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("`info`"), "{error}");
        }
        assert!(is_json("json").unwrap());
        let error = is_json("yaml").unwrap_err().to_string();
        assert!(error.contains("`yaml`") && error.contains("`json`"), "{error}");
    }
}
