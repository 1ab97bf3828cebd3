use proptest::prelude::*;

use super::super::coin::Coin;
use super::*;

/// Feeds one value at a time with that probability of 1; returns the place at which the test decides, if it does.
fn decides_at(test: &mut MeanTest, coin: &mut Coin, rate: f64, values: u64, alpha: f64) -> Option<u64> {
    (0..values).find(|_| {
        let value = if coin.flip(rate) { 1.0 } else { 0.0 };
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
fn a_stream_under_the_null_is_accused_in_at_most_a_share_alpha() {
    let alpha = 0.1;
    for null in [0.01, 0.2, 0.7] {
        let accused = (0..400)
            .filter(|seed| {
                let mut coin = Coin::new(*seed);
                decides_at(&mut MeanTest::at_most(null), &mut coin, null, 3_000, alpha).is_some()
            })
            .count();
        // Three standard deviations above 40.
        assert!(accused <= 58, "{accused} of 400 at {null}");
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
            let (mut test, mut coin) = (MeanTest::at_most(null), Coin::new(1_000 + seed));
            if decides_at(&mut test, &mut coin, null * 0.7, 5_000, 0.05).is_some() {
                early += 1;
                continue;
            }
            late += usize::from(decides_at(&mut test, &mut coin, rate, within, 0.05).is_none());
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
        let (mut coin, mut ones) = (Coin::new(seed), 0);
        let missing = (1..=600_u64).any(|count| {
            ones += u64::from(coin.flip(0.1));
            if count % 10 != 0 {
                return false;
            }
            let [least, most] = mean_interval(&[(1.0, ones), (0.0, count - ones)], 0.1);
            !(least..=most).contains(&0.1)
        });
        missed += usize::from(missing);
    }
    // Three standard deviations above 6.
    assert!(missed <= 12, "{missed} of 60");
}

#[test]
fn an_interval_narrows() {
    let [least, most] = mean_interval(&[(1.0, 200), (0.0, 1_800)], 0.05);
    assert!(least > 0.075 && most < 0.13, "{least} {most}");
    let [least, most] = mean_interval(&[], 0.05);
    assert!(
        least.abs() < 1e-12 && (most - 1.0).abs() < 1e-12,
        "{least} {most}"
    );
    let [least, most] = mean_interval(&[(0.0, 1_000)], 0.05);
    assert!(least.abs() < 1e-12 && most < 0.01, "{least} {most}");
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
        let [least, most] = mean_interval(&[(1.0, ones), (0.0, zeros), (0.5, halves)], 0.05);
        prop_assert!(least <= mean + 1e-9 && mean <= most + 1e-9, "{least} {mean} {most}");
    }
}
