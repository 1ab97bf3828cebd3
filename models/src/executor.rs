//! The thread that a model lives on.
//!
//! A model blocks for as long as a batch takes, may not be movable between threads once its device is set up, and may
//! panic in code that nobody here wrote. So it gets one thread to itself, on which it is built, run and dropped, and
//! everything that comes out of it is checked before it is anyone's answer.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};
use thiserror::Error;

use crate::device::panic_message;
use crate::model::{Inputs, Model, ModelError, Outputs, Signature, check_outputs};

/// A model on its own thread, one batch at a time. Dropping it waits for the batch in hand.
#[derive(Debug)]
pub struct Executor {
    /// Absent only while it is being dropped.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    occupied: Arc<AtomicBool>,
    signature: Signature,
}

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

/// A batch that was not taken, because another is in hand; it comes back untouched.
#[derive(Debug, Error)]
#[error("the model is busy with another batch")]
pub struct Busy(pub Vec<Inputs>);

/// Why there is no executor.
#[derive(Debug, Error)]
pub enum ExecutorError {
    /// The model was not built.
    #[error("{0}")]
    Load(String),
    /// Building the model panicked, or there is no thread for it.
    #[error("the model's thread failed: {0}")]
    Thread(String),
}

struct Job {
    batch: Vec<Inputs>,
    done: Box<dyn FnOnce(BatchResult) + Send>,
}

impl Executor {
    /// Builds a model on a thread of its own, named `name`, and waits until it is ready.
    ///
    /// # Errors
    /// [`ExecutorError::Load`] with what `model` said, or [`ExecutorError::Thread`].
    pub fn spawn<E: Display>(
        name: &str,
        model: impl FnOnce() -> Result<Box<dyn Model>, E> + Send + 'static,
    ) -> Result<Self, ExecutorError> {
        let (jobs, queue) = sync_channel(1);
        let (report, ready) = sync_channel(1);
        let occupied = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&occupied);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || match build(model) {
                Err(error) => drop(report.send(Err(error))),
                Ok(model) => {
                    // Nobody waits for the report if the process is going down.
                    if report.send(Ok(model.signature())).is_ok() {
                        serve(model, &queue, &shared);
                    }
                }
            })
            .map_err(|error| ExecutorError::Thread(error.to_string()))?;
        let ended = |_| Err(ExecutorError::Thread("it ended while the model was built".into()));
        let signature = ready.recv().unwrap_or_else(ended)?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            occupied,
            signature,
        })
    }

    /// What a request must bring.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Whether a batch is in hand.
    pub fn is_busy(&self) -> bool {
        self.occupied.load(Ordering::Acquire)
    }

    /// Hands over a batch and returns at once; `done` is called on the model's thread, which is free for the next
    /// batch by then and waits for `done` to return: it should pass the result on and no more.
    ///
    /// # Errors
    /// [`Busy`] with the batch; `done` is dropped uncalled.
    pub fn run(
        &self,
        batch: Vec<Inputs>,
        done: impl FnOnce(BatchResult) + Send + 'static,
    ) -> Result<(), Busy> {
        let Some(jobs) = &self.jobs else {
            return Err(Busy(batch));
        };
        if self.occupied.swap(true, Ordering::AcqRel) {
            return Err(Busy(batch));
        }
        let job = Job {
            batch,
            done: Box::new(done),
        };
        // Whoever turned `occupied` on finds the channel empty, so this does not block.
        jobs.send(job).map_err(|returned| Busy(returned.0.batch))
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.jobs = None;
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

fn build<E: Display>(
    model: impl FnOnce() -> Result<Box<dyn Model>, E>,
) -> Result<Box<dyn Model>, ExecutorError> {
    match catch_unwind(AssertUnwindSafe(model)) {
        Ok(built) => built.map_err(|error| ExecutorError::Load(error.to_string())),
        Err(panic) => Err(ExecutorError::Thread(panic_message(panic.as_ref()))),
    }
}

fn serve(mut model: Box<dyn Model>, queue: &Receiver<Job>, occupied: &AtomicBool) {
    while let Ok(Job { batch, done }) = queue.recv() {
        let result = run(model.as_mut(), &batch);
        drop(batch);
        occupied.store(false, Ordering::Release);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| done(result))) {
            tracing::error!(
                reason = panic_message(panic.as_ref()),
                "the receiver of a batch's result panicked"
            );
        }
    }
}

fn run(model: &mut dyn Model, batch: &[Inputs]) -> BatchResult {
    let (started, clocks) = (Instant::now(), CpuClocks::now());
    let outputs = if batch.is_empty() {
        Vec::new()
    } else {
        catch_unwind(AssertUnwindSafe(|| model.run(batch))).unwrap_or_else(|panic| {
            vec![Err(failed(format!("it panicked: {}", panic_message(panic.as_ref())))); batch.len()]
        })
    };
    let (run_us, cpu) = (
        started.elapsed().as_micros() as u64,
        CpuClocks::now().since(clocks),
    );
    BatchResult {
        outputs: checked(outputs, batch.len()),
        run_us,
        thread_cpu_us: cpu.thread_us,
        process_cpu_us: cpu.process_us,
    }
}

/// Every request gets a result, and only results that can be served count as such. Results that are too many or too
/// few cannot be told apart, so none of them is anybody's.
fn checked(outputs: Vec<Result<Outputs, ModelError>>, requests: usize) -> Vec<Result<Outputs, ModelError>> {
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
        Self {
            thread_us: self.thread_us.saturating_sub(earlier.thread_us),
            process_us: self.process_us.saturating_sub(earlier.process_us),
        }
    }
}

fn micros(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or_default()
}

#[cfg(test)]
mod tests;
