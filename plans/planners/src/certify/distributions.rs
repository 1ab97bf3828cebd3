//! Tails of the binomial distribution, summed exactly.

/// The logarithms of the factorials up to some number, from which every mass is computed in constant time.
pub(super) struct Binomial {
    ln_factorials: Vec<f64>,
}

impl Binomial {
    /// Prepares distributions of up to `n` trials.
    pub(super) fn up_to(n: u64) -> Self {
        let mut sum = 0.0;
        let ln_factorials = (0..=n).map(|factor| {
            sum += (factor.max(1) as f64).ln();
            sum
        });
        Self {
            ln_factorials: ln_factorials.collect(),
        }
    }

    fn ln_factorial(&self, of: u64) -> f64 {
        let index = usize::try_from(of).unwrap_or(usize::MAX);
        self.ln_factorials.get(index).copied().unwrap_or(f64::NAN)
    }

    /// Returns `P[X = k]` of `X ~ Bin(n, p)`, for `p` in [0, 1] and `k <= n`.
    pub(super) fn mass(&self, n: u64, p: f64, k: u64) -> f64 {
        let ways = self.ln_factorial(n) - self.ln_factorial(k) - self.ln_factorial(n - k);
        // `0 * ln 0` is 0 here: an impossible event that did not happen.
        let hits = if k == 0 { 0.0 } else { k as f64 * p.ln() };
        let misses = if k == n {
            0.0
        } else {
            (n - k) as f64 * (-p).ln_1p()
        };
        (ways + hits + misses).exp()
    }

    /// Returns `P[X <= k]` of `X ~ Bin(n, p)`, for `p` in [0, 1].
    pub(super) fn at_most(&self, n: u64, p: f64, k: u64) -> f64 {
        if k >= n {
            return 1.0;
        }
        let mut sum = 0.0;
        // Downwards from `k`: below the mode the terms fall, so the sum can stop early.
        for at in (0..=k).rev() {
            let term = self.mass(n, p, at);
            sum += term;
            if (at as f64) < n as f64 * p && term < sum * 1e-17 {
                break;
            }
        }
        sum.min(1.0)
    }

    /// Returns the largest `p` under which `k` or fewer of `n` happen with at least probability `risk`: an upper confidence bound of
    /// level `1 - risk` (Clopper and Pearson, Biometrika 26, 1934).
    pub(super) fn upper_bound(&self, n: u64, k: u64, risk: f64) -> f64 {
        if k >= n {
            return 1.0;
        }
        let (mut low, mut high) = (k as f64 / n as f64, 1.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.at_most(n, middle, k) > risk {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// Returns the smallest `p` under which `k` or more of `n` happen with at least probability `risk`: a lower confidence bound of
    /// level `1 - risk`.
    pub(super) fn lower_bound(&self, n: u64, k: u64, risk: f64) -> f64 {
        1.0 - self.upper_bound(n, n.saturating_sub(k), risk)
    }
}

/// Returns the standard normal quantile of a probability above one half, within 0.0005 (Hastings, Approximations for Digital
/// Computers, 1955).
pub(super) fn normal_quantile(probability: f64) -> f64 {
    let t = (-2.0 * (1.0 - probability).min(0.5).ln()).sqrt();
    t - (2.515_517 + 0.802_853 * t + 0.010_328 * t * t)
        / (1.0 + 1.432_788 * t + 0.189_269 * t * t + 0.001_308 * t * t * t)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_cases_are_those_of_a_table() {
        let of = Binomial::up_to(1000);
        assert!((of.at_most(10, 0.5, 2) - 56.0 / 1024.0).abs() < 1e-13);
        assert!((of.at_most(299, 0.01, 0) - 0.99_f64.powi(299)).abs() < 1e-12);
        assert!((of.at_most(1000, 0.01, 3) - 0.010_073).abs() < 1e-6);
        assert!((of.mass(4, 0.25, 1) - 0.421_875).abs() < 1e-13);
        assert_eq!((of.at_most(5, 1.0, 4), of.at_most(5, 0.0, 0)), (0.0, 1.0));
    }

    #[test]
    fn no_failure_in_n_bounds_the_rate_by_the_rule_of_three() {
        let bound = Binomial::up_to(300).upper_bound(300, 0, 0.05);
        assert!(
            (bound - (1.0 - 0.05_f64.powf(1.0 / 300.0))).abs() < 1e-12,
            "{bound}"
        );
    }

    proptest! {
        #[test]
        fn the_tail_is_the_sum_of_its_masses(n in 1_u64..400, p in 0.0_f64..=1.0, share in 0.0_f64..=1.0) {
            let of = Binomial::up_to(n);
            let k = (n as f64 * share) as u64;
            let sum: f64 = (0..=k).map(|at| of.mass(n, p, at)).sum();
            prop_assert!((of.at_most(n, p, k) - sum).abs() < 1e-9);
        }

        #[test]
        fn the_upper_bound_is_where_the_tail_meets_the_risk(n in 1_u64..2000, share in 0.0_f64..0.99, risk in 0.001_f64..0.5) {
            let of = Binomial::up_to(n);
            let k = (n as f64 * share) as u64;
            let bound = of.upper_bound(n, k, risk);
            prop_assert!(k as f64 / n as f64 <= bound && bound <= 1.0);
            prop_assert!((of.at_most(n, bound, k) - risk).abs() < 1e-6);
        }
    }
}
