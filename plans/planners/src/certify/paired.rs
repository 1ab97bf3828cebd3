//! The exact test that a cascade loses at most a given share of the largest variant's right answers.
//!
//! Of `n` samples, `lost` are answered rightly by the largest variant only, `gained` by the cascade only. Their true shares are
//! `p_l` and `p_g`; the loss of accuracy is `p_l - p_g`. The null hypothesis is a loss of at least `max_loss`.
//!
//! The test is unconditional and exact: it orders outcomes by Tango's score (Statistics in Medicine 17, 1998, 891-908) and takes the
//! largest probability of an outcome as extreme as the observed one under the null hypothesis (Hsueh, Liu and Chen, Biometrics 57,
//! 2001, 478-483). The unknown `p_g` is restricted to a confidence interval whose risk is added (Berger and Boos, Journal of the
//! American Statistical Association 89, 1994, 1012-1016).

use super::distributions::Binomial;
use crate::thresholds::Paired;

/// Risk of the confidence interval of `p_g`, as a share of the test's level.
const NUISANCE_SHARE: f64 = 0.02;

/// Share of that risk for the lower end of the interval. Probabilities near it are rarely the largest, so little is spent on it.
const LOWER_SHARE: f64 = 0.1;

/// Width of the cells into which the interval of `p_g` is cut, in standard errors of the loss. Within a cell the probability is bounded,
/// not sampled, so narrower cells make the test more powerful and wider ones leave it valid.
const CELL: f64 = 0.04;

/// Returns the p-value of "the loss is at least `max_loss`": a small one is evidence that it is less.
///
/// `level` is the level at which the p-value will be compared; it sets the risk spent on the nuisance parameter. `max_loss` is in
/// (0, 1).
pub(super) fn p_value(paired: &Paired, max_loss: f64, level: f64) -> f64 {
    let observed = Counts::of(paired);
    if observed.n == 0 {
        return 1.0;
    }
    let binomial = Binomial::up_to(observed.n);
    let region = Region::of(&observed, max_loss);
    let risk = level * NUISANCE_SHARE;
    let n = observed.n;
    let highest = binomial
        .upper_bound(n, observed.gained, risk * (1.0 - LOWER_SHARE))
        .min((1.0 - max_loss) / 2.0);
    let lowest = binomial
        .lower_bound(n, observed.gained, risk * LOWER_SHARE)
        .min(highest);
    // `sqrt(2 p_g + max_loss)` grows by equal steps per standard error of the loss.
    let [first, last] = [lowest, highest].map(|share| (2.0 * share + max_loss).sqrt());
    let cells = ((last - first) * (n as f64).sqrt() / CELL).ceil().max(1.0);
    let edge = |cell: u32| {
        let root = first + (last - first) * f64::from(cell) / cells;
        ((root * root - max_loss) / 2.0).clamp(lowest, highest)
    };
    // The probability of the region grows with `p_g` and falls with `p_l`, so its value at the cell's largest `p_g` and smallest `p_l`
    // is an upper bound in the whole cell.
    let worst = (0..cells as u32)
        .map(|cell| region.probability(&binomial, edge(cell) + max_loss, edge(cell + 1)))
        .fold(0.0, f64::max);
    (worst + risk).min(1.0)
}

/// Samples up to which the fewest are computed, not bounded: the test takes memory and time in proportion to them.
const COMPUTED: f64 = 200_000.0;

/// Returns the smallest number of samples with which the test can succeed at all: no sample differs. From 200,000 on it is a bound, that
/// of the binomial test, which needs up to two fifths fewer.
pub(super) fn fewest_samples(max_loss: f64, level: f64) -> u64 {
    // `(1 - max_loss)^n <= level`.
    let least = level.ln() / (-max_loss).ln_1p();
    if least > COMPUTED {
        return least.ceil() as u64;
    }
    let passes = |n: u64| {
        let paired = Paired {
            gained: 0,
            lost: 0,
            samples: usize::try_from(n).unwrap_or(usize::MAX),
        };
        p_value(&paired, max_loss, level) <= level
    };
    let (mut low, mut high) = (0, 1);
    while !passes(high) {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if passes(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// Counts of one outcome.
struct Counts {
    n: u64,
    lost: u64,
    gained: u64,
}

impl Counts {
    fn of(paired: &Paired) -> Self {
        Self {
            n: paired.samples as u64,
            lost: paired.lost as u64,
            gained: paired.gained as u64,
        }
    }
}

/// Tango's score of an outcome: the distance of the observed loss from `max_loss` in standard errors under the null hypothesis.
/// Small values are evidence against it.
pub(super) fn score(n: f64, lost: f64, gained: f64, max_loss: f64) -> f64 {
    // The share `p_g` that makes the outcome most likely under `p_l = p_g + max_loss`.
    let a = 2.0 * n;
    let b = (2.0 * n - lost + gained) * max_loss - lost - gained;
    let c = -gained * max_loss * (1.0 - max_loss);
    let share = ((b * b - 4.0 * a * c).max(0.0).sqrt() - b) / (2.0 * a);
    let variance = n * (2.0 * share + max_loss * (1.0 - max_loss));
    (lost - gained - n * max_loss) / variance.sqrt()
}

/// The outcomes that are at least as extreme as the observed one: for each number of gains, the largest number of losses. With fewer
/// losses or more gains an outcome stays in the region.
struct Region {
    n: u64,
    /// Indexed by the number of gains, from 0; `None` before the first that has an outcome.
    losses: Vec<Option<u64>>,
}

impl Region {
    fn of(observed: &Counts, max_loss: f64) -> Self {
        let n = observed.n;
        let of = |lost: u64, gained: u64| score(n as f64, lost as f64, gained as f64, max_loss);
        let limit = of(observed.lost, observed.gained) + 1e-9;
        let mut losses: Vec<Option<u64>> = Vec::new();
        let mut next = 0;
        for gained in 0..=n {
            while next + gained <= n && of(next, gained) <= limit {
                next += 1;
            }
            losses.push(next.checked_sub(1).map(|most| most.min(n - gained)));
            if next + gained > n {
                // Every further outcome is in the region.
                losses.extend((gained + 1..=n).map(|gained| Some(n - gained)));
                break;
            }
        }
        Self { n, losses }
    }

    /// Returns the probability of the region, for `p_l + p_g <= 1` up to rounding.
    fn probability(&self, binomial: &Binomial, lost: f64, gained: f64) -> f64 {
        let n = self.n;
        let conditional = (lost / (1.0 - gained)).min(1.0);
        let mean = gained * n as f64;
        let mut sum = 0.0;
        // `P[L <= most | G = gains]`, carried from one number of gains to the next.
        let mut tail: Option<Tail> = None;
        for (gains, most) in (0_u64..).zip(&self.losses) {
            let Some(most) = *most else { continue };
            let next = match tail {
                Some(tail) => tail.step(binomial, n - gains, most, conditional),
                None => Tail::new(binomial, n - gains, most, conditional),
            };
            let weight = binomial.mass(n, gained, gains);
            sum += weight * next.sum;
            if gains as f64 > mean && weight < 1e-16 {
                break;
            }
            tail = Some(next);
        }
        sum.min(1.0)
    }
}

/// `P[X <= k]` of `X ~ Bin(n, q)`, updated as `n` falls by one and `k` grows.
#[derive(Clone, Copy)]
struct Tail {
    n: u64,
    k: u64,
    sum: f64,
}

impl Tail {
    fn new(binomial: &Binomial, n: u64, k: u64, q: f64) -> Self {
        let sum = binomial.at_most(n, q, k);
        Self { n, k, sum }
    }

    /// Returns the tail for `n`, one less than before, and `k`, at least as large as before.
    fn step(self, binomial: &Binomial, n: u64, k: u64, q: f64) -> Self {
        if n + 1 != self.n || self.k >= n || k >= n || k < self.k {
            return Self::new(binomial, n, k, q);
        }
        // `P[X_n <= k] = P[X_(n-1) <= k] - q P[X_(n-1) = k]`.
        let fewer = self.sum + q * binomial.mass(n, q, self.k);
        let more: f64 = (self.k + 1..=k).map(|at| binomial.mass(n, q, at)).sum();
        let sum = (fewer + more).min(1.0);
        Self { n, k, sum }
    }
}

#[cfg(test)]
mod tests;
