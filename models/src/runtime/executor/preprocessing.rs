//! The preprocessing thread: tokenizes requests of a language model while the model computes its steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Command;
use crate::runtime::model::{Inputs, Preprocessor};

/// Starts the thread. It forwards commands to the model's thread in order, and ends when all senders are dropped.
///
/// # Errors
/// The error of the operating system if it cannot start a thread.
pub(super) fn start(
    name: &str,
    preprocessor: Preprocessor,
    model: Sender<Command>,
) -> std::io::Result<Sender<Command>> {
    let (commands, queue) = channel();
    std::thread::Builder::new()
        .name(format!("{name}-preprocessing"))
        .spawn(move || preprocess_all(&queue, &preprocessor, &model))?;
    Ok(commands)
}

fn preprocess_all(queue: &Receiver<Command>, preprocessor: &Preprocessor, model: &Sender<Command>) {
    while let Ok(mut command) = queue.recv() {
        if let Command::Submit { inputs, .. } = &mut command {
            preprocess(preprocessor, inputs);
        }
        if model.send(command).is_err() {
            break;
        }
    }
}

/// Replaces inputs by their preprocessed form. Inputs that cannot be parsed stay unchanged, so that the model rejects
/// them with a reason.
fn preprocess(preprocessor: &Preprocessor, inputs: &mut Inputs) {
    let preprocessed = catch_unwind(AssertUnwindSafe(|| preprocessor(inputs)));
    if let Ok(Some(preprocessed)) = preprocessed {
        *inputs = preprocessed;
    }
}
