//! The replica's engine room: a model on a thread of its own, one batch at a time.
//!
//! What comes back has been checked: as many results as requests, outputs that are there and finite. A model that panics
//! fails the requests of that batch and serves on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
    time::Instant,
};

use thiserror::Error;

use crate::model::{Inputs, Model, ModelError, Outputs, Signature};

/// A running model.
pub struct Executor {
    signature: Signature,
    // Dropped before the thread is joined: that is what ends it.
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Job {
    batch: Vec<Inputs>,
    done: Box<dyn FnOnce(BatchResult) + Send>,
}

/// What a batch came to.
#[derive(Debug)]
pub struct BatchResult {
    /// One result per request, in order.
    pub outputs: Vec<Result<Outputs, ModelError>>,
    /// How long the model ran, microseconds of wall time.
    pub run_us: u64,
}

/// Why there is no running model.
#[derive(Debug, Error)]
pub enum ExecutorError {
    /// The model could not be made.
    #[error("{0}")]
    Load(String),
    /// Making the model panicked, or its thread could not be started.
    #[error("the model's thread failed: {0}")]
    Thread(String),
}

/// Why a batch was not taken: the thread has one and another waits, or it is gone. The batch comes back.
#[derive(Debug)]
pub struct Busy(pub Vec<Inputs>);

impl Executor {
    /// Makes a model on a new thread called `name`, and waits until it is loaded.
    ///
    /// # Errors
    /// [`ExecutorError::Load`] with what `make` said, or [`ExecutorError::Thread`].
    pub fn spawn<E: std::fmt::Display>(
        name: &str,
        make: impl FnOnce() -> Result<Box<dyn Model>, E> + Send + 'static,
    ) -> Result<Self, ExecutorError> {
        let (loaded, loading) = mpsc::sync_channel(1);
        let (jobs, queue) = mpsc::sync_channel::<Job>(1);
        let serve = move || {
            let made = catch_unwind(AssertUnwindSafe(make)).map_err(|panic| said(&*panic));
            let mut model = match made {
                Ok(Ok(model)) => model,
                Ok(Err(error)) => return drop(loaded.send(Err(ExecutorError::Load(error.to_string())))),
                Err(panic) => return drop(loaded.send(Err(ExecutorError::Thread(panic)))),
            };
            if loaded.send(Ok(model.signature())).is_err() {
                return;
            }
            for Job { batch, done } in queue {
                done(run(&mut *model, &batch));
            }
        };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(serve)
            .map_err(|error| ExecutorError::Thread(error.to_string()))?;
        let signature = loading
            .recv()
            .unwrap_or_else(|_| Err(ExecutorError::Thread("it ended while loading".to_owned())))?;
        Ok(Self {
            signature,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// What a request must bring.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs a batch on the model's thread and calls `done` there. Never blocks.
    ///
    /// # Errors
    /// [`Busy`], with the batch; `done` is dropped uncalled.
    pub fn run(
        &self,
        batch: Vec<Inputs>,
        done: impl FnOnce(BatchResult) + Send + 'static,
    ) -> Result<(), Busy> {
        let Some(jobs) = &self.jobs else {
            return Err(Busy(batch));
        };
        jobs.try_send(Job {
            batch,
            done: Box::new(done),
        })
        .map_err(|error| match error {
            mpsc::TrySendError::Full(job) | mpsc::TrySendError::Disconnected(job) => Busy(job.batch),
        })
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            // The last message to an executor may come from its own thread's `done`.
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(model: &mut dyn Model, batch: &[Inputs]) -> BatchResult {
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| model.run(batch)));
    let run_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let fail = |reason: String| -> Vec<Result<Outputs, ModelError>> {
        batch
            .iter()
            .map(|_| {
                Err(ModelError::Failed {
                    reason: reason.clone(),
                })
            })
            .collect()
    };
    let outputs = match outcome {
        Err(panic) => fail(format!("it panicked: {}", said(&*panic))),
        Ok(outputs) if outputs.len() != batch.len() => fail(format!(
            "it returned {} results for {} requests",
            outputs.len(),
            batch.len()
        )),
        Ok(outputs) => outputs
            .into_iter()
            .map(|outputs| outputs.and_then(checked))
            .collect(),
    };
    BatchResult { outputs, run_us }
}

/// The outputs, if they are an answer: some, well-formed, not empty, finite.
fn checked(outputs: Outputs) -> Result<Outputs, ModelError> {
    let bad = |reason: String| ModelError::BadOutput { reason };
    if outputs.is_empty() {
        return Err(bad("there is no output".to_owned()));
    }
    outputs
        .into_iter()
        .map(|output| {
            let output = output.checked().map_err(|error| bad(error.to_string()))?;
            if output.data.is_empty() {
                return Err(bad(format!("output `{}` is empty", output.name)));
            }
            output.check_finite().map_err(|error| bad(error.to_string()))?;
            Ok(output)
        })
        .collect()
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    /// Does what the first element of its only input says.
    struct Moody;

    impl Model for Moody {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let moods = batch
                .iter()
                .map(|inputs| inputs[0].to_f32().unwrap()[0])
                .collect::<Vec<_>>();
            if moods.contains(&-1.0) {
                panic!("in a bad mood");
            }
            let skip = usize::from(moods.contains(&-2.0));
            moods.iter().skip(skip).map(|mood| answer(*mood)).collect()
        }
    }

    fn answer(mood: f32) -> Result<Outputs, ModelError> {
        match mood {
            -3.0 => Ok(Vec::new()),
            -4.0 => Ok(vec![Tensor::from_f32("y", &[0], &[])?]),
            -5.0 => Ok(vec![Tensor {
                shape: vec![3],
                ..Tensor::from_f32("y", &[1], &[1.0])?
            }]),
            mood => Ok(vec![Tensor::from_f32("y", &[1], &[mood])?]),
        }
    }

    fn ask(executor: &Executor, moods: &[f32]) -> Vec<Result<Outputs, ModelError>> {
        let batch = moods
            .iter()
            .map(|mood| vec![Tensor::from_f32("x", &[1], &[*mood]).unwrap()])
            .collect();
        let (sender, receiver) = mpsc::channel();
        executor
            .run(batch, move |result| sender.send(result).unwrap())
            .unwrap();
        receiver.recv().unwrap().outputs
    }

    #[test]
    fn a_batch_is_answered_in_order() {
        let executor =
            Executor::spawn("moody", || Ok::<_, String>(Box::new(Moody) as Box<dyn Model>)).unwrap();
        let outputs = ask(&executor, &[1.0, 2.0, 3.0]);
        let values: Vec<f32> = outputs
            .iter()
            .map(|o| o.as_ref().unwrap()[0].to_f32().unwrap()[0])
            .collect();
        assert_eq!(values, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_the_model_serves_on() {
        let executor =
            Executor::spawn("moody", || Ok::<_, String>(Box::new(Moody) as Box<dyn Model>)).unwrap();
        for mood in [-1.0, -2.0] {
            let failed = ask(&executor, &[1.0, mood]);
            assert!(
                failed
                    .iter()
                    .all(|result| matches!(result, Err(ModelError::Failed { .. }))),
                "{mood}"
            );
            assert_eq!(failed.len(), 2);
        }
        for mood in [f32::NAN, f32::INFINITY, -3.0, -4.0, -5.0] {
            let mixed = ask(&executor, &[1.0, mood]);
            assert!(mixed[0].is_ok(), "a request fails alone");
            assert!(matches!(mixed[1], Err(ModelError::BadOutput { .. })), "{mood}");
        }
        assert!(ask(&executor, &[7.0])[0].is_ok());
    }

    #[test]
    fn a_model_that_cannot_be_made_says_why() {
        let error = Executor::spawn("none", || Err("no such file".to_owned()))
            .err()
            .unwrap();
        assert!(matches!(error, ExecutorError::Load(reason) if reason == "no such file"));
        let panicking = || -> Result<Box<dyn Model>, String> { panic!("while loading") };
        let error = Executor::spawn("none", panicking).err().unwrap();
        assert!(matches!(error, ExecutorError::Thread(reason) if reason == "while loading"));
    }

    #[test]
    fn a_third_batch_is_refused_and_comes_back() {
        let executor =
            Executor::spawn("moody", || Ok::<_, String>(Box::new(Moody) as Box<dyn Model>)).unwrap();
        let (release, gate) = mpsc::channel::<()>();
        let (running, started) = mpsc::channel();
        let batch = || vec![vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()]];
        executor
            .run(batch(), move |_| {
                running.send(()).unwrap();
                gate.recv().unwrap();
            })
            .unwrap();
        started.recv().unwrap();
        executor.run(batch(), |_| {}).unwrap();
        let Busy(refused) = executor.run(batch(), |_| {}).unwrap_err();
        assert_eq!(refused.len(), 1);
        release.send(()).unwrap();
    }
}
