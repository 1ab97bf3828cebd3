//! The range of a rate that a profile leaves open.

/// Returns the range of a rate of which `count` of `samples` were observed, each end with confidence `1 - alpha`: by Chernoff's bound,
/// `samples * KL(count / samples, rate) <= ln(1 / alpha)`.
pub(crate) fn rate_range(count: u64, samples: u64, alpha: f64) -> [f64; 2] {
    if samples == 0 {
        return [0.0, 1.0];
    }
    let observed = (count as f64 / samples as f64).min(1.0);
    let allowed = -alpha.ln() / samples as f64;
    let end = |mut inside: f64, mut outside: f64| {
        for _ in 0..50 {
            let middle = f64::midpoint(inside, outside);
            if divergence(observed, middle) <= allowed {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        inside
    };
    [end(observed, 0.0), end(observed, 1.0)]
}

/// Returns the Kullback-Leibler divergence of two coins.
fn divergence(p: f64, q: f64) -> f64 {
    let term = |p: f64, q: f64| if p <= 0.0 { 0.0 } else { p * (p / q).ln() };
    term(p, q) + term(1.0 - p, 1.0 - q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate_monitor::audit_sampler::BernoulliSampler;

    #[test]
    fn a_range_holds_what_was_observed_and_narrows() {
        let [low, high] = rate_range(20, 1_000, 0.05);
        assert!(
            low > 0.008 && low < 0.02 && high > 0.02 && high < 0.035,
            "{low} {high}"
        );
        let [narrower, _] = rate_range(2_000, 100_000, 0.05);
        assert!(narrower > low);
        let [low, high] = rate_range(0, 300, 0.05);
        assert!(low.abs() < 1e-9 && (high - 0.00994).abs() < 1e-4, "{low} {high}");
        let [low, high] = rate_range(0, 0, 0.05);
        assert!(low.abs() < 1e-12 && (high - 1.0).abs() < 1e-12, "{low} {high}");
    }

    #[test]
    fn a_range_misses_the_rate_rarely() {
        let mut draws = BernoulliSampler::new(3);
        let missed = (0..2_000)
            .filter(|_| {
                let count = (0..400).filter(|_| draws.draw(0.05)).count() as u64;
                rate_range(count, 400, 0.05)[1] < 0.05
            })
            .count();
        assert!(missed <= 100, "{missed} of 2000");
    }
}
