//! Lines on standard error, which a thread writes ([`queue`]): if standard error is not read, the process continues.

mod queue;

use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use queue::Queue;

/// Time within which the end of the process waits for lines that are not written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The lines, once the thread runs.
static LINES: OnceLock<Queue> = OnceLock::new();

/// Starts the thread, unless it runs. `json` says that what it states itself is JSON.
///
/// # Errors
/// When the system gives no thread.
pub(crate) fn start(json: bool) -> io::Result<()> {
    let lines = Queue::start(io::stderr(), json)?;
    LINES.get_or_init(|| lines);
    Ok(())
}

/// Prints a line after those so far, without waiting for what reads it.
pub(crate) fn say(line: &str) {
    write(format!("{line}\n").as_bytes());
}

/// Prints whole lines, as [`say`] does.
pub(crate) fn write(lines: &[u8]) {
    match LINES.get() {
        Some(queue) => queue.push(lines),
        // A closed standard error leaves no place for a message.
        None => drop(io::stderr().lock().write_all(lines)),
    }
}

/// Waits until the lines so far are written, at most for [`FLUSH_TIMEOUT`]. Call it before the process ends.
pub(crate) fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_TIMEOUT);
    }
}
