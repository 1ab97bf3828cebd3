//! What the process says while it runs, on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging: warnings and worse, or what `KASKADE_LOG` asks for (`info`, `kaskade_actors=debug`); as JSON lines where
/// `KASKADE_LOG_FORMAT` is `json`.
pub(crate) fn init() {
    let filter = EnvFilter::try_from_env("KASKADE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second initialisation only happens when the caller has set logging up already; theirs stands.
    let _ = if std::env::var("KASKADE_LOG_FORMAT").is_ok_and(|format| format == "json") {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
}
