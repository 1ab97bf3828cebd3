//! The thread that a model lives on.
//!
//! A model blocks for as long as a batch takes, may not be movable between threads once its device is set up, and may
//! panic in code that nobody here wrote. So it gets one thread to itself, on which it is built, run and dropped, and
//! everything that comes out of it is checked before it is anyone's answer.

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

struct Job {
    batch: Vec<Inputs>,
    done: Box<dyn FnOnce(BatchResult) + Send>,
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
        let (jobs, queue) = sync_channel(1);
        let (report, ready) = sync_channel(1);
        let occupied = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn({
                let occupied = Arc::clone(&occupied);
                move || match build(model) {
                    Err(error) => drop(report.send(Err(error))),
                    Ok(model) => {
                        // Nobody waits for the report if the process is going down.
                        if report.send(Ok(model.signature())).is_ok() {
                            serve(model, &queue, &occupied);
                        }
                    }
                }
            })
            .map_err(SpawnError::Thread)?;
        let signature = ready.recv().unwrap_or_else(|_| {
            Err(SpawnError::Panicked {
                reason: "its thread ended without a word".into(),
            })
        })?;
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
    /// [`RunError`] with the batch; `done` is dropped uncalled.
    pub fn run(
        &self,
        batch: Vec<Inputs>,
        done: impl FnOnce(BatchResult) + Send + 'static,
    ) -> Result<(), RunError> {
        let Some(jobs) = &self.jobs else {
            return Err(RunError::Stopped(batch));
        };
        if self.occupied.swap(true, Ordering::AcqRel) {
            return Err(RunError::Busy(batch));
        }
        let job = Job {
            batch,
            done: Box::new(done),
        };
        // Whoever holds `occupied` finds the channel empty, so this never blocks.
        jobs.send(job).map_err(|returned| {
            self.occupied.store(false, Ordering::Release);
            RunError::Stopped(returned.0.batch)
        })
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

fn build<E>(model: impl FnOnce() -> Result<Box<dyn Model>, E>) -> Result<Box<dyn Model>, SpawnError<E>> {
    match catch_unwind(AssertUnwindSafe(model)) {
        Ok(built) => built.map_err(SpawnError::Build),
        Err(panic) => Err(SpawnError::Panicked {
            reason: panic_message(panic.as_ref()),
        }),
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
