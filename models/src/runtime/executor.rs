//! The executor: one thread per model.
//!
//! A model blocks while a batch runs, may not be movable between threads once its device is initialised, and may panic
//! in third-party code. The executor therefore builds, runs and drops the model on one dedicated thread, and checks
//! every output before it returns it. A model with [`Model::runs_inline`] runs on the caller's thread instead, as long
//! as its batches are short.

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
/// [`Continuous`](crate::runtime::model::Continuous), requests that join and leave between steps. Dropping the
/// executor waits for the running batch or step.
pub struct Executor {
    /// Sends commands to the model's thread; `None` only during drop.
    commands: Option<Sender<Command>>,
    /// Sends requests to the preprocessing thread, which forwards them; `None` if the model's thread parses requests.
    preprocessing: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    /// Runs batches on the caller's thread while the model is inline.
    inline: Inline,
    busy: Arc<AtomicBool>,
    signature: Signature,
    answers: Answers,
    continuous: bool,
    /// Wakes a step that waits, so that the thread takes the next command.
    waker: Option<Waker>,
    availability: Option<Availability>,
}

/// Result of one step of a continuous model.
#[derive(Debug)]
pub struct StepResult {
    /// Progress of the requests; every `Ok` result has passed `check_outputs`.
    pub progress: Vec<Progress>,
    /// Duration of the step, microseconds: wall time, or CPU time for a model whose steps wait for others.
    pub run_us: u64,
}

/// Callback for the results of steps; runs on the model's thread.
type Listener = Box<dyn FnMut(StepResult) + Send>;

/// Result of one batch.
#[derive(Debug)]
pub struct BatchResult {
    /// One result per request, in order; every `Ok` has passed `check_outputs`.
    pub outputs: Vec<Result<Outputs, ModelError>>,
    /// The batch, returned unchanged so that the caller need not copy inputs that it forwards.
    pub inputs: Vec<Inputs>,
    /// Wall time of the run, microseconds.
    pub run_us: u64,
}

/// Why a batch was not accepted. Each variant returns the batch unchanged.
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
    /// Runs this model from now on.
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

/// Properties of a model, reported once the model is built.
struct Traits {
    signature: Signature,
    answers: Answers,
    continuous: bool,
    waker: Option<Waker>,
    availability: Option<Availability>,
    preprocessor: Option<Preprocessor>,
    /// The model, if its batches run on the caller's thread.
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
                        // Sending fails only if the process is shutting down.
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

    /// Returns the inputs of the model.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Returns the model's [`Model::answers`].
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Returns whether the model batches continuously; [`Executor::submit`] then passes requests.
    pub fn is_continuous(&self) -> bool {
        self.continuous
    }

    /// Returns the model's availability flag ([`Model::availability`]).
    pub fn availability(&self) -> Option<&Availability> {
        self.availability.as_ref()
    }

    /// Returns whether the model's steps wait for others, such as a remote endpoint, instead of computing
    /// ([`crate::runtime::model::Continuous::waker`]): number and duration of steps are then meaningless.
    pub fn waits_for_others(&self) -> bool {
        self.waker.is_some()
    }

    /// Registers the callback for steps; it replaces the previous one. It runs on the model's thread and blocks it, so
    /// it should only forward the result.
    pub fn listen(&self, listener: impl FnMut(StepResult) + Send + 'static) {
        self.send(Command::Listen(Box::new(listener)));
    }

    /// Submits a request under a number that no other request in flight has. The listener receives its progress,
    /// including a rejection by the model. Returns false if the model's thread has ended.
    pub fn submit(&self, number: u64, inputs: Inputs) -> bool {
        self.submit_within(number, inputs, Duration::MAX)
    }

    /// Submits a request like [`Executor::submit`], with the time within which it must be answered.
    pub fn submit_within(&self, number: u64, inputs: Inputs, budget: Duration) -> bool {
        self.send(Command::Submit {
            number,
            inputs,
            budget,
        })
    }

    /// Cancels a request before the model's next step; the listener receives no further progress of the request.
    pub fn cancel(&self, number: u64) {
        self.send(Command::Cancel(number));
    }

    fn send(&self, command: Command) -> bool {
        // A cancellation takes the same channel as its request, so that it cannot overtake the request.
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

    /// Stops the model without waiting: its thread finishes the running batch or step and drops the model. Later
    /// batches are rejected. The result waits for the thread.
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

    /// Returns whether batches run on the caller's thread.
    #[cfg(test)]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline.has_model()
    }

    /// Submits a batch and returns immediately. Calls `done` on the model's thread once the executor is free for the
    /// next batch; `done` blocks that thread, so it should only forward the result. If the model runs inline, the
    /// batch is complete and `done` has been called, on this thread, when this returns.
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
                    // Sending fails if the thread has ended; the next batch then returns an error.
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

/// Handle of the thread of a model that is stopping.
#[derive(Debug)]
pub struct Ending(Option<JoinHandle<()>>);

impl Ending {
    /// Blocks until the model is dropped. Returns at once on the model's own thread.
    pub fn wait(self) {
        // The last handle may be dropped inside `done`, on the model's thread, which cannot join itself.
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

/// Returns the traits of a model, and the model for its thread: a placeholder if it runs on the caller's thread.
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

/// Calls the receiver of a result. Logs a panic of the receiver.
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

/// Runs a batch. A panic does not reveal which request caused it, so a batch that panics runs again in halves until
/// the failing request is isolated and the others are answered. One such request costs `2 * log2(batch size)`
/// additional runs.
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

/// Returns one result per request, with checked outputs. If the number of results is wrong, results cannot be assigned
/// to requests, and all requests fail.
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
