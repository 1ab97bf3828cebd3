//! Shows the progress of long work on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::units;

/// Interval of progress lines if standard error is not a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Progress of work with a known number of steps.
#[derive(Debug)]
pub struct Progress {
    label: String,
    started: Instant,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Bar(ProgressBar),
    Plain {
        total: u64,
        done: u64,
        printed_at: Instant,
    },
    Quiet,
}

impl Progress {
    /// Starts the progress of `total` steps. With `quiet`, prints nothing.
    pub fn begin(label: impl Into<String>, total: u64, quiet: bool) -> Self {
        let label = label.into();
        let started = Instant::now();
        let kind = if quiet {
            Kind::Quiet
        } else if std::io::stderr().is_terminal() {
            Kind::Bar(bar(&label, total))
        } else {
            Kind::Plain {
                total,
                done: 0,
                printed_at: started,
            }
        };
        Self { label, started, kind }
    }

    /// Adds `steps` finished steps.
    pub fn advance(&mut self, steps: u64) {
        match &mut self.kind {
            Kind::Bar(bar) => bar.inc(steps),
            Kind::Plain {
                total,
                done,
                printed_at,
            } => {
                *done += steps;
                if printed_at.elapsed() >= PLAIN_EVERY {
                    *printed_at = Instant::now();
                    say(&format!("{}: {done} of {total}", self.label));
                }
            }
            Kind::Quiet => {}
        }
    }

    /// Ends the progress and prints the result of the work.
    pub fn end(self, outcome: &str) {
        let line = || {
            let took = units::seconds(self.started.elapsed().as_secs_f64());
            format!("{}: {outcome} ({took})", self.label)
        };
        match &self.kind {
            Kind::Bar(bar) => {
                bar.finish_and_clear();
                say(&line());
            }
            Kind::Plain { .. } => say(&line()),
            Kind::Quiet => {}
        }
    }
}

/// Runs work, and returns its result and duration.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let done = work();
    (done, started.elapsed())
}

/// Runs work without countable steps, and prints every few seconds that it continues. With `quiet`, prints nothing.
pub fn with_progress_line<T>(label: &str, quiet: bool, work: impl FnOnce() -> T) -> T {
    if quiet {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, over) = channel::<()>();
        scope.spawn(move || {
            let started = Instant::now();
            while over.recv_timeout(PLAIN_EVERY) == Err(RecvTimeoutError::Timeout) {
                say(&format!("{label} ({:.0} s)", started.elapsed().as_secs_f64()));
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// Prints a line on standard error.
pub fn say(line: &str) {
    // Continue if standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn bar(label: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32} {bar:32} {pos}/{len} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style);
    bar.set_message(label.to_owned());
    bar
}
