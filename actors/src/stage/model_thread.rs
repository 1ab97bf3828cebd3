//! The end of a model's thread: requested when the actor stops, or reported when the thread has ended by itself.

use kaskade_models::Executor;

use crate::supervision::Supervisor;

/// Task name of a model thread in a node.
const MODEL_TASK: &str = "model thread";

/// Reports to the supervisor that a model thread has ended while its replica runs.
pub(super) fn report_ended(supervisor: &Supervisor) {
    supervisor.report(MODEL_TASK);
}

/// Ends a model without blocking the actors' thread while the model finishes its batch and frees its memory.
pub(super) fn end(executor: &mut Executor) {
    let ending = executor.end();
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || ending.wait())),
        // The actix system has ended, and this thread serves no other actor.
        Err(_) => ending.wait(),
    }
}
