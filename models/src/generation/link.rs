//! The link between the host's memory and the device.
//!
//! On a GPU it is what it is. On the processor, where both memories are one, it can be throttled to a stated bandwidth, so that
//! overlap, balance and the policy's predictions are real without a GPU: a transfer copies, and then takes as long as it would.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A sleeper is woken late; a transfer that follows within this time begins when the one before should have ended.
const SLACK: Duration = Duration::from_millis(2);

/// One direction of the link.
#[derive(Debug)]
pub(super) struct Link {
    /// Bytes per second as the bits of an f64; 0 is unthrottled.
    bandwidth: AtomicU64,
    /// When it has carried everything it was given.
    free_at: Mutex<Instant>,
    /// Time that its transfers have taken, nanoseconds.
    busy_ns: AtomicU64,
}

impl Link {
    /// A link of so many bytes per second; as fast as memory if absent.
    pub(super) fn new(bandwidth: Option<f64>) -> Self {
        let link = Self {
            bandwidth: AtomicU64::new(0),
            free_at: Mutex::new(Instant::now()),
            busy_ns: AtomicU64::new(0),
        };
        link.throttle(bandwidth);
        link
    }

    /// Changes its bandwidth, bytes per second. What is no positive number is no throttle.
    pub(super) fn throttle(&self, bandwidth: Option<f64>) {
        let bandwidth = bandwidth.filter(|bandwidth| bandwidth.is_finite() && *bandwidth > 0.0);
        self.bandwidth
            .store(bandwidth.unwrap_or(0.0).to_bits(), Ordering::Relaxed);
    }

    /// Its bandwidth, bytes per second, where it is throttled.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        Some(f64::from_bits(self.bandwidth.load(Ordering::Relaxed))).filter(|bandwidth| *bandwidth > 0.0)
    }

    /// Notes a transfer of so many bytes that began at `began`: when it is over.
    pub(super) fn record_transfer(&self, began: Instant, bytes: u64) -> Instant {
        if self.bandwidth().is_none() {
            return began;
        }
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let from = if began.saturating_duration_since(*free_at) < SLACK {
            *free_at
        } else {
            began
        };
        *free_at = from + self.throttled_duration(bytes);
        *free_at
    }

    /// Carries so many bytes by `copy`, and returns when it is done and the link has had its time.
    pub(super) fn transfer<T>(&self, bytes: u64, copy: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let copied = copy();
        // A transfer that began late is over when it would have been, and a sleeper wakes late: neither changes what the link took.
        let took = began.elapsed().max(self.throttled_duration(bytes));
        wait_until(self.record_transfer(began, bytes));
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(took, Ordering::Relaxed);
        copied
    }

    /// What the throttle makes of so many bytes.
    fn throttled_duration(&self, bytes: u64) -> Duration {
        let seconds = self.bandwidth().map_or(0.0, |bandwidth| bytes as f64 / bandwidth);
        Duration::from_secs_f64(seconds)
    }

    /// Time that what [`Link::transfer`] carried has taken since the link was made, seconds: that of the copies, or the throttle's where that is
    /// longer.
    pub(super) fn busy_s(&self) -> f64 {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Waits until everything it was given is carried.
    pub(super) fn drain(&self) {
        let free_at = *self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        wait_until(free_at);
    }
}

fn wait_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_follow_each_other() {
        let link = Link::new(Some(1e6));
        let began = Instant::now() + Duration::from_secs(1);
        let first = link.record_transfer(began, 1_000_000);
        assert_eq!(first, began + Duration::from_secs(1));
        // Handed over a little late, or early: the link was never idle.
        let second = link.record_transfer(first + Duration::from_micros(300), 500_000);
        assert_eq!(second, first + Duration::from_millis(500));
        let late = second + Duration::from_secs(3);
        assert_eq!(link.record_transfer(late, 1_000), late + Duration::from_millis(1));
    }

    #[test]
    fn what_is_carried_takes_what_the_throttle_says_however_late_it_begins() {
        let link = Link::new(Some(1e6));
        for _ in 0..4 {
            link.transfer(1_000, || ());
        }
        assert!(link.busy_s() >= 0.004 - 1e-9, "{}", link.busy_s());
    }

    #[test]
    fn without_a_throttle_nothing_takes_time() {
        let link = Link::new(None);
        let now = Instant::now();
        assert_eq!(link.record_transfer(now, u64::MAX), now);
        assert_eq!(link.transfer(1 << 40, || 7), 7);
        assert!(link.busy_s() < now.elapsed().as_secs_f64());
        link.throttle(Some(f64::NAN));
        assert_eq!(link.bandwidth(), None);
    }
}
