//! The link between host memory and device.
//!
//! On a GPU, this is the real link. On the CPU, where both are the same memory, it can be throttled to a given
//! bandwidth, so that overlap, balance and the policy's predictions can be tested without a GPU: a transfer copies,
//! then sleeps for the rest of its time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tolerance for late wake-ups: a transfer that starts within this time after the previous one starts at its scheduled
/// end.
const SLACK: Duration = Duration::from_millis(2);

/// One direction of the link.
#[derive(Debug)]
pub(crate) struct Link {
    /// Bandwidth, bytes per second, as the bits of an f64; 0 means unthrottled.
    bandwidth: AtomicU64,
    /// Scheduled end of all transfers so far.
    free_at: Mutex<Instant>,
    /// Total time of transfers, nanoseconds.
    busy_ns: AtomicU64,
}

impl Link {
    /// Creates a link with a bandwidth, bytes per second; `None` means unthrottled.
    pub(crate) fn new(bandwidth: Option<f64>) -> Self {
        let link = Self {
            bandwidth: AtomicU64::new(0),
            free_at: Mutex::new(Instant::now()),
            busy_ns: AtomicU64::new(0),
        };
        link.throttle(bandwidth);
        link
    }

    /// Sets the bandwidth, bytes per second. `None`, and values that are not positive and finite, remove the throttle.
    pub(crate) fn throttle(&self, bandwidth: Option<f64>) {
        let bandwidth = bandwidth.filter(|bandwidth| bandwidth.is_finite() && *bandwidth > 0.0);
        self.bandwidth
            .store(bandwidth.unwrap_or(0.0).to_bits(), Ordering::Relaxed);
    }

    /// Returns the bandwidth, bytes per second; `None` if unthrottled.
    pub(crate) fn bandwidth(&self) -> Option<f64> {
        Some(f64::from_bits(self.bandwidth.load(Ordering::Relaxed))).filter(|bandwidth| *bandwidth > 0.0)
    }

    /// Records a transfer that started at `began`; returns its scheduled end.
    pub(crate) fn record_transfer(&self, began: Instant, bytes: u64) -> Instant {
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

    /// Runs `copy` as a transfer of `bytes` bytes, and returns after its scheduled end.
    pub(crate) fn transfer<T>(&self, bytes: u64, copy: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let copied = copy();
        // Late starts and late wake-ups do not change the duration of the transfer on the link.
        let took = began.elapsed().max(self.throttled_duration(bytes));
        wait_until(self.record_transfer(began, bytes));
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(took, Ordering::Relaxed);
        copied
    }

    /// Returns the duration of a transfer at the throttled bandwidth.
    fn throttled_duration(&self, bytes: u64) -> Duration {
        let seconds = self.bandwidth().map_or(0.0, |bandwidth| bytes as f64 / bandwidth);
        Duration::from_secs_f64(seconds)
    }

    /// Returns the total duration of [`Link::transfer`] calls since the link was created, seconds: that of the copies,
    /// or of the throttle if it is longer.
    pub(crate) fn busy_s(&self) -> f64 {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Waits for the scheduled end of all transfers.
    pub(crate) fn drain(&self) {
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
        // Starting slightly late or early does not count as idle time.
        let second = link.record_transfer(first + Duration::from_micros(300), 500_000);
        assert_eq!(second, first + Duration::from_millis(500));
        let late = second + Duration::from_secs(3);
        assert_eq!(link.record_transfer(late, 1_000), late + Duration::from_millis(1));
    }

    #[test]
    fn a_transfer_takes_its_throttled_time_however_late_it_begins() {
        let link = Link::new(Some(1e6));
        for _ in 0..4 {
            link.transfer(1_000, || ());
        }
        assert!(link.busy_s() >= 0.004 - 1e-9, "{}", link.busy_s());
    }

    #[test]
    fn without_a_throttle_transfers_take_no_time() {
        let link = Link::new(None);
        let now = Instant::now();
        assert_eq!(link.record_transfer(now, u64::MAX), now);
        assert_eq!(link.transfer(1 << 40, || 7), 7);
        assert!(link.busy_s() < now.elapsed().as_secs_f64());
        link.throttle(Some(f64::NAN));
        assert_eq!(link.bandwidth(), None);
    }
}
