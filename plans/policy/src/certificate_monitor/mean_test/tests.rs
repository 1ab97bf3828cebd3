use proptest::prelude::*;

use super::super::audit_sampler::BernoulliSampler;
use super::*;

/// Feeds one value at a time with that probability of 1; returns the index at which the test decides, if it does.
fn decides_at(
    test: &mut MeanTest,
    draws: &mut BernoulliSampler,
    rate: f64,
    values: u64,
    alpha: f64,
) -> Option<u64> {
    (0..values).find(|_| {
        let value = if draws.draw(rate) { 1.0 } else { 0.0 };
        test.take(&[(value, 1)]);
        test.log_wealth() >= -alpha.ln()
    })
}

#[test]
fn the_first_observations_cost_no_more_than_their_share() {
    let mut test = MeanTest::at_most(0.5);
    assert!(test.log_wealth().is_infinite());
    test.take(&[]);
    assert_eq!(test.observed(), 0);
    test.take(&[(1.0, 10), (0.0, 2)]);
    assert!(test.log_wealth() > 0.0 && test.observed() == 12);
}

/// Looks after every observation, so any moment may be the one at which it stops.
#[test]
fn a_stream_under_the_null_is_rejected_in_at_most_a_share_alpha() {
    let alpha = 0.1;
    for null in [0.01, 0.2, 0.7] {
        let rejected = (0..400)
            .filter(|seed| {
                let mut draws = BernoulliSampler::new(*seed);
                decides_at(&mut MeanTest::at_most(null), &mut draws, null, 3_000, alpha).is_some()
            })
            .count();
        // Three standard deviations above 40.
        assert!(rejected <= 58, "{rejected} of 400 at {null}");
    }
}

/// The change comes after a long stream that is as it should be.
#[test]
fn a_change_is_found_within_a_stated_number_of_observations() {
    for (null, rate, within) in [
        (0.03, 0.15, 250),
        (0.2, 0.35, 500),
        (0.01, 0.05, 700),
        (0.02, 0.2, 120),
    ] {
        let (mut late, mut early) = (0, 0);
        for seed in 0..100 {
            let (mut test, mut draws) = (MeanTest::at_most(null), BernoulliSampler::new(1_000 + seed));
            if decides_at(&mut test, &mut draws, null * 0.7, 5_000, 0.05).is_some() {
                early += 1;
                continue;
            }
            late += usize::from(decides_at(&mut test, &mut draws, rate, within, 0.05).is_none());
        }
        // A false alarm has probability 0.05 at most.
        assert!(early <= 8, "{early} of 100 are false alarms at {null}");
        assert!(late <= 10, "{late} of 100 are later than {within} at {null}");
    }
}

#[test]
fn an_interval_covers_the_mean_at_every_moment() {
    let mut missed = 0;
    for seed in 0..60 {
        let (mut draws, mut ones) = (BernoulliSampler::new(seed), 0);
        let missing = (1..=600_u64).any(|count| {
            ones += u64::from(draws.draw(0.1));
            if count % 10 != 0 {
                return false;
            }
            let [low, high] = mean_interval(&[(1.0, ones), (0.0, count - ones)], 0.1);
            !(low..=high).contains(&0.1)
        });
        missed += usize::from(missing);
    }
    // Three standard deviations above 6.
    assert!(missed <= 12, "{missed} of 60");
}

#[test]
fn an_interval_narrows() {
    let [low, high] = mean_interval(&[(1.0, 200), (0.0, 1_800)], 0.05);
    assert!(low > 0.075 && high < 0.13, "{low} {high}");
    let [low, high] = mean_interval(&[], 0.05);
    assert!(low.abs() < 1e-12 && (high - 1.0).abs() < 1e-12, "{low} {high}");
    let [low, high] = mean_interval(&[(0.0, 1_000)], 0.05);
    assert!(low.abs() < 1e-12 && high < 0.01, "{low} {high}");
}

proptest! {
    /// Batches of any size have the wealth of single values, as long as no start falls between them.
    #[test]
    fn order_within_a_batch_does_not_matter(ones in 0_u64..12, zeros in 0_u64..12, null in 0.01_f64..0.99) {
        let mut batch = MeanTest::at_most(null);
        batch.take(&[(1.0, ones), (0.0, zeros)]);
        let mut single = MeanTest::at_most(null);
        for _ in 0..zeros { single.take(&[(0.0, 1)]); }
        for _ in 0..ones { single.take(&[(1.0, 1)]); }
        if ones + zeros > 0 {
            prop_assert!((batch.log_wealth() - single.log_wealth()).abs() < 1e-9);
        }
    }

    #[test]
    fn an_interval_holds_the_observed_mean(ones in 0_u64..500, zeros in 0_u64..500, halves in 0_u64..100) {
        let count = ones + zeros + halves;
        prop_assume!(count > 0);
        let mean = (ones as f64 + halves as f64 / 2.0) / count as f64;
        let [low, high] = mean_interval(&[(1.0, ones), (0.0, zeros), (0.5, halves)], 0.05);
        prop_assert!(low <= mean + 1e-9 && mean <= high + 1e-9, "{low} {mean} {high}");
    }
}

/// Bounds by the package `bargain`, which `fixtures/make_betting_bounds.py` writes.
#[derive(serde::Deserialize)]
struct Oracle {
    alpha: f64,
    sequences: Vec<Sequence>,
}

#[derive(serde::Deserialize)]
struct Sequence {
    /// Of the distribution that the values were drawn from.
    mean: f64,
    /// The digit of a value is divided by this.
    levels: f64,
    values: String,
    lower: f64,
    rejections: Vec<Rejection>,
}

#[derive(serde::Deserialize)]
struct Rejection {
    null: f64,
    after: Option<u64>,
}

impl Sequence {
    fn values(&self) -> impl Iterator<Item = f64> {
        let digits = self
            .values
            .chars()
            .map(|digit| f64::from(digit.to_digit(10).unwrap()));
        digits.map(|digit| digit / self.levels)
    }

    fn observed_mean(&self) -> f64 {
        self.values().sum::<f64>() / self.values.len() as f64
    }

    /// How many observations the own test needs to reject a mean of at most `null`.
    fn rejected_after(&self, null: f64, alpha: f64) -> Option<u64> {
        let mut test = MeanTest::at_most(null);
        self.values().find_map(|value| {
            test.take(&[(value, 1)]);
            (test.log_wealth() >= -alpha.ln()).then(|| test.observed())
        })
    }
}

fn oracle() -> Oracle {
    let oracle: Oracle = serde_json::from_str(include_str!("../../../fixtures/betting_bounds.json")).unwrap();
    assert!(oracle.sequences.len() >= 40);
    oracle
}

/// Both bounds bet against the mean. The package adapts its bet to the observed variance and keeps the best of all its bounds; ours mixes
/// eight fixed bets, which costs `ln 8` of wealth, and needs no order of the observations. So they are close but not equal, and neither is
/// tighter everywhere.
#[test]
fn lower_bounds_are_as_tight_as_those_of_bargain() {
    let Oracle { alpha, sequences } = oracle();
    let (mut theirs, mut ours) = (0.0, 0.0);
    for sequence in &sequences {
        let values: Vec<WeightedValue> = sequence.values().map(|value| (value, 1)).collect();
        let [lower, _] = mean_interval(&values, 2.0 * alpha);
        assert!(
            lower <= sequence.mean && sequence.lower <= sequence.mean,
            "{lower}"
        );
        let observed = sequence.observed_mean();
        assert!(lower < observed, "{lower} of {observed}");
        if values.len() < 200 {
            continue;
        }
        let gaps = (observed - sequence.lower, observed - lower);
        let ratio = gaps.1 / gaps.0;
        assert!((0.5..2.2).contains(&ratio), "{ratio} at {observed}");
        theirs += gaps.0;
        ours += gaps.1;
    }
    assert!(ours < theirs, "mean gaps {ours} and {theirs}");
}

/// The own test also spreads its capital over later starts, so it rejects a little later where the package rejects early, but finds more of
/// the small differences.
#[test]
fn rejections_come_about_when_those_of_bargain_do() {
    let Oracle { alpha, sequences } = oracle();
    let (mut theirs, mut ours) = (0, 0);
    for sequence in sequences.iter().filter(|sequence| sequence.values.len() >= 200) {
        for rejection in &sequence.rejections {
            let after = sequence.rejected_after(rejection.null, alpha);
            if rejection.null >= sequence.mean {
                assert_eq!(
                    (after, rejection.after),
                    (None, None),
                    "the null hypothesis is true"
                );
                continue;
            }
            theirs += u32::from(rejection.after.is_some());
            ours += u32::from(after.is_some());
            let half = rejection.null < 0.6 * sequence.mean && sequence.mean >= 0.1;
            if let (true, Some(expected)) = (half, rejection.after) {
                let after = after.unwrap_or(u64::MAX);
                assert!(
                    after <= 2 * expected + 30,
                    "{after}, not {expected}, at {}",
                    sequence.mean
                );
            }
        }
    }
    assert!(ours >= theirs, "{ours} and {theirs} rejections");
}
