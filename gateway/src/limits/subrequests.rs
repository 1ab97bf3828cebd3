//! Runs the parts of one client request, such as its prompts or choices, concurrently as far as its limits and the
//! app's capacity allow.

use std::collections::VecDeque;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered, Stream, StreamExt as _};
use kaskade_actors::ids;

use crate::limits::permits::Permits;

/// First and longest pause before a retry if no part of the request is running.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// Outcome of a part of a request.
pub(crate) enum Outcome<R, T> {
    /// The part was answered, or failed.
    Done(T),
    /// The app was overloaded; the part is retried later.
    Requeue(R),
}

/// Runs the parts of a request concurrently, and returns their results with their indices, in the order of completion.
///
/// The first part uses the permits of the client's request. Each further part acquires permits while it runs; if there
/// are none, it waits until another part of the same request ends. A part that the app refuses as overloaded waits too:
/// concurrency is reduced to the parts that are running, and raised by one with each answer. Every part counts towards
/// the tenant's rate.
pub(crate) fn run_subrequests<R, T, F, Run>(
    permits: Option<Permits>,
    requests: Vec<R>,
    run: Run,
) -> impl Stream<Item = (usize, T)>
where
    F: Future<Output = Outcome<R, T>>,
    Run: Fn(usize, R) -> F,
{
    if let Some(permits) = &permits {
        permits.count(requests.len().saturating_sub(1));
    }
    let share = permits.as_ref().map_or(usize::MAX, Permits::share);
    let parts = Subrequests {
        share,
        max_parallel: share,
        pause: None,
        free: permits.iter().cloned().collect(),
        permits,
        waiting: requests.into_iter().enumerate().collect(),
        run,
    };
    stream::unfold(
        (parts, FuturesUnordered::new()),
        async |(mut parts, mut running)| {
            loop {
                if let Some(pause) = parts.pause.filter(|_| running.is_empty()) {
                    tokio::time::sleep(jittered(pause)).await;
                }
                while running.len() < parts.max_parallel
                    && let Some(part) = parts.next()
                {
                    running.push(part);
                }
                let (number, outcome, permits) = running.next().await?;
                parts.free.extend(permits);
                match outcome {
                    Outcome::Done(output) => {
                        parts.max_parallel = parts.share.min(parts.max_parallel.saturating_add(1));
                        parts.pause = None;
                        return Some(((number, output), (parts, running)));
                    }
                    Outcome::Requeue(request) => {
                        parts.waiting.push_front((number, request));
                        parts.max_parallel = running.len().max(1);
                        if running.is_empty() {
                            let [first, longest] = PAUSES;
                            parts.pause = Some(parts.pause.map_or(first, |pause| longest.min(2 * pause)));
                        }
                    }
                }
            }
        },
    )
}

/// Returns a random duration between half of a pause and all of it, so that parts refused together do not return
/// together.
fn jittered(pause: Duration) -> Duration {
    let share = (ids::unique() % 1_024) as f64 / 1_024.0;
    pause.mul_f64(0.5 + share / 2.0)
}

struct Subrequests<R, Run> {
    waiting: VecDeque<(usize, R)>,
    run: Run,
    /// Largest number of concurrent parts by the limits.
    share: usize,
    /// Current number of concurrent parts, reduced while the app is overloaded.
    max_parallel: usize,
    /// Pause before the next part if none is running, after the app was overloaded.
    pause: Option<Duration>,
    permits: Option<Permits>,
    /// Permits of parts that have ended.
    free: Vec<Permits>,
}

impl<R, T, F: Future<Output = Outcome<R, T>>, Run: Fn(usize, R) -> F> Subrequests<R, Run> {
    /// Returns the next part if there are permits for it. The part returns its permits with its outcome.
    fn next(
        &mut self,
    ) -> Option<impl Future<Output = (usize, Outcome<R, T>, Option<Permits>)> + use<R, T, F, Run>> {
        if self.waiting.is_empty() {
            self.free.clear();
            return None;
        }
        let permits = match &self.permits {
            None => None,
            Some(own) => Some(self.free.pop().or_else(|| own.further().ok())?),
        };
        let (number, request) = self.waiting.pop_front()?;
        let part = (self.run)(number, request);
        Some(async move { (number, part.await, permits) })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::ready;

    use super::*;

    /// The app has room for three parts, and answers one whenever it is full.
    #[tokio::test(start_paused = true)]
    async fn parts_wait_for_room() {
        let (inside, most, refused) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let run = |_: usize, request: usize| {
            let (inside, most, refused) = (&inside, &most, &refused);
            async move {
                if inside.get() == 3 {
                    refused.set(refused.get() + 1);
                    return Outcome::Requeue(request);
                }
                inside.set(inside.get() + 1);
                most.set(most.get().max(inside.get()));
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.set(inside.get() - 1);
                Outcome::Done(request * 10)
            }
        };
        let mut answers: Vec<(usize, usize)> = run_subrequests(None, (0..100).collect(), run).collect().await;
        answers.sort_unstable();
        assert!(
            answers
                .iter()
                .enumerate()
                .all(|(place, found)| *found == (place, place * 10)),
            "{answers:?}"
        );
        assert_eq!((answers.len(), most.get()), (100, 3));
        assert!(refused.get() < 97 + 100, "refused {} times", refused.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_running_part_pauses() {
        let tries = RefCell::new(Vec::new());
        let began = tokio::time::Instant::now();
        let run = |_: usize, request: usize| {
            tries.borrow_mut().push(began.elapsed());
            let full = began.elapsed() < Duration::from_secs(3);
            ready(if full {
                Outcome::Requeue(request)
            } else {
                Outcome::Done(request)
            })
        };
        let answers: Vec<(usize, usize)> = run_subrequests(None, vec![7], run).collect().await;
        assert_eq!(answers, [(0, 7)]);
        let tries = tries.into_inner();
        assert!((8..20).contains(&tries.len()), "{tries:?}");
        assert!(tries.windows(2).all(|pair| pair[1] <= pair[0] + PAUSES[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_are_refused_together_are_one_refusal() {
        let began = tokio::time::Instant::now();
        let run = |_: usize, request: usize| {
            ready(if began.elapsed().is_zero() {
                Outcome::Requeue(request)
            } else {
                Outcome::Done(request)
            })
        };
        let answers: Vec<(usize, usize)> = run_subrequests(None, (0..100).collect(), run).collect().await;
        assert_eq!(answers.len(), 100);
        assert!(began.elapsed() <= 2 * PAUSES[0], "{:?}", began.elapsed());
    }
}
