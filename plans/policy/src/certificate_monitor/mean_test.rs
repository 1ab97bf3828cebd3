//! Tests by betting whether the mean of a stream exceeds a bound, valid at every moment.
//!
//! A test that is looked at after every request must not be an ordinary one: repeated looks find a difference sooner or later. Here
//! a gambler bets against the null hypothesis "the mean is at most `m`". Under it, the wealth is a supermartingale, so by Ville's
//! inequality it ever exceeds `1 / alpha` with probability at most `alpha`, whenever one looks (Waudby-Smith and Ramdas, Estimating
//! means of bounded random variables by betting, 2024).
//!
//! The inputs of a service are as planned for long before they change. A gambler who lost for a week would need another week to win
//! that back, so the capital is spread over starts in the future: the wealth is a mixture over the time at which the change begins
//! (as in the e-detectors of Shin, Ramdas and Rinaldo) and over the size of the bet.

/// The bets, as shares of the largest one that cannot lose everything.
const BETS: [f64; 8] = [0.9, 0.5, 0.25, 0.1, 0.04, 0.016, 0.006, 0.0025];

/// Observations after which a new start may begin. Fewer would spread the capital thinner without finding a change sooner.
const START_EVERY: u64 = 25;

/// Share of the capital on the first start: the change may be older than the stream.
const ON_FIRST: f64 = 0.5;

/// The sum of `1 / (n ln(n)^2)` for `n` from 2.
const STARTS_SUM: f64 = 2.110;

/// Bounds of a null hypothesis that are treated as 0 and 1.
const EDGE: f64 = 1e-6;

/// A value in [0, 1] and how often it was observed.
pub type WeightedValue = (f64, u64);

/// How many observations of a batch count as one. Below 1 they are taken for 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DesignEffects {
    /// By what was observed before the batch.
    pub(super) before: f64,
    /// By the batch itself. It depends on its values, so it only makes gains smaller.
    pub(super) of_batch: f64,
}

impl DesignEffects {
    /// Those of independent observations.
    pub(super) const INDEPENDENT: Self = Self {
        before: 1.0,
        of_batch: 1.0,
    };
}

/// A test of "the mean is at most `null`" for values in [0, 1].
///
/// Observations come in batches, whose ends must not depend on the values in them. Within a batch the order does not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanTest {
    null: f64,
    /// Natural logarithm of the wealth of each bet.
    wealth: [f64; BETS.len()],
    observed: u64,
    starts: u64,
    next_start: u64,
}

impl MeanTest {
    /// Creates a test of "the mean is at most `null`".
    pub fn at_most(null: f64) -> Self {
        Self {
            null: null.clamp(EDGE, 1.0 - EDGE),
            wealth: [f64::NEG_INFINITY; BETS.len()],
            observed: 0,
            starts: 0,
            next_start: 0,
        }
    }

    /// Takes a batch of observations.
    pub fn take(&mut self, values: &[WeightedValue]) {
        self.take_clustered(values, DesignEffects::INDEPENDENT);
    }

    /// Takes a batch of observations that resemble each other.
    ///
    /// A gain to a power below 1 still is one of a supermartingale, and so is one that is made smaller.
    pub(super) fn take_clustered(&mut self, values: &[WeightedValue], effects: DesignEffects) {
        let count: u64 = values.iter().map(|(_, count)| count).sum();
        if count == 0 {
            return;
        }
        if self.observed >= self.next_start {
            self.start();
        }
        self.observed += count;
        for (wealth, bet) in self.wealth.iter_mut().zip(BETS) {
            let gain = gain(values, self.null, bet);
            let effect = if gain > 0.0 {
                effects.before.max(effects.of_batch)
            } else {
                effects.before
            };
            *wealth += gain / effect.max(1.0);
        }
    }

    /// Puts the capital of the next start into every bet.
    fn start(&mut self) {
        self.starts += 1;
        self.next_start = self.observed + START_EVERY;
        let capital = if self.starts == 1 {
            ON_FIRST
        } else {
            let number = self.starts as f64;
            (1.0 - ON_FIRST) / (STARTS_SUM * number * number.ln().powi(2))
        };
        for wealth in &mut self.wealth {
            *wealth = log_add(*wealth, capital.ln());
        }
    }

    /// Returns the natural logarithm of the wealth. Under the null hypothesis it ever reaches `ln(1 / alpha)` with probability at most
    /// `alpha`.
    pub fn log_wealth(&self) -> f64 {
        log_mean(&self.wealth)
    }

    /// Returns how many values were observed.
    pub fn observed(&self) -> u64 {
        self.observed
    }
}

/// Returns the interval of the mean of values in [0, 1], with confidence `1 - alpha` at every moment: a confidence sequence.
///
/// It covers all observations since the stream began, and needs their counts only.
pub fn mean_interval(values: &[WeightedValue], alpha: f64) -> [f64; 2] {
    let flipped: Vec<WeightedValue> = values
        .iter()
        .map(|(value, count)| (1.0 - value, *count))
        .collect();
    let low = lower_bound(values, alpha / 2.0);
    let high = 1.0 - lower_bound(&flipped, alpha / 2.0);
    [low, high.max(low)]
}

/// Returns the largest bound that the mean exceeds with confidence `1 - alpha`; 0 if none.
fn lower_bound(values: &[WeightedValue], alpha: f64) -> f64 {
    let target = -alpha.ln();
    let wealth = |null: f64| log_mean(&BETS.map(|bet| gain(values, null, bet)));
    // The wealth falls as the bound rises.
    let (mut refuted, mut open) = (0.0, 1.0);
    if wealth(EDGE) < target {
        return 0.0;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(refuted, open);
        if wealth(middle.max(EDGE)) >= target {
            refuted = middle;
        } else {
            open = middle;
        }
    }
    refuted
}

/// Returns the logarithm of the factor by which a bet multiplies its capital: each value multiplies it by `1 + bet (value / null - 1)`.
fn gain(values: &[WeightedValue], null: f64, bet: f64) -> f64 {
    let gains = values
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(value, count)| *count as f64 * (bet * (value.clamp(0.0, 1.0) / null - 1.0)).ln_1p());
    gains.sum()
}

/// Returns the logarithm of the sum of two numbers given by their logarithms.
fn log_add(a: f64, b: f64) -> f64 {
    let (large, small) = if a > b { (a, b) } else { (b, a) };
    if small == f64::NEG_INFINITY {
        return large;
    }
    large + (small - large).exp().ln_1p()
}

/// Returns the logarithm of the mean of numbers given by their logarithms.
pub(super) fn log_mean(logs: &[f64]) -> f64 {
    let sum = logs.iter().copied().fold(f64::NEG_INFINITY, log_add);
    sum - (logs.len().max(1) as f64).ln()
}

#[cfg(test)]
mod tests;
