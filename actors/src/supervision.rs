//! Supervision of the core tasks of a node: if one ends while the node runs, the node ends.
//!
//! A panic in an actor ends only that actor, and messages to it fail silently. Each core actor and task therefore holds
//! a guard whose drop reports the end. Actors and tasks that may end while the node runs, such as those of an unloaded
//! replica, hold a guard that reports only a panic.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use tokio::{sync::watch, task::JoinHandle};

use crate::actor;

/// Watches the core tasks of a node. Clones watch the same tasks.
#[derive(Debug, Clone, Default)]
pub struct Supervisor(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stopping: AtomicBool,
    ended: watch::Sender<Option<&'static str>>,
    /// The task that a test makes panic.
    #[cfg(test)]
    panics: watch::Sender<Option<&'static str>>,
    /// The tasks that must not end before the node, for tests.
    #[cfg(test)]
    core: std::sync::Mutex<std::collections::BTreeSet<&'static str>>,
}

impl Supervisor {
    /// Returns a guard for a core task: its drop reports the end of the task.
    pub(crate) fn guard(&self, task: &'static str) -> TaskGuard {
        TaskGuard {
            supervisor: self.clone(),
            task,
        }
    }

    /// Returns a guard for a task that may end while the node runs: its drop reports only a panic.
    pub(crate) fn panic_guard(&self, task: &'static str) -> PanicGuard {
        PanicGuard {
            supervisor: self.clone(),
            task,
        }
    }

    /// Spawns a task that may end while the node runs, but not by a panic.
    pub(crate) fn spawn_finite(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + 'static,
    ) -> JoinHandle<()> {
        let guard = self.panic_guard(task);
        #[cfg(test)]
        let work = self.scripted(task, work);
        actor::spawn(async move {
            let _guard = guard;
            work.await;
        })
    }

    /// Makes a task panic: a spawned task immediately, an actor at its next message.
    #[cfg(test)]
    pub(crate) fn make_panic(&self, task: &'static str) {
        self.0.panics.send_replace(Some(task));
    }

    /// Returns the names of the tasks that must not end before the node.
    #[cfg(test)]
    pub(crate) fn core_tasks(&self) -> std::collections::BTreeSet<&'static str> {
        self.0.core.lock().unwrap().clone()
    }

    /// Runs `work`, unless a test makes the task panic.
    #[cfg(test)]
    fn scripted<F: Future<Output = ()>>(
        &self,
        task: &'static str,
        work: F,
    ) -> impl Future<Output = ()> + use<F> {
        let mut scripted = self.0.panics.subscribe();
        async move {
            tokio::select! {
                biased;
                Ok(_) = scripted.wait_for(|scripted| *scripted == Some(task)) => panic!("scripted to panic"),
                () = work => {}
            }
        }
    }

    /// Spawns a task that must not end before the node.
    pub(crate) fn spawn(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + 'static,
    ) -> JoinHandle<()> {
        let guard = self.guard(task);
        #[cfg(test)]
        let work = {
            self.0.core.lock().unwrap().insert(task);
            self.scripted(task, work)
        };
        actor::spawn(async move {
            let _guard = guard;
            work.await;
        })
    }

    /// Spawns a core task that is restarted, after `pause`, when it ends or panics. The task must be safe to restart.
    pub(crate) fn spawn_again<F: Future<Output = ()> + 'static>(
        &self,
        task: &'static str,
        pause: std::time::Duration,
        work: impl Fn() -> F + 'static,
    ) -> JoinHandle<()> {
        self.spawn(task, async move {
            loop {
                let run = std::panic::AssertUnwindSafe(async { work().await });
                let panicked = run.catch_unwind().await.is_err();
                tracing::warn!(task, panicked, "a task ended; starting it again");
                tokio::time::sleep(pause).await;
            }
        })
    }

    /// Reports that a core task has ended.
    pub(crate) fn report(&self, task: &'static str) {
        if self.0.stopping.load(Ordering::SeqCst) {
            return;
        }
        self.0.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(task);
            first
        });
    }

    /// Stops reporting: the node stops, so its tasks end.
    pub(crate) fn stop(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
    }

    /// Returns the first core task that ended while the node ran; `None` if all run.
    pub fn ended_task(&self) -> Option<&'static str> {
        *self.0.ended.borrow()
    }

    /// Waits until a core task ends while the node runs, and returns its name.
    pub async fn failure(&self) -> &'static str {
        let mut ended = self.0.ended.subscribe();
        loop {
            if let Some(task) = *ended.borrow_and_update() {
                return task;
            }
            if ended.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Guard of a core task, held while it runs.
#[derive(Debug)]
pub(crate) struct TaskGuard {
    supervisor: Supervisor,
    task: &'static str,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.supervisor.report(self.task);
    }
}

/// Guard of a task that may end while the node runs, but not by a panic.
#[derive(Debug)]
pub(crate) struct PanicGuard {
    supervisor: Supervisor,
    task: &'static str,
}

impl PanicGuard {
    /// Panics if a test makes the task panic.
    #[cfg(test)]
    pub(crate) fn panic_if_scripted(&self) {
        let scripted = *self.supervisor.0.panics.borrow();
        assert_ne!(scripted, Some(self.task), "scripted to panic");
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        // A panicking actor or task is dropped while its thread unwinds.
        if std::thread::panicking() {
            self.supervisor.report(self.task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_task_that_ends_is_reported_and_none_after_a_stop() {
        let supervisor = Supervisor::default();
        let (first, second) = (supervisor.guard("first"), supervisor.guard("second"));
        assert_eq!(supervisor.ended_task(), None);
        drop(second);
        drop(first);
        assert_eq!(supervisor.ended_task(), Some("second"));
        let supervisor = Supervisor::default();
        let guard = supervisor.guard("task");
        supervisor.stop();
        drop(guard);
        assert_eq!(supervisor.ended_task(), None);
    }

    #[test]
    fn a_finite_task_that_ends_is_not_reported_and_one_that_panics_is() {
        let system = actor::System::new();
        let supervisor = Supervisor::default();
        let reported = system.block_on(async {
            let ends = supervisor.spawn_finite("ends", async {});
            ends.await.unwrap();
            assert_eq!(supervisor.ended_task(), None);
            let panics = supervisor.spawn_finite("panics", async { panic!("scripted") });
            assert!(panics.await.is_err());
            supervisor.ended_task()
        });
        assert_eq!(reported, Some("panics"));
    }

    #[test]
    fn a_panic_is_reported_and_a_restarted_task_is_not() {
        let system = actor::System::new();
        let supervisor = Supervisor::default();
        let runs = std::rc::Rc::new(std::cell::Cell::new(0));
        let reported = system.block_on(async {
            let counted = std::rc::Rc::clone(&runs);
            supervisor.spawn_again("restarts", std::time::Duration::ZERO, move || {
                let run = counted.get();
                counted.set(run + 1);
                async move {
                    assert!(run > 0, "the first run panics");
                    if run > 2 {
                        std::future::pending::<()>().await;
                    }
                }
            });
            while runs.get() < 4 {
                tokio::task::yield_now().await;
            }
            assert_eq!(supervisor.ended_task(), None);
            supervisor.spawn("panics", async { panic!("scripted") });
            supervisor.failure().await
        });
        assert_eq!(reported, "panics");
    }
}
