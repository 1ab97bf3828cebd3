//! In-flight requests of a continuous model, and its steps.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use super::clocks::thread_us;
use super::{Command, Listener, StepResult, call_receiver, failed, panicked};
use crate::device::panic_message;
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Progress, check_outputs};

/// In-flight requests of a continuous model.
#[derive(Default)]
pub(super) struct InFlight {
    /// Output units so far (tokens of a language model), by request number.
    pieces: BTreeMap<u64, u32>,
    pub(super) listener: Option<Listener>,
}

impl InFlight {
    /// Returns the next command, or `Some(None)` to run a step if no command is queued and requests are in flight.
    /// `None` once all handles are dropped.
    #[expect(
        clippy::option_option,
        reason = "no command means a step, a closed channel means the end"
    )]
    pub(super) fn next(&self, queue: &Receiver<Command>) -> Option<Option<Command>> {
        if self.pieces.is_empty() {
            return queue.recv().ok().map(Some);
        }
        match queue.try_recv() {
            Ok(command) => Some(Some(command)),
            Err(TryRecvError::Empty) => Some(None),
            Err(TryRecvError::Disconnected) => None,
        }
    }

    pub(super) fn submit(&mut self, model: &mut dyn Model, number: u64, inputs: &Inputs, budget: Duration) {
        let taken = catch_unwind(AssertUnwindSafe(|| match model.continuous() {
            Some(model) => model.submit_within(number, inputs, budget),
            None => Err(failed("it does not support continuous batching".to_owned())),
        }));
        match taken.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))) {
            Ok(()) => {
                self.pieces.insert(number, 0);
            }
            Err(error) => self.notify(vec![failed_progress(number, 0, error)], 0),
        }
    }

    pub(super) fn cancel(&mut self, model: &mut dyn Model, number: u64) {
        if self.pieces.remove(&number).is_some() {
            cancel_in_model(model, number);
        }
    }

    pub(super) fn step(&mut self, model: &mut dyn Model) {
        let (started, used) = (Instant::now(), thread_us());
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            let model = model.continuous()?;
            Some((model.waker().is_some(), model.step()))
        }));
        let (waits, stepped) = match stepped {
            Ok(Some((waits, progress))) => (waits, Ok(progress)),
            Ok(None) => (false, Ok(Vec::new())),
            Err(panic) => (false, Err(panic)),
        };
        let run_us = if waits {
            thread_us().saturating_sub(used)
        } else {
            started.elapsed().as_micros() as u64
        };
        let progress = match stepped {
            Ok(progress) => self.servable(progress),
            Err(panic) => {
                let lost = std::mem::take(&mut self.pieces);
                let error = panicked(panic.as_ref());
                lost.into_iter()
                    .map(|(number, pieces)| {
                        cancel_in_model(model, number);
                        failed_progress(number, pieces, error.clone())
                    })
                    .collect()
            }
        };
        self.notify(progress, run_us);
    }

    /// Returns the progress of requests in flight, with checked outputs.
    fn servable(&mut self, progress: Vec<Progress>) -> Vec<Progress> {
        let mut updates = Vec::with_capacity(progress.len());
        for mut progress in progress {
            let Some(pieces) = self.pieces.get_mut(&progress.number) else {
                continue;
            };
            *pieces = progress.pieces;
            progress.end = progress.end.map(|end| end.and_then(check_outputs));
            if progress.end.is_some() {
                self.pieces.remove(&progress.number);
            }
            updates.push(progress);
        }
        updates
    }

    fn notify(&mut self, progress: Vec<Progress>, run_us: u64) {
        if let Some(listener) = &mut self.listener {
            call_receiver(|| listener(StepResult { progress, run_us }));
        }
    }
}

/// Cancels a request in the model, and catches a panic of the model.
fn cancel_in_model(model: &mut dyn Model, number: u64) {
    let forgotten = catch_unwind(AssertUnwindSafe(|| {
        if let Some(model) = model.continuous() {
            model.cancel(number);
        }
    }));
    if let Err(panic) = forgotten {
        tracing::error!(
            reason = panic_message(panic.as_ref()),
            "cancelling a request panicked"
        );
    }
}

fn failed_progress(number: u64, pieces: u32, error: ModelError) -> Progress {
    Progress {
        number,
        pieces,
        part: Outputs::new(),
        end: Some(Err(error)),
    }
}
