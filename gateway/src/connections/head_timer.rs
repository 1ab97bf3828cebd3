//! Timer for the request heads of a connection. One sleep is reused for the whole connection and reset to the newest
//! deadline only when an earlier one has passed, because resetting takes a lock shared by all connections and almost
//! every head arrives in time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// The sleep of a connection, created when the first head is awaited.
#[derive(Clone, Default)]
pub(super) struct HeadTimer(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

/// Waits for a deadline.
struct Until {
    deadline: Instant,
    timer: HeadTimer,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until {
            deadline,
            timer: self.clone(),
        })
    }
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let mut shared = self.timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = shared.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deadline_passes_at_its_time_whether_the_sleep_was_set_to_it_or_to_an_earlier_one() {
        let (timer, begun) = (HeadTimer::default(), Instant::now());
        let after = |milliseconds| timer.sleep_until(begun + Duration::from_millis(milliseconds));
        let mut first = after(20);
        assert!(futures::poll!(first.as_mut()).is_pending());
        drop(first);
        after(60).await;
        assert!(begun.elapsed() >= Duration::from_millis(60));
        // The sleep has ended: a later deadline resets it, and an earlier one has passed.
        after(30).await;
        after(90).await;
        assert!(begun.elapsed() >= Duration::from_millis(90));
    }
}
