//! Ctrl-C in commands that say or print something before they end. A second one ends the process at once.

use std::fmt;
use std::process;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::{Failure, INTERRUPTED};
use crate::output;

/// Ctrl-C ended the command.
#[derive(Debug)]
pub(crate) struct Interrupted(String);

impl Interrupted {
    /// States what the command has done until then.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Returns a receiver that resolves with the first Ctrl-C from now on.
///
/// # Errors
/// When the system gives no signal handler.
pub(crate) fn first() -> anyhow::Result<oneshot::Receiver<()>> {
    let (runtime, mut interrupts) = handler()?;
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            interrupts.recv().await;
            // The command is over.
            let _ = sender.send(());
            interrupts.recv().await;
            process::exit(INTERRUPTED.into());
        });
    });
    Ok(receiver)
}

/// Makes the first Ctrl-C from now on end the process, with a message: an error of `--json` if `json` is true.
///
/// # Errors
/// As [`first`].
pub(crate) fn end_with(message: &str, json: bool) -> anyhow::Result<()> {
    let (runtime, mut interrupts) = handler()?;
    let failure = Failure::of(&Interrupted::new(message).into());
    std::thread::spawn(move || {
        runtime.block_on(interrupts.recv());
        output::print_error(&failure, json);
        process::exit(INTERRUPTED.into());
    });
    Ok(())
}

fn handler() -> anyhow::Result<(Runtime, Signal)> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the system gives no thread for signals")?;
    let interrupts = runtime.block_on(async { signal(SignalKind::interrupt()) });
    let interrupts = interrupts.context("the system gives no signal handler")?;
    Ok((runtime, interrupts))
}
