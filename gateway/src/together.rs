//! The parts of one client's request, such as its prompts or choices, which run together as far as its limits allow.

use futures::stream::{self, FuturesUnordered, Stream, StreamExt as _};

use crate::permits::Permits;

/// Runs tasks together, and returns what each gives with its number, in the order in which they end.
///
/// The first task uses the permits of the client's request. Each further one has permits of its own while it runs; if there are none,
/// it waits until another task of the same request has ended. Every task counts for the rate of the tenant.
pub(crate) fn together<F: Future>(
    permits: Option<Permits>,
    tasks: impl ExactSizeIterator<Item = F>,
) -> impl Stream<Item = (usize, F::Output)> {
    if let Some(permits) = &permits {
        permits.count(tasks.len().saturating_sub(1));
    }
    let parts = Parts {
        most: permits.as_ref().map_or(usize::MAX, Permits::share),
        free: permits.iter().cloned().collect(),
        permits,
        tasks: tasks.enumerate(),
    };
    stream::unfold(
        (parts, FuturesUnordered::new()),
        async |(mut parts, mut running)| {
            while running.len() < parts.most
                && let Some(task) = parts.next()
            {
                running.push(task);
            }
            let (number, output, permits) = running.next().await?;
            parts.free.extend(permits);
            Some(((number, output), (parts, running)))
        },
    )
}

struct Parts<I> {
    tasks: std::iter::Enumerate<I>,
    most: usize,
    permits: Option<Permits>,
    /// Permits of tasks that have ended.
    free: Vec<Permits>,
}

impl<F: Future, I: Iterator<Item = F>> Parts<I> {
    /// Returns the next task if there are permits for it. A task gives its permits back with its output.
    fn next(&mut self) -> Option<impl Future<Output = (usize, F::Output, Option<Permits>)> + use<F, I>> {
        let permits = match &self.permits {
            None => None,
            Some(own) => Some(self.free.pop().or_else(|| own.further().ok())?),
        };
        let Some((number, task)) = self.tasks.next() else {
            self.free.clear();
            return None;
        };
        Some(async move { (number, task.await, permits) })
    }
}
