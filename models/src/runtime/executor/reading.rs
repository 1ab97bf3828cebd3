//! The reading thread: turns requests of a language model into tokens while the model computes its steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::Command;
use crate::runtime::model::{Inputs, Reader};

/// Starts the thread. It passes commands on to the model's thread in their order and ends with the last of its senders.
///
/// # Errors
/// When the operating system cannot start a thread.
pub(super) fn start(name: &str, reader: Reader, model: Sender<Command>) -> std::io::Result<Sender<Command>> {
    let (commands, queue) = channel();
    std::thread::Builder::new()
        .name(format!("{name}-reading"))
        .spawn(move || read_all(&queue, &reader, &model))?;
    Ok(commands)
}

fn read_all(queue: &Receiver<Command>, reader: &Reader, model: &Sender<Command>) {
    while let Ok(mut command) = queue.recv() {
        if let Command::Submit { inputs, .. } = &mut command {
            read(reader, inputs);
        }
        if model.send(command).is_err() {
            break;
        }
    }
}

/// Replaces inputs by what the model reads faster. What cannot be read, the model refuses, with the reason.
fn read(reader: &Reader, inputs: &mut Inputs) {
    let read = catch_unwind(AssertUnwindSafe(|| reader(inputs)));
    if let Ok(Some(read)) = read {
        *inputs = read;
    }
}
