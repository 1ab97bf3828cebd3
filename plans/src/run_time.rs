//! How long a batch will take: a line over the batch size, learned while serving.
//!
//! Least squares with forgetting. A profile would give the same line, but not on the machine that serves, nor beside the
//! neighbours it has there.

use crate::batching::RunTime;

/// Weight that an observation keeps with every newer one: about the last 50 batches count.
const KEEP: f64 = 0.98;

/// The running regression.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunTimeEstimate {
    weight: f64,
    batch: f64,
    time: f64,
    batch_batch: f64,
    batch_time: f64,
}

impl RunTimeEstimate {
    /// Learns that a batch of this size ran this long, microseconds.
    pub fn observe(&mut self, batch: usize, run_us: u64) {
        let (batch, time) = (batch as f64, run_us as f64);
        for (sum, term) in [
            (&mut self.weight, 1.0),
            (&mut self.batch, batch),
            (&mut self.time, time),
            (&mut self.batch_batch, batch * batch),
            (&mut self.batch_time, batch * time),
        ] {
            *sum = *sum * KEEP + term;
        }
    }

    /// The line learned so far; zero before the first batch. Batches of one size give a line through that point, in
    /// proportion to the batch size.
    pub fn line(&self) -> RunTime {
        if self.weight <= 0.0 {
            return RunTime::default();
        }
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
}
