//! The preprocessing thread: turns requests of a language model into tokens while the model computes its steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Command;
use crate::runtime::model::{Inputs, Preprocessor};

/// Starts the thread. It passes commands on to the model's thread in their order and ends with the last of its senders.
///
/// # Errors
/// When the operating system cannot start a thread.
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

/// Replaces inputs by what the model reads faster. What cannot be read, the model refuses, with the reason.
fn preprocess(preprocessor: &Preprocessor, inputs: &mut Inputs) {
    let preprocessed = catch_unwind(AssertUnwindSafe(|| preprocessor(inputs)));
    if let Ok(Some(preprocessed)) = preprocessed {
        *inputs = preprocessed;
    }
}
