//! Ctrl-C in commands that say or print something before they end. A second one ends the process at once.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::{Failure, INTERRUPTED, Interrupted};
use crate::output;

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

/// The message with which Ctrl-C ends the process.
pub(crate) struct Ending(Arc<Mutex<String>>);

impl Ending {
    /// Does what makes the message another one, if it succeeds. Ctrl-C waits for it.
    ///
    /// # Errors
    /// As `act`.
    pub(crate) fn after<T, E>(&self, message: String, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act()?;
        *current = message;
        Ok(done)
    }
}

/// Makes the first Ctrl-C from now on end the process, with a message: an error of `--json` if `json` is true.
///
/// # Errors
/// As [`first`].
pub(crate) fn end_with(message: String, json: bool) -> anyhow::Result<Ending> {
    let (runtime, mut interrupts) = handler()?;
    let ending = Arc::new(Mutex::new(message));
    let message = Arc::clone(&ending);
    std::thread::spawn(move || {
        runtime.block_on(interrupts.recv());
        let message = message.lock().unwrap_or_else(PoisonError::into_inner);
        output::print_error(
            &Failure::from_error(&Interrupted::new(message.as_str()).into()),
            json,
        );
        process::exit(INTERRUPTED.into());
    });
    Ok(Ending(ending))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Ctrl-C said that a profile was not written while its table was printed.
    #[test]
    fn the_message_is_another_one_after_what_succeeded() {
        let ending = Ending(Arc::new(Mutex::new("a was not written".to_owned())));
        let said = || ending.0.lock().unwrap().clone();
        let failed: Result<(), ()> = ending.after("a is written".to_owned(), || Err(()));
        assert_eq!((failed, said().as_str()), (Err(()), "a was not written"));
        let written: Result<u8, ()> = ending.after("a is written".to_owned(), || Ok(1));
        assert_eq!((written, said().as_str()), (Ok(1), "a is written"));
    }
}
