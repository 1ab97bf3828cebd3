//! The log on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging: warnings and errors by default, otherwise as the filter in `KASKADE_LOG` says (`info`,
/// `kaskade_actors=debug`). `KASKADE_LOG_FORMAT=json` makes log lines JSON. With `--json` nothing is logged by default: what reads standard
/// error expects the error alone.
pub(crate) fn init(json: bool) {
    let filter = std::env::var("KASKADE_LOG")
        .ok()
        .filter(|filter| !filter.is_empty())
        .and_then(|filter| EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| EnvFilter::new(if json { "off" } else { "warn" }));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Initialisation fails only if a subscriber is already set; that one stays.
    let _ = if std::env::var("KASKADE_LOG_FORMAT").is_ok_and(|format| format == "json") {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
}
