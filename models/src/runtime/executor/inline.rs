//! Batches that run on the caller's thread, because switching threads would take longer than the batches do.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{BatchResult, failed, run};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs};

/// Run time above which a batch should not run on the caller's thread, microseconds.
const LONG: u64 = Duration::from_millis(1).as_micros() as u64;

/// Consecutive long batches after which the model gets its own thread. Fewer may be due to preemption.
const LONG_IN_A_ROW: u32 = 3;

/// A model whose batches run on the caller's thread while they are short.
pub(super) struct Inline(Mutex<State>);

struct State {
    /// `None` if the model has its own thread.
    model: Option<Box<dyn Model>>,
    long: LongBatches,
}

/// Number of consecutive long batches.
#[derive(Default)]
struct LongBatches(u32);

impl LongBatches {
    /// Counts a batch. Returns whether the model should get its own thread.
    fn add(&mut self, run_us: u64) -> bool {
        self.0 = if run_us > LONG { self.0 + 1 } else { 0 };
        self.0 >= LONG_IN_A_ROW
    }
}

/// Result of a batch, with the model if it must get its own thread from now on.
pub(super) struct Ran {
    pub(super) result: BatchResult,
    pub(super) model: Option<Box<dyn Model>>,
}

impl Inline {
    /// Runs batches of `model`, or rejects all batches if the model has its own thread.
    pub(super) fn new(model: Option<Box<dyn Model>>) -> Self {
        Self(Mutex::new(State {
            model,
            long: LongBatches::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Panics of the model are caught inside, so the state is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether batches run on the caller's thread.
    #[cfg(test)]
    pub(super) fn has_model(&self) -> bool {
        self.state().model.is_some()
    }

    /// Runs a batch.
    ///
    /// # Errors
    /// Returns the batch if the model has its own thread.
    pub(super) fn run(&self, batch: Vec<Inputs>) -> Result<Ran, Vec<Inputs>> {
        let mut state = self.state();
        let Some(model) = &mut state.model else {
            return Err(batch);
        };
        let result = run(model.as_mut(), batch);
        let model = if state.long.add(result.run_us) {
            state.model.take()
        } else {
            None
        };
        Ok(Ran { result, model })
    }

    /// Drops the model.
    pub(super) fn end(&self) {
        let model = self.state().model.take();
        drop(model);
    }
}

/// Placeholder on a model's thread while the model runs inline. It receives no batches.
pub(super) struct ThreadMoved;

impl Model for ThreadMoved {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let elsewhere = || Err(failed("it runs on the thread of its caller".to_owned()));
        batch.iter().map(|_| elsewhere()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_batches_in_a_row_count() {
        let mut long = LongBatches::default();
        for run_us in [LONG + 1, LONG + 1, LONG, LONG + 1, 0, u64::MAX, LONG + 1] {
            assert!(!long.add(run_us), "{run_us}");
        }
        assert!(long.add(LONG + 1));
    }
}
