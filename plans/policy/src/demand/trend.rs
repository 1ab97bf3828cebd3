//! Detects a significant rise of the demand and extrapolates it.
//!
//! A moving average follows a rise some steps later, and a plan takes effect some seconds after it is made. Both together lose requests
//! that a planner could have provided for.

/// Steps of which a trend is computed.
const STEPS: usize = 6;

/// Standard deviations of a Poisson count by which arrivals must exceed the average, and standard errors by which the slope must exceed 0, to
/// count as a rise.
const DEVIATIONS: f64 = 3.0;

/// Median of the second difference of three normal variates of variance 1: 0.6745 times the square root of 6.
const MEDIAN_OF_SECOND_DIFFERENCES: f64 = 1.652_1;

/// A forecast exceeds the largest step of the trend by at most this factor, so that the end of a rise is not overshot by far.
const MAX_OVERSHOOT: f64 = 1.25;

/// The recent demand, from which a rise is found. Counts are requests per step.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandTrend {
    /// Requests of the complete steps, the latest last.
    pub steps: Vec<f64>,
    /// Length of a step, microseconds, at least 1.
    pub step_us: u64,
    /// The moving average, requests per step.
    pub average: f64,
    /// Requests of the step that is not complete.
    pub arrived: f64,
    /// Duration of that step so far, microseconds.
    pub into_us: u64,
}

impl DemandTrend {
    /// Returns the requests per step to expect in `ahead_us` microseconds, if the demand rises; 0 if it does not: the
    /// [`present`](Self::present) or the [`trend`](Self::trend), whichever is more.
    pub fn ahead(&self, ahead_us: u64) -> f64 {
        self.present().max(self.trend(ahead_us))
    }

    /// Returns the requests per step at present, if the average does not explain them; 0 if it does.
    ///
    /// It is the larger of two: the last step, and the present step once a fifth of it has passed.
    pub fn present(&self) -> f64 {
        let last = self.steps.last().copied().unwrap_or(0.0);
        let part = (self.into_us as f64 / self.step_us as f64).min(1.0);
        let begun = if part < 0.2 {
            0.0
        } else {
            self.unexplained(self.arrived, part)
        };
        self.unexplained(last, 1.0).max(begun)
    }

    /// The rate of `count` requests in a part of a step, if the average does not explain so many.
    fn unexplained(&self, count: f64, part: f64) -> f64 {
        let expected = self.average * part;
        // Arrivals vary as a Poisson count does, and the load itself from step to step.
        let variance = expected.max(1.0) + part * part * self.variance();
        if count > expected + DEVIATIONS * variance.sqrt() {
            count / part
        } else {
            0.0
        }
    }

    /// Variance of the load from step to step beyond a Poisson count's, which no trend explains.
    ///
    /// It is computed from the median of the second differences: a line has none, and a few jumps do not move a median.
    fn variance(&self) -> f64 {
        let mut differences: Vec<f64> = self
            .steps
            .windows(3)
            .filter_map(|window| match window {
                [first, middle, last] => Some((first - 2.0 * middle + last).abs()),
                _ => None,
            })
            .collect();
        differences.sort_by(f64::total_cmp);
        let median = differences.get(differences.len() / 2).copied().unwrap_or(0.0);
        let deviation = median / MEDIAN_OF_SECOND_DIFFERENCES;
        let mean = self.steps.iter().sum::<f64>() / self.steps.len().max(1) as f64;
        (deviation * deviation - mean).max(0.0)
    }

    /// The line of least squares through the last steps, continued; 0 unless it rises.
    pub fn trend(&self, ahead_us: u64) -> f64 {
        let skipped = self.steps.len().saturating_sub(STEPS);
        let steps = self.steps.get(skipped..).unwrap_or(&[]);
        if steps.len() < 3 {
            return 0.0;
        }
        let count = steps.len() as f64;
        let (middle, mean) = ((count - 1.0) / 2.0, steps.iter().sum::<f64>() / count);
        let (mut covariance, mut spread) = (0.0, 0.0);
        for (step, requests) in steps.iter().enumerate() {
            let from = step as f64 - middle;
            covariance += from * (requests - mean);
            spread += from * from;
        }
        let slope = covariance / spread;
        if slope <= DEVIATIONS * ((mean.max(1.0) + self.variance()) / spread).sqrt() {
            return 0.0;
        }
        let now = middle + 0.5 + self.into_us as f64 / self.step_us as f64;
        let ahead = mean + slope * (now + ahead_us as f64 / self.step_us as f64);
        let largest = steps.iter().copied().fold(0.0, f64::max);
        ahead.min(MAX_OVERSHOOT * largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn trend(steps: &[f64], average: f64, arrived: f64, into_us: u64) -> DemandTrend {
        DemandTrend {
            steps: steps.to_vec(),
            step_us: SECOND,
            average,
            arrived,
            into_us,
        }
    }

    #[test]
    fn a_ramp_is_continued() {
        let ramp: Vec<f64> = (0..10).map(|step| 100.0 + 40.0 * f64::from(step)).collect();
        // The next step has 500; two seconds later 580, which is under 1.25 times the last.
        let found = trend(&ramp, 400.0, 0.0, 0).ahead(2 * SECOND);
        assert!((found - 560.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_level_load_and_a_fall_are_no_rise() {
        assert!(
            trend(&[100.0, 108.0, 95.0, 104.0, 99.0, 111.0], 105.0, 30.0, SECOND / 4).ahead(2 * SECOND)
                <= 0.0
        );
        assert!(trend(&[500.0, 400.0, 300.0, 200.0], 280.0, 20.0, SECOND / 4).ahead(2 * SECOND) <= 0.0);
        assert!(trend(&[], 1.0, 0.0, 0).ahead(2 * SECOND) <= 0.0);
    }

    #[test]
    fn a_load_that_varies_more_than_chance_is_no_rise() {
        let noisy: Vec<f64> = (0..20)
            .map(|step| if step % 2 == 0 { 1_000.0 } else { 1_300.0 })
            .collect();
        assert!(trend(&noisy, 1_150.0, 0.0, 0).ahead(2 * SECOND) <= 0.0);
        let jump = [noisy.as_slice(), &[4_000.0]].concat();
        assert!((trend(&jump, 1_150.0, 0.0, 0).present() - 4_000.0).abs() < 1e-9);
    }

    #[test]
    fn a_jump_counts_within_the_step_that_it_comes_in() {
        let found = trend(&[100.0; 6], 100.0, 120.0, 3 * SECOND / 10).ahead(2 * SECOND);
        assert!((found - 400.0).abs() < 1e-9, "{found}");
        assert!(
            trend(&[100.0; 6], 100.0, 40.0, 3 * SECOND / 10).ahead(0) <= 0.0,
            "chance"
        );
    }
}
