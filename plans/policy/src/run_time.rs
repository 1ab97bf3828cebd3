//! How long a batch will take: a line over the batch size, learned while serving.
//!
//! Least squares with forgetting. A profile gives such a line too, but of another machine, and without the other processes of the
//! machine that serves.

use crate::batching::RunTime;

/// Weight that an observation keeps with every newer one: about the last 50 batches count.
const SMOOTHING: f64 = 0.98;

/// An observed run time counts for at most this many times the expected one. A process that was stopped, or a host that swapped,
/// does not describe the model; a model that did become slower is believed batch by batch.
pub const OUTLIER: f64 = 4.0;

/// Weight of the very first batch, during which caches fill and kernels are compiled.
const FIRST_BATCH_WEIGHT: f64 = 1.0 / 16.0;

/// Batches needed for a line. With fewer, no request is refused.
const MIN_BATCHES: u32 = 4;

/// The running regression.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunTimeEstimate {
    /// Batches observed.
    seen: u32,
    weight: f64,
    batch: f64,
    time: f64,
    batch_batch: f64,
    batch_time: f64,
}

impl RunTimeEstimate {
    /// Learns that a batch of this size ran this long, microseconds.
    pub fn observe(&mut self, batch: usize, run_us: u64) {
        let first = self.seen == 0;
        let weight = if first { FIRST_BATCH_WEIGHT } else { 1.0 };
        let most = if first {
            f64::INFINITY
        } else {
            OUTLIER * self.expected(batch)
        };
        let (batch, time) = (batch as f64, (run_us as f64).min(most));
        for (sum, term) in [
            (&mut self.weight, 1.0),
            (&mut self.batch, batch),
            (&mut self.time, time),
            (&mut self.batch_batch, batch * batch),
            (&mut self.batch_time, batch * time),
        ] {
            *sum = *sum * SMOOTHING + weight * term;
        }
        self.seen = self.seen.saturating_add(1);
    }

    /// Returns the expected run time of a batch of this size, microseconds: by the line, and no less than the mean, because the
    /// line is wrong for small batches until batches of several sizes were seen. At least 1.
    fn expected(&self, batch: usize) -> f64 {
        let mean = self.time / self.weight;
        mean.max(self.through_all().of(batch) as f64).max(1.0)
    }

    /// The line learned so far; zero before the first few batches. Batches of one size give a line through that point, in
    /// proportion to the batch size.
    pub fn line(&self) -> RunTime {
        if self.seen < MIN_BATCHES {
            return RunTime::default();
        }
        self.through_all()
    }

    /// The line through all observations, of which there is at least one.
    fn through_all(&self) -> RunTime {
        let (batch, time) = (self.batch / self.weight, self.time / self.weight);
        let variance = self.batch_batch / self.weight - batch * batch;
        let covariance = self.batch_time / self.weight - batch * time;
        // Below this spread of batch sizes the slope is noise.
        let slope = if variance > 0.05 * batch * batch {
            covariance / variance
        } else {
            time / batch
        };
        let slope = slope.clamp(0.0, time / batch);
        RunTime {
            base_us: (time - slope * batch).max(0.0) as u64,
            per_request_us: slope as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_seen_expects_nothing() {
        assert_eq!(RunTimeEstimate::default().line().of(32), 0);
    }

    #[test]
    fn a_line_is_found() {
        let mut estimate = RunTimeEstimate::default();
        for batch in [1_usize, 8, 32, 4, 16, 2, 32, 1] {
            estimate.observe(batch, 500 + 100 * batch as u64);
        }
        let line = estimate.line();
        assert!(
            line.base_us.abs_diff(500) <= 2 && line.per_request_us.abs_diff(100) <= 1,
            "{line:?}"
        );
    }

    #[test]
    fn one_batch_size_scales_in_proportion() {
        let mut estimate = RunTimeEstimate::default();
        for _ in 0..10 {
            estimate.observe(4, 400);
        }
        assert!(estimate.line().of(8).abs_diff(800) <= 8);
    }

    #[test]
    fn the_distant_past_is_forgotten() {
        let mut estimate = RunTimeEstimate::default();
        for _ in 0..100 {
            estimate.observe(4, 40_000);
        }
        for _ in 0..500 {
            estimate.observe(4, 400);
        }
        assert!(estimate.line().of(4) < 500);
    }

    #[test]
    fn a_stall_is_not_a_run_time() {
        let mut estimate = RunTimeEstimate::default();
        for _ in 0..5 {
            estimate.observe(4, 400);
        }
        estimate.observe(4, 60_000_000);
        assert!(estimate.line().of(4) <= 800, "{:?}", estimate.line());
    }

    #[test]
    fn a_cold_start_is_soon_forgotten() {
        let mut estimate = RunTimeEstimate::default();
        estimate.observe(4, 6_000_000);
        assert_eq!(estimate.line().of(4), 0, "one batch is too few");
        for _ in 0..3 {
            estimate.observe(4, 400);
        }
        assert!(estimate.line().of(4) < 200_000, "{:?}", estimate.line());
    }

    #[test]
    fn a_model_that_has_become_slower_is_believed_in_time() {
        let mut estimate = RunTimeEstimate::default();
        for _ in 0..100 {
            estimate.observe(4, 400);
        }
        for _ in 0..100 {
            estimate.observe(4, 8_000);
        }
        assert!(estimate.line().of(4) > 4_000, "{:?}", estimate.line());
    }
}
