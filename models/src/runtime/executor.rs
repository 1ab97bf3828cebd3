//! The thread that a model lives on.
//!
//! A model blocks for as long as a batch takes, may not be movable between threads once its device is set up, and may
//! panic in code that nobody here wrote. So it gets one thread to itself, on which it is built, run and dropped, and
//! everything that comes out of it is checked before it is anyone's answer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};
use thiserror::Error;

use crate::device::panic_message;
use crate::runtime::model::Progress;
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature, check_outputs};

/// A model on its own thread: one batch at a time, or, where it is [`Continuous`](crate::runtime::model::Continuous), requests that come
/// and go between its steps. Dropping it waits for the batch or the step in hand.
#[derive(Debug)]
pub struct Executor {
    /// Absent only while it is being dropped.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    busy: Arc<AtomicBool>,
    signature: Signature,
    continuous: bool,
}

/// What came of one step of a continuous model.
#[derive(Debug)]
pub struct Stepped {
    /// What is new of whom; every `Ok` end has passed [`check_outputs`].
    pub progress: Vec<Progress>,
    /// Wall time of the step, microseconds.
    pub run_us: u64,
}

/// Whoever hears of steps, on the model's thread.
type Listener = Box<dyn FnMut(Stepped) + Send>;

/// What came of one batch.
#[derive(Debug)]
pub struct BatchResult {
    /// One result per request, in order; every `Ok` has passed [`check_outputs`].
    pub outputs: Vec<Result<Outputs, ModelError>>,
    /// Wall time of the model's run, microseconds.
    pub run_us: u64,
    /// CPU time of the model's thread in the run, microseconds. Helpers that it shares the work with are not in it.
    pub thread_cpu_us: u64,
    /// CPU time of the whole process during the run, microseconds: the model's helpers are in it, and whatever else
    /// the process did meanwhile.
    pub process_cpu_us: u64,
}

/// Why a batch was not taken; it comes back untouched.
#[derive(Debug, Error)]
pub enum RunError {
    /// Another batch is in hand.
    #[error("the model is busy with another batch")]
    Busy(Vec<Inputs>),
    /// The model's thread has ended.
    #[error("the model's thread has ended; load the model again")]
    Stopped(Vec<Inputs>),
}

/// Why there is no executor.
#[derive(Debug, Error)]
pub enum SpawnError<E> {
    /// The model was not built.
    #[error(transparent)]
    Build(E),
    /// Building the model panicked.
    #[error("building the model panicked: {reason}")]
    Panicked {
        /// What the panic said.
        reason: String,
    },
    /// The operating system gave no thread.
    #[error("no thread for the model: {0}")]
    Thread(std::io::Error),
}

/// What the model's thread is told.
enum Command {
    Batch {
        batch: Vec<Inputs>,
        done: Box<dyn FnOnce(BatchResult) + Send>,
    },
    Listen(Listener),
    Submit {
        number: u64,
        inputs: Inputs,
    },
    Cancel(u64),
}

/// What is known of a model once it is built.
struct Traits {
    signature: Signature,
    continuous: bool,
}

impl Executor {
    /// Builds a model on a thread of its own, named `name`, and waits until it is ready.
    ///
    /// # Errors
    /// [`SpawnError`] when the model is not built or there is no thread.
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
                    Ok(mut model) => {
                        let traits = Traits {
                            signature: model.signature(),
                            continuous: model.continuous().is_some(),
                        };
                        // Nobody waits for the report if the process is going down.
                        if report.send(Ok(traits)).is_ok() {
                            serve(model, &queue, &busy);
                        }
                    }
                }
            })
            .map_err(SpawnError::Thread)?;
        let traits = ready.recv().unwrap_or_else(|_| {
            Err(SpawnError::Panicked {
                reason: "its thread ended without a word".into(),
            })
        })?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
            busy,
            signature: traits.signature,
            continuous: traits.continuous,
        })
    }

    /// What a request must bring.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Whether requests may come and go between the model's steps: then it is given them by [`Executor::submit`].
    pub fn is_continuous(&self) -> bool {
        self.continuous
    }

    /// Has `listener` called after every step, on the model's thread, which waits for it to return: it should pass on what it hears and
    /// no more. It takes the place of the one before.
    pub fn listen(&self, listener: impl FnMut(Stepped) + Send + 'static) {
        self.send(Command::Listen(Box::new(listener)));
    }

    /// Hands over a request under a number unlike every other under way; whoever listens hears what becomes of it, also if the
    /// model refuses it. Whether the model's thread is there to hear of it.
    pub fn submit(&self, number: u64, inputs: Inputs) -> bool {
        self.send(Command::Submit { number, inputs })
    }

    /// Ends a request before the model's next step; nobody hears of it any more.
    pub fn cancel(&self, number: u64) {
        self.send(Command::Cancel(number));
    }

    fn send(&self, command: Command) -> bool {
        self.commands
            .as_ref()
            .is_some_and(|commands| commands.send(command).is_ok())
    }

    /// Whether a batch is in hand.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Hands over a batch and returns at once; `done` is called on the model's thread, which is free for the next
    /// batch by then and waits for `done` to return: it should pass the result on and no more.
    ///
    /// # Errors
    /// [`RunError`] with the batch; `done` is dropped uncalled.
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

impl Drop for Executor {
    fn drop(&mut self) {
        self.commands = None;
        // The last handle may go away inside `done`, on the very thread that would be waited for.
        let elsewhere = self
            .thread
            .take()
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

fn serve(mut model: Box<dyn Model>, queue: &Receiver<Command>, busy: &AtomicBool) {
    let mut in_flight = InFlight::default();
    while let Some(command) = in_flight.next(queue) {
        match command {
            Some(Command::Batch { batch, done }) => {
                let result = run(model.as_mut(), &batch);
                drop(batch);
                busy.store(false, Ordering::Release);
                call_receiver(|| done(result));
            }
            Some(Command::Listen(listener)) => in_flight.listener = Some(listener),
            Some(Command::Submit { number, inputs }) => in_flight.submit(model.as_mut(), number, &inputs),
            Some(Command::Cancel(number)) => in_flight.cancel(model.as_mut(), number),
            None => in_flight.step(model.as_mut()),
        }
    }
}

/// Calls whoever receives a result, who may panic as well.
fn call_receiver(receiver: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(receiver)) {
        tracing::error!(
            reason = panic_message(panic.as_ref()),
            "the receiver of a result panicked"
        );
    }
}

/// The requests of a continuous model that are under way.
#[derive(Default)]
struct InFlight {
    /// By number, the pieces that each has.
    pieces: BTreeMap<u64, u32>,
    listener: Option<Listener>,
}

impl InFlight {
    /// The next thing to do: a job, or a step where there is none and something is under way. `None` when nobody is left to say more.
    #[expect(
        clippy::option_option,
        reason = "no job is a step, and no more jobs are the end"
    )]
    fn next(&self, queue: &Receiver<Command>) -> Option<Option<Command>> {
        if self.pieces.is_empty() {
            return queue.recv().ok().map(Some);
        }
        match queue.try_recv() {
            Ok(command) => Some(Some(command)),
            Err(TryRecvError::Empty) => Some(None),
            Err(TryRecvError::Disconnected) => None,
        }
    }

    fn submit(&mut self, model: &mut dyn Model, number: u64, inputs: &Inputs) {
        let taken = catch_unwind(AssertUnwindSafe(|| match model.continuous() {
            Some(model) => model.submit(number, inputs),
            None => Err(failed("it takes whole batches only".to_owned())),
        }));
        match taken.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))) {
            Ok(()) => {
                self.pieces.insert(number, 0);
            }
            Err(error) => self.notify(vec![failed_progress(number, 0, error)], 0),
        }
    }

    fn cancel(&mut self, model: &mut dyn Model, number: u64) {
        if self.pieces.remove(&number).is_some() {
            cancel_in_model(model, number);
        }
    }

    fn step(&mut self, model: &mut dyn Model) {
        let started = Instant::now();
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            model.continuous().map(crate::runtime::model::Continuous::step)
        }));
        let run_us = started.elapsed().as_micros() as u64;
        let progress = match stepped {
            Ok(progress) => self.servable(progress.unwrap_or_default()),
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

    /// What is news of requests that are under way, with ends that can be served.
    fn servable(&mut self, progress: Vec<Progress>) -> Vec<Progress> {
        let mut news = Vec::with_capacity(progress.len());
        for mut progress in progress {
            let Some(pieces) = self.pieces.get_mut(&progress.number) else {
                continue;
            };
            *pieces = progress.pieces;
            progress.end = progress.end.map(|end| end.and_then(check_outputs));
            if progress.end.is_some() {
                self.pieces.remove(&progress.number);
            }
            news.push(progress);
        }
        news
    }

    fn notify(&mut self, progress: Vec<Progress>, run_us: u64) {
        if let Some(listener) = &mut self.listener {
            call_receiver(|| listener(Stepped { progress, run_us }));
        }
    }
}

/// Has a model let go of a request, whatever state it is in.
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

fn panicked(panic: &(dyn std::any::Any + Send)) -> ModelError {
    failed(format!("it panicked: {}", panic_message(panic)))
}

/// What the model makes of a batch. A panic says nothing of whose fault it is, so a batch that ends in one is run again in halves, until
/// what brings the model down stands alone and its neighbours are answered: for one such request, twice the logarithm of the batch in
/// further runs.
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

fn run(model: &mut dyn Model, batch: &[Inputs]) -> BatchResult {
    let (started, clocks) = (Instant::now(), CpuClocks::now());
    let outputs = if batch.is_empty() {
        Vec::new()
    } else {
        run_halving(model, batch)
    };
    let (run_us, cpu) = (
        started.elapsed().as_micros() as u64,
        CpuClocks::now().since(clocks),
    );
    BatchResult {
        outputs,
        run_us,
        thread_cpu_us: cpu.thread_us,
        process_cpu_us: cpu.process_us,
    }
}

/// Every request gets a result, and only results that can be served count as such. Results that are too many or too
/// few cannot be told apart, so none of them is anybody's.
fn check_results(
    outputs: Vec<Result<Outputs, ModelError>>,
    requests: usize,
) -> Vec<Result<Outputs, ModelError>> {
    let results = outputs.len();
    if results != requests {
        return vec![
            Err(failed(format!(
                "it gave {results} results for {requests} requests"
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

/// CPU time so far of this thread and of the process, microseconds.
#[derive(Clone, Copy)]
struct CpuClocks {
    thread_us: u64,
    process_us: u64,
}

impl CpuClocks {
    fn now() -> Self {
        Self {
            thread_us: micros(clock_gettime(ClockId::ThreadCPUTime)),
            process_us: micros(clock_gettime(ClockId::ProcessCPUTime)),
        }
    }

    fn since(self, earlier: Self) -> Self {
        let thread_us = self.thread_us.saturating_sub(earlier.thread_us);
        // The two clocks are read one after the other; a process has worked at least as long as its thread.
        let process_us = self.process_us.saturating_sub(earlier.process_us).max(thread_us);
        Self {
            thread_us,
            process_us,
        }
    }
}

fn micros(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or_default()
}

#[cfg(test)]
mod tests;
