//! How far the 95th percentiles of the simulator are from those of live runs, and those of live runs from each other.

/// Relative differences over pairs of a plan and a trace, per cent.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Differences of the simulator from the median of the live runs, one per pair.
    simulated: Vec<f64>,
    /// Differences between two live runs of the same pair, for each two.
    between_runs: Vec<f64>,
}

impl Differences {
    /// Adds a pair by its simulated 95th percentile and those of its live runs. Returns the signed difference of the simulator from the
    /// median run, per cent; `None` without runs.
    pub(super) fn add(&mut self, simulated: f64, live: &[f64]) -> Option<f64> {
        let middle = median(live)?;
        let from = |one: f64, other: f64| (one - other) / other * 100.0;
        let mut rest = live;
        while let [one, others @ ..] = rest {
            self.between_runs
                .extend(others.iter().map(|other| from(*one, *other).abs()));
            rest = others;
        }
        let difference = from(simulated, middle);
        self.simulated.push(difference.abs());
        Some(difference)
    }

    /// The median of the simulator's absolute differences; `None` without pairs.
    pub(super) fn median(&self) -> Option<f64> {
        median(&self.simulated)
    }

    /// Returns the largest difference.
    pub(super) fn largest(&self) -> f64 {
        self.simulated.iter().copied().fold(0.0, f64::max)
    }

    /// The median of the absolute differences of two live runs; `None` if every pair ran once.
    pub(super) fn between_runs(&self) -> Option<f64> {
        median(&self.between_runs)
    }
}

/// The value in the middle, the upper one of two; `None` without values.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::Differences;

    #[test]
    fn the_simulator_is_compared_with_the_median_run_and_runs_with_each_other() {
        let mut found = Differences::default();
        assert_eq!(found.median(), None);
        assert_eq!(found.add(1.0, &[]), None);
        let difference = found.add(12.0, &[8.0, 20.0, 10.0]).unwrap();
        assert!((difference - 20.0).abs() < 1e-9, "{difference}");
        let difference = found.add(9.0, &[10.0]).unwrap();
        assert!((difference + 10.0).abs() < 1e-9, "{difference}");
        assert!((found.largest() - 20.0).abs() < 1e-9);
        // 8 from 20 is 60 %, 8 from 10 is 20 %, 20 from 10 is 100 %.
        assert!((found.between_runs().unwrap() - 60.0).abs() < 1e-9);
    }
}
