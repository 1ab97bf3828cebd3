//! Ends the model of a replica.

use kaskade_models::Executor;

/// Ends a model without blocking the actors' thread while it finishes its batch and leaves memory.
pub(super) fn end(executor: &mut Executor) {
    let ending = executor.end();
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || ending.wait())),
        // The system has ended, and this thread serves no other actor.
        Err(_) => ending.wait(),
    }
}
