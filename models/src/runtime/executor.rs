//! The executor: one thread per model.
//!
//! A model blocks for as long as a batch takes, may not be movable between threads once its device is initialised, and
//! may panic in third-party code. The executor therefore builds, runs and drops the model on one dedicated thread, and
//! checks every output before it returns it. A model that asks for it ([`Model::runs_inline`]) runs on the thread of the
//! caller instead, for as long as its batches are short.

mod clocks;
mod in_flight;
mod inline;
mod preprocessing;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::device::panic_message;
use crate::runtime::answers::Answers;
use crate::runtime::model::{
    Availability, Inputs, Model, ModelError, Outputs, Preprocessor, Progress, Signature, Waker, check_outputs,
};
use in_flight::InFlight;
use inline::{Inline, Ran, ThreadMoved};

/// A model on its own thread. It runs one batch at a time or, if the model is
/// [`Continuous`](crate::runtime::model::Continuous), requests that join and leave between its steps. Dropping it waits
/// for the batch or the step in progress.
pub struct Executor {
    /// `None` only while the executor is dropped.
    commands: Option<Sender<Command>>,
    /// Takes requests to the preprocessing thread, which passes them on; `None` if the model's own thread reads them.
    preprocessing: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    /// Runs batches here, as long as it has the model.
    inline: Inline,
    busy: Arc<AtomicBool>,
    signature: Signature,
    answers: Answers,
    continuous: bool,
    /// Ends a step that waits, so that it takes the next command.
    waker: Option<Waker>,
    availability: Option<Availability>,
}

/// Result of one step of a continuous model.
#[derive(Debug)]
pub struct StepResult {
    /// Progress of the requests; every `Ok` end has passed `check_outputs`.
    pub progress: Vec<Progress>,
    /// Time of the step, microseconds: wall time, or processor time of a model whose steps wait for others.
    pub run_us: u64,
}

/// Callback for the results of steps; runs on the model's thread.
type Listener = Box<dyn FnMut(StepResult) + Send>;

/// Result of one batch.
#[derive(Debug)]
pub struct BatchResult {
    /// One result per request, in order; every `Ok` has passed `check_outputs`.
    pub outputs: Vec<Result<Outputs, ModelError>>,
    /// The batch, unchanged, so that its owner need not copy inputs that it forwards.
    pub inputs: Vec<Inputs>,
    /// Wall time of the model's run, microseconds.
    pub run_us: u64,
}

/// Why a batch was not accepted. The variants return the batch unchanged.
#[derive(Debug, Error)]
pub enum RunError {
    /// Another batch is running.
    #[error("the model is busy with another batch")]
    Busy(Vec<Inputs>),
    /// The model's thread has ended.
    #[error("the model's thread has ended; load the model again")]
    Stopped(Vec<Inputs>),
}

/// Why an executor could not be started.
#[derive(Debug, Error)]
pub enum SpawnError<E> {
    /// The model could not be built.
    #[error(transparent)]
    Build(E),
    /// Building the model panicked.
    #[error("building the model panicked: {reason}")]
    Panicked {
        /// Message of the panic.
        reason: String,
    },
    /// The operating system could not start a thread.
    #[error("cannot start the model's thread: {0}")]
    Thread(std::io::Error),
}

/// Commands to the model's thread.
enum Command {
    /// Runs this model from here on.
    Model(Box<dyn Model>),
    Batch {
        batch: Vec<Inputs>,
        done: Box<dyn FnOnce(BatchResult) + Send>,
    },
    Listen(Listener),
    Submit {
        number: u64,
        inputs: Inputs,
        budget: Duration,
    },
    Cancel(u64),
}

/// Properties of a model, reported once it is built.
struct Traits {
    signature: Signature,
    answers: Answers,
    continuous: bool,
    waker: Option<Waker>,
    availability: Option<Availability>,
    preprocessor: Option<Preprocessor>,
    /// The model, if its batches run on the thread of the caller.
    inline: Option<Box<dyn Model>>,
}

impl Executor {
    /// Builds a model on a new thread named `name` and waits until it is ready.
    ///
    /// # Errors
    /// [`SpawnError`] if the model cannot be built or the thread cannot be started.
    pub fn spawn<E: Send + 'static>(
        name: &str,
        model: impl FnOnce() -> Result<Box<dyn Model>, E> + Send + 'static,
    ) -> Result<Self, SpawnError<E>> {
        let (commands, queue) = channel();
        let (report, ready) = sync_channel(1);
        let busy = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn({
                let busy = Arc::clone(&busy);
                move || match build(model) {
                    Err(error) => drop(report.send(Err(error))),
                    Ok(model) => {
                        let (traits, model) = traits(model);
                        // The receiver is gone if the process is shutting down.
                        if report.send(Ok(traits)).is_ok() {
                            serve(model, &queue, &busy);
                        }
                    }
                }
            })
            .map_err(SpawnError::Thread)?;
        let traits = ready.recv().unwrap_or_else(|_| {
            Err(SpawnError::Panicked {
                reason: "its thread ended without a report".into(),
            })
        })?;
        let preprocessing = traits
            .preprocessor
            .map(|preprocessor| preprocessing::start(name, preprocessor, commands.clone()))
            .transpose()
            .map_err(SpawnError::Thread)?;
        Ok(Self {
            commands: Some(commands),
            preprocessing,
            thread: Some(thread),
            inline: Inline::new(traits.inline),
            busy,
            signature: traits.signature,
            answers: traits.answers,
            continuous: traits.continuous,
            waker: traits.waker,
            availability: traits.availability,
        })
    }

    /// The inputs that a request must have.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns what the model answers ([`Model::answers`]).
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Returns whether the model batches continuously; requests are then passed by [`Executor::submit`].
    pub fn is_continuous(&self) -> bool {
        self.continuous
    }

    /// Returns the model's availability flag ([`Model::availability`]).
    pub fn availability(&self) -> Option<&Availability> {
        self.availability.as_ref()
    }

    /// Returns whether the model's steps wait for others, such as a remote endpoint, instead of computing
    /// ([`crate::runtime::model::Continuous::waker`]): their number and run time say nothing about the model.
    pub fn waits_for_others(&self) -> bool {
        self.waker.is_some()
    }

    /// Registers the callback for steps; it replaces the previous one. It runs on the model's thread and blocks it, so
    /// it should only forward the result.
    pub fn listen(&self, listener: impl FnMut(StepResult) + Send + 'static) {
        self.send(Command::Listen(Box::new(listener)));
    }

    /// Submits a request under a number that no other request in flight has. The listener receives its progress, also
    /// if the model rejects it. Returns false if the model's thread has ended.
    pub fn submit(&self, number: u64, inputs: Inputs) -> bool {
        self.submit_within(number, inputs, Duration::MAX)
    }

    /// Submits a request like [`Executor::submit`], with the time in which it must be answered.
    pub fn submit_within(&self, number: u64, inputs: Inputs, budget: Duration) -> bool {
        self.send(Command::Submit {
            number,
            inputs,
            budget,
        })
    }

    /// Cancels a request before the model's next step; the listener receives nothing more about it.
    pub fn cancel(&self, number: u64) {
        self.send(Command::Cancel(number));
    }

    fn send(&self, command: Command) -> bool {
        // A request is cancelled on the same way as it came, so that neither overtakes the other.
        let way = match command {
            Command::Submit { .. } | Command::Cancel(_) => {
                self.preprocessing.as_ref().or(self.commands.as_ref())
            }
            Command::Batch { .. } | Command::Listen(_) | Command::Model(_) => self.commands.as_ref(),
        };
        let sent = way.is_some_and(|commands| commands.send(command).is_ok());
        self.wake();
        sent
    }

    fn wake(&self) {
        if let Some(wake) = &self.waker {
            wake();
        }
    }

    /// Ends the model without waiting for it: its thread finishes the batch or the step in progress and drops the model. Later
    /// batches are refused. The handle waits for that thread.
    pub fn end(&mut self) -> Ending {
        self.commands = None;
        self.preprocessing = None;
        self.inline.end();
        self.wake();
        Ending(self.thread.take())
    }

    /// Returns whether a batch is running.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Returns whether batches run on the thread of the caller.
    #[cfg(test)]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.has_model()
    }

    /// Submits a batch and returns at once. `done` runs on the model's thread after the executor is free for the next
    /// batch; it blocks that thread, so it should only forward the result. If the model runs inline, the batch has ended and
    /// `done` was called, on this thread, when this returns.
    ///
    /// # Errors
    /// [`RunError`] with the batch; `done` is then not called.
    pub fn run(
        &self,
        batch: Vec<Inputs>,
        done: impl FnOnce(BatchResult) + Send + 'static,
    ) -> Result<(), RunError> {
        let Some(commands) = &self.commands else {
            return Err(RunError::Stopped(batch));
        };
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(RunError::Busy(batch));
        }
        let batch = match self.inline.run(batch) {
            Ok(Ran { result, model }) => {
                if let Some(model) = model {
                    tracing::warn!(
                        run_us = result.run_us,
                        "the batches of a model that runs inline take long; it gets a thread of its own"
                    );
                    // Without a receiver the thread has ended, which the next batch finds out.
                    let _ = commands.send(Command::Model(model));
                }
                self.busy.store(false, Ordering::Release);
                call_receiver(|| done(result));
                return Ok(());
            }
            Err(batch) => batch,
        };
        let done = Box::new(done);
        commands.send(Command::Batch { batch, done }).map_err(|returned| {
            self.busy.store(false, Ordering::Release);
            match returned.0 {
                Command::Batch { batch, .. } => RunError::Stopped(batch),
                _ => RunError::Stopped(Vec::new()),
            }
        })
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("signature", &self.signature)
            .field("continuous", &self.continuous)
            .finish_non_exhaustive()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.end().wait();
    }
}

/// The thread of a model that was asked to end.
#[derive(Debug)]
pub struct Ending(Option<JoinHandle<()>>);

impl Ending {
    /// Waits until the model is dropped. Blocks the calling thread, unless that is the model's own.
    pub fn wait(self) {
        // The last handle may be dropped inside `done`, on the thread itself, which cannot join itself.
        let elsewhere = self
            .0
            .filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = elsewhere {
            drop(thread.join());
        }
    }
}

fn build<E>(model: impl FnOnce() -> Result<Box<dyn Model>, E>) -> Result<Box<dyn Model>, SpawnError<E>> {
    match catch_unwind(AssertUnwindSafe(model)) {
        Ok(built) => built.map_err(SpawnError::Build),
        Err(panic) => Err(SpawnError::Panicked {
            reason: panic_message(panic.as_ref()),
        }),
    }
}

/// Returns the traits of a model, and what its thread runs: the model, or a stand-in if it runs on the thread of its caller.
fn traits(mut model: Box<dyn Model>) -> (Traits, Box<dyn Model>) {
    let mut traits = Traits {
        signature: model.signature(),
        answers: model.answers(),
        continuous: model.continuous().is_some(),
        waker: model.continuous().and_then(|model| model.waker()),
        availability: model.availability(),
        preprocessor: model.continuous().and_then(|model| model.preprocessor()),
        inline: None,
    };
    if traits.continuous || !model.runs_inline() {
        return (traits, model);
    }
    traits.inline = Some(model);
    (traits, Box::new(ThreadMoved))
}

fn serve(mut model: Box<dyn Model>, queue: &Receiver<Command>, busy: &AtomicBool) {
    let mut in_flight = InFlight::default();
    while let Some(command) = in_flight.next(queue) {
        match command {
            Some(Command::Batch { batch, done }) => {
                let result = run(model.as_mut(), batch);
                busy.store(false, Ordering::Release);
                call_receiver(|| done(result));
            }
            Some(Command::Model(handed_over)) => model = handed_over,
            Some(Command::Listen(listener)) => in_flight.listener = Some(listener),
            Some(Command::Submit {
                number,
                inputs,
                budget,
            }) => in_flight.submit(model.as_mut(), number, &inputs, budget),
            Some(Command::Cancel(number)) => in_flight.cancel(model.as_mut(), number),
            None => in_flight.step(model.as_mut()),
        }
    }
}

/// Calls the receiver of a result and logs its panic, if it panics.
fn call_receiver(receiver: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(receiver)) {
        tracing::error!(
            reason = panic_message(panic.as_ref()),
            "the receiver of a result panicked"
        );
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> ModelError {
    failed(format!("it panicked: {}", panic_message(panic)))
}

/// Runs a batch. A panic does not tell which request caused it, so a batch that panics runs again in halves until the
/// failing request is alone and the others are answered. One such request costs twice the logarithm of the batch size
/// in additional runs.
fn run_halving(model: &mut dyn Model, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
    match catch_unwind(AssertUnwindSafe(|| model.run(batch))) {
        Ok(outputs) => check_results(outputs, batch.len()),
        Err(panic) if batch.len() < 2 => vec![Err(panicked(panic.as_ref()))],
        Err(_) => {
            let (front, back) = batch.split_at(batch.len() / 2);
            let mut outputs = run_halving(model, front);
            outputs.extend(run_halving(model, back));
            outputs
        }
    }
}

fn run(model: &mut dyn Model, batch: Vec<Inputs>) -> BatchResult {
    let started = Instant::now();
    let outputs = if batch.is_empty() {
        Vec::new()
    } else {
        run_halving(model, &batch)
    };
    let run_us = started.elapsed().as_micros() as u64;
    BatchResult {
        outputs,
        inputs: batch,
        run_us,
    }
}

/// Returns one result per request, with checked outputs. If the number of results is wrong, they cannot be assigned to
/// requests, and all requests fail.
fn check_results(
    outputs: Vec<Result<Outputs, ModelError>>,
    requests: usize,
) -> Vec<Result<Outputs, ModelError>> {
    let results = outputs.len();
    if results != requests {
        return vec![
            Err(failed(format!(
                "it returned {results} results for {requests} requests"
            )));
            requests
        ];
    }
    outputs
        .into_iter()
        .map(|outputs| outputs.and_then(check_outputs))
        .collect()
}

fn failed(reason: String) -> ModelError {
    ModelError::Failed { reason }
}

#[cfg(test)]
mod tests;
