//! Load generators: an open loop sends each request when it is due, whatever the service does; in a closed loop each client
//! waits for its answer before it sends the next request.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::arrivals::Arrivals;
use super::record::{Outcome, Record};

/// A target of load: answers requests by number.
pub trait Target: Send + Sync + 'static {
    /// Sends the request of that number and waits for its outcome.
    fn ask(&self, number: u64) -> impl Future<Output = Outcome> + Send;

    /// Sends the request of that number, which was due at that time; in an open loop, the time that its latency is measured from.
    fn ask_due(&self, number: u64, _due: Instant) -> impl Future<Output = Outcome> + Send {
        self.ask(number)
    }
}

/// A request that is due.
#[derive(Debug, Clone, Copy)]
pub struct DueRequest {
    /// Since the first could have come.
    after: Duration,
    at: Instant,
}

/// The requests of an open loop as they become due.
#[derive(Debug)]
pub struct DueRequests {
    /// Planned length of the load.
    length: Duration,
    requests: UnboundedReceiver<DueRequest>,
}

/// Announces requests when they are due, from a separate thread: the runtime's timer has a resolution of a millisecond and
/// would announce all requests of the same millisecond together.
pub fn spawn_pacer(arrivals: Arrivals) -> DueRequests {
    let (due, requests) = unbounded_channel();
    let length = arrivals.length();
    let start = std::time::Instant::now();
    std::thread::spawn(move || {
        for after in arrivals {
            let at = start + after;
            std::thread::sleep(at.saturating_duration_since(std::time::Instant::now()));
            // The receiver is closed: the run was cancelled.
            if due.send(DueRequest { after, at: at.into() }).is_err() {
                return;
            }
        }
    });
    DueRequests { length, requests }
}

/// Sends each request when it is due and measures its latency from that moment, so that the latency of requests behind a
/// stall includes their waiting. Requests due within `warm_up` are sent but not recorded.
///
/// Returns the length of the recorded part: as planned, or up to its last reply if that comes later.
pub async fn open_loop<T: Target>(
    target: Arc<T>,
    mut arrivals: DueRequests,
    warm_up: Duration,
    record: Arc<Mutex<Record>>,
) -> Duration {
    let mut length = arrivals.length;
    let mut number = 0;
    let mut in_flight = tokio::task::JoinSet::new();
    while let Some(DueRequest { after, at }) = arrivals.requests.recv().await {
        let (target, record) = (Arc::clone(&target), Arc::clone(&record));
        in_flight.spawn(async move {
            let recorded = after >= warm_up;
            if recorded {
                lock(&record).sent();
            }
            let outcome = target.ask_due(number, at).await;
            if !recorded {
                return Duration::ZERO;
            }
            let latency = at.elapsed();
            let replied = outcome != Outcome::TimedOut;
            lock(&record).add(latency, outcome);
            if replied { after + latency } else { after }
        });
        number += 1;
        while let Some(ended) = in_flight.try_join_next() {
            length = length.max(ended.unwrap_or_default());
        }
    }
    while let Some(ended) = in_flight.join_next().await {
        length = length.max(ended.unwrap_or_default());
    }
    length.saturating_sub(warm_up)
}

/// End of a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After a length of time, warm-up not counted.
    Elapsed(Duration),
    /// After a number of requests, each sent once.
    Sent(u64),
}

/// Runs `clients` that send one request after the other. Requests sent within `warm_up` are not recorded.
///
/// Returns the length of the recorded part, up to the last reply.
pub async fn closed_loop<T: Target>(
    target: Arc<T>,
    clients: usize,
    until: Until,
    warm_up: Duration,
    record: Arc<Mutex<Record>>,
) -> Duration {
    let start = Instant::now();
    let numbers = Arc::new(AtomicU64::new(0));
    let more = move |number| match until {
        Until::Elapsed(length) => start.elapsed() < warm_up + length,
        Until::Sent(requests) => number < requests,
    };
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (target, record, numbers) = (Arc::clone(&target), Arc::clone(&record), Arc::clone(&numbers));
        running.spawn(async move {
            loop {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                if !more(number) {
                    return;
                }
                let sent = Instant::now();
                let recorded = sent.duration_since(start) >= warm_up;
                if recorded {
                    lock(&record).sent();
                }
                let outcome = target.ask(number).await;
                if recorded {
                    lock(&record).add(sent.elapsed(), outcome);
                }
                // Requests that fail at once would keep the thread, and nothing could end the load.
                tokio::task::coop::consume_budget().await;
            }
        });
    }
    while running.join_next().await.is_some() {}
    start.elapsed().saturating_sub(warm_up)
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::arrivals::ArrivalProcess;

    /// Answers after a pause; one at a time where it has a lock to hold.
    struct Slow {
        pause: Duration,
        one_at_a_time: Option<tokio::sync::Mutex<()>>,
    }

    impl Target for Slow {
        async fn ask(&self, _: u64) -> Outcome {
            let _turn = match &self.one_at_a_time {
                Some(lock) => Some(lock.lock().await),
                None => None,
            };
            tokio::time::sleep(self.pause).await;
            Outcome::Answered {
                variant: "only".to_owned(),
                degraded: false,
            }
        }
    }

    /// As [`paced`], on the clock of the test.
    fn paced_by_the_test(arrivals: Arrivals) -> DueRequests {
        let (due, requests) = unbounded_channel();
        let length = arrivals.length();
        let start = Instant::now();
        tokio::spawn(async move {
            for after in arrivals {
                let at = start + after;
                tokio::time::sleep_until(at).await;
                due.send(DueRequest { after, at }).unwrap();
            }
        });
        DueRequests { length, requests }
    }

    fn record() -> Arc<Mutex<Record>> {
        Arc::new(Mutex::new(Record::new(Duration::from_secs(1)).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_loop_counts_the_waiting_behind_a_stall() {
        // 100 requests/s against a service of 50/s: the hundredth waits about a second.
        let target = Arc::new(Slow {
            pause: Duration::from_millis(20),
            one_at_a_time: Some(tokio::sync::Mutex::new(())),
        });
        let arrivals = Arrivals::generated(ArrivalProcess::Constant, 100.0, Duration::from_secs(1), 0);
        let record = record();
        open_loop(
            target,
            paced_by_the_test(arrivals),
            Duration::ZERO,
            Arc::clone(&record),
        )
        .await;
        let figures = record.lock().unwrap().figures(Duration::from_secs(1));
        assert_eq!((figures.sent, figures.answered, figures.lost), (99, 99, 0));
        let max = figures.latency_ms.max.unwrap();
        assert!((950.0..1_100.0).contains(&max), "{max}");
    }

    /// Answers were divided by the time of the last arrival: an overload looked like full throughput, and few requests like many.
    #[tokio::test(start_paused = true)]
    async fn an_open_loop_is_as_long_as_planned_or_until_its_last_reply() {
        let length = async |qps: f64, pause: u64, warm_up: u64| {
            let target = Arc::new(Slow {
                pause: Duration::from_millis(pause),
                one_at_a_time: Some(tokio::sync::Mutex::new(())),
            });
            let arrivals = Arrivals::generated(ArrivalProcess::Constant, qps, Duration::from_secs(2), 0);
            let warm_up = Duration::from_millis(warm_up);
            let record = record();
            let due = paced_by_the_test(arrivals);
            let length = open_loop(target, due, warm_up, Arc::clone(&record)).await;
            let figures = record.lock().unwrap().figures(length);
            (length.as_secs_f64(), figures.throughput_per_s)
        };
        // 100 requests/s against a service of 50/s.
        let (seconds, throughput) = length(100.0, 20, 0).await;
        assert!((3.9..4.1).contains(&seconds), "{seconds}");
        assert!((49.0..51.0).contains(&throughput), "{throughput}");
        // Two requests, at 0.8 s and 1.6 s.
        let (seconds, throughput) = length(1.25, 10, 500).await;
        assert!((seconds - 1.5).abs() < 1e-6, "{seconds}");
        assert!((throughput - 2.0 / 1.5).abs() < 1e-6, "{throughput}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_keeps_its_concurrency() {
        let target = Arc::new(Slow {
            pause: Duration::from_millis(10),
            one_at_a_time: None,
        });
        let record = record();
        let (second, none) = (Duration::from_secs(1), Duration::ZERO);
        let until = Until::Elapsed(second);
        let length = closed_loop(target, 4, until, none, Arc::clone(&record)).await;
        let figures = record.lock().unwrap().figures(length);
        assert!((396..=404).contains(&figures.answered), "{}", figures.answered);
        assert!((380.0..=410.0).contains(&figures.throughput_per_s));
    }

    /// Answers without waiting, and counts.
    struct Immediate {
        count: AtomicU64,
        enough: tokio::sync::Notify,
    }

    impl Target for Immediate {
        async fn ask(&self, _: u64) -> Outcome {
            if self.count.fetch_add(1, Ordering::Relaxed) == 1_000 {
                self.enough.notify_one();
            }
            Outcome::TimedOut
        }
    }

    /// `bench` of an app that does not run sometimes hung: its clients failed at once, and never gave up the thread.
    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_of_immediate_failures_can_be_ended() {
        let target = Arc::new(Immediate {
            count: AtomicU64::new(0),
            enough: tokio::sync::Notify::new(),
        });
        let until = Until::Elapsed(Duration::from_hours(1));
        tokio::select! {
            _ = closed_loop(Arc::clone(&target), 2, until, Duration::ZERO, record()) => panic!("the clock stands still"),
            () = target.enough.notified() => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_sent_during_the_warm_up_is_not_recorded() {
        let target = Arc::new(Slow {
            pause: Duration::from_millis(10),
            one_at_a_time: None,
        });
        let record = record();
        let second = Duration::from_secs(1);
        let until = Until::Elapsed(second);
        let length = closed_loop(target, 1, until, second, Arc::clone(&record)).await;
        assert!((100..=101).contains(&record.lock().unwrap().figures(length).answered));
        assert!((1_000..=1_011).contains(&length.as_millis()), "{length:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_counted_loop_sends_every_request_once() {
        let target = Arc::new(Slow {
            pause: Duration::from_millis(1),
            one_at_a_time: None,
        });
        let record = record();
        closed_loop(target, 7, Until::Sent(100), Duration::ZERO, Arc::clone(&record)).await;
        assert_eq!(record.lock().unwrap().figures(Duration::from_secs(1)).sent, 100);
    }
}
