use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

fn paired(samples: usize, lost: usize, gained: usize) -> Paired {
    Paired {
        gained,
        lost,
        samples,
    }
}

/// The probability of every outcome of `n` samples, by brute force.
fn outcomes(n: u64, p_l: f64, p_g: f64) -> impl Iterator<Item = (u64, u64, f64)> {
    let factorial = |k: u64| (1..=k).map(|factor| factor as f64).product::<f64>();
    (0..=n).flat_map(move |lost| {
        (0..=n - lost).map(move |gained| {
            let rest = n - lost - gained;
            let ways = factorial(n) / factorial(lost) / factorial(gained) / factorial(rest);
            let none = (1.0 - p_l - p_g).max(0.0);
            let power = |base: f64, exponent: u64| base.powi(i32::try_from(exponent).unwrap());
            (
                lost,
                gained,
                ways * power(p_l, lost) * power(p_g, gained) * power(none, rest),
            )
        })
    })
}

#[test]
fn without_a_difference_it_needs_little_more_than_the_binomial_test() {
    // (1 - 0.01)^299 is the first power below 5 %.
    let fewest = fewest_samples(0.01, 0.05);
    assert!((299..=420).contains(&fewest), "{fewest}");
    let fewest = fewest_samples(0.05, 0.05);
    assert!((59..=85).contains(&fewest), "{fewest}");
}

/// A loss of one in a billion was tested for billions of samples, which took the memory of the machine.
#[test]
fn the_samples_for_a_tiny_loss_are_bounded_and_not_tried() {
    let bound = fewest_samples(1e-9, 0.05);
    assert!((2_995_732_000..2_995_733_000).contains(&bound), "{bound}");
    assert!(fewest_samples(f64::MIN_POSITIVE, 0.05) > bound);
    // Where both are known, the bound is below the number.
    let (computed, bounded) = (fewest_samples(1e-4, 0.05), 0.05_f64.ln() / (-1e-4_f64).ln_1p());
    assert!(
        computed as f64 >= bounded && (computed as f64) < 1.4 * bounded,
        "{computed} {bounded}"
    );
}

#[test]
fn gains_make_up_for_losses() {
    let alone = p_value(&paired(1000, 10, 0), 0.01, 0.05);
    let with_gains = p_value(&paired(1000, 10, 10), 0.01, 0.05);
    assert!(alone > 0.4, "{alone}");
    assert!((0.008..0.03).contains(&with_gains), "{with_gains}");
}

/// Cells of equal width were wide beside the standard error at few gains, which multiplied the p-value by up to four.
#[test]
fn many_samples_have_nearly_the_probability_of_their_region() {
    // The probability at the true share of gains, from 400,000 draws.
    for (samples, lost, gained, max_loss, drawn) in [
        (30_000, 1_172, 978, 0.01, 0.0115),
        (30_000, 1_168, 1_006, 0.01, 0.0016),
        (30_000, 1_434, 1_313, 0.01, 0.0003),
        (523, 250, 273, 0.05, 0.0157),
        (3_000, 102, 102, 0.01, 0.0187),
    ] {
        let value = p_value(&paired(samples, lost, gained), max_loss, 0.05);
        assert!(
            (drawn * 0.95..1.25 * drawn + 0.00105).contains(&value),
            "{samples} {lost} {gained}: {value}"
        );
    }
}

#[test]
fn no_samples_prove_nothing() {
    assert!(p_value(&paired(0, 0, 0), 0.01, 0.05) >= 1.0);
}

/// The level holds for every pair of shares under the null hypothesis, by summing over all outcomes of a small sample.
#[test]
fn the_exact_level_holds_over_all_outcomes() {
    for (n, max_loss, level) in [(20, 0.1, 0.05), (14, 0.25, 0.1), (24, 0.05, 0.3)] {
        let values: Vec<Vec<f64>> = (0..=n)
            .map(|lost: u64| {
                let value = |gained: u64| {
                    let (samples, lost, gained) = (n as usize, lost as usize, gained as usize);
                    p_value(&paired(samples, lost, gained), max_loss, level)
                };
                (0..=n - lost).map(value).collect()
            })
            .collect();
        for step in 0..=40 {
            let p_g = f64::from(step) / 40.0 * (1.0 - max_loss) / 2.0;
            for more in [0.0, 0.05] {
                let p_l = (p_g + max_loss + more).min(1.0 - p_g);
                let refused: f64 = outcomes(n, p_l, p_g)
                    .filter(|(lost, gained, _)| values[*lost as usize][*gained as usize] <= level)
                    .map(|(_, _, probability)| probability)
                    .sum();
                assert!(refused <= level + 1e-9, "n {n}, p_l {p_l}, p_g {p_g}: {refused}");
            }
        }
    }
}

proptest! {
    /// The region's probability is that of brute force.
    #[test]
    fn the_region_has_the_probability_of_its_outcomes(
        n in 1_u64..18, lost in 0_u64..18, gained in 0_u64..18, max_loss in 0.01_f64..0.4, p_g in 0.0_f64..0.3, more in 0.0_f64..0.3,
    ) {
        let lost = lost.min(n);
        let observed = Counts { n, lost, gained: gained.min(n - lost) };
        let region = Region::of(&observed, max_loss);
        let p_l = (p_g + more).min(1.0 - p_g);
        let inside = |lost: u64, gained: u64| {
            region.losses.get(gained as usize).copied().flatten().is_some_and(|most| lost <= most)
        };
        prop_assert!(inside(observed.lost, observed.gained));
        let sum: f64 = outcomes(n, p_l, p_g).filter(|(l, g, _)| inside(*l, *g)).map(|(_, _, p)| p).sum();
        let found = region.probability(&Binomial::up_to(n), p_l, p_g);
        prop_assert!((found - sum).abs() < 1e-9, "{found} {sum}");
    }

    /// Fewer losses or more gains never weaken the evidence.
    #[test]
    fn the_p_value_is_monotone(n in 20_usize..300, lost in 1_usize..12, gained in 0_usize..12, max_loss in 0.01_f64..0.2) {
        let at = |lost, gained| p_value(&paired(n, lost, gained), max_loss, 0.05);
        let here = at(lost, gained);
        prop_assert!((0.0..=1.0).contains(&here));
        prop_assert!(at(lost - 1, gained) <= here + 1e-9);
    }
}

/// On samples drawn at the edge of the null hypothesis, the share of false certificates stays below the level.
#[test]
fn false_certificates_are_rarer_than_the_level() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (n, max_loss, p_g) in [(400, 0.02, 0.0), (400, 0.02, 0.03), (1500, 0.01, 0.05)] {
        let mut known = std::collections::BTreeMap::new();
        let trials = 2_000;
        let mut certified = 0;
        for _ in 0..trials {
            let (mut lost, mut gained) = (0, 0);
            for _ in 0..n {
                let draw: f64 = rng.random();
                lost += usize::from(draw < p_g + max_loss);
                gained += usize::from(draw >= p_g + max_loss && draw < 2.0 * p_g + max_loss);
            }
            let value = known
                .entry((lost, gained))
                .or_insert_with(|| p_value(&paired(n, lost, gained), max_loss, 0.05));
            certified += usize::from(*value <= 0.05);
        }
        // Three standard errors above 5 % would be an error of the test, not chance.
        let share = f64::from(u32::try_from(certified).unwrap()) / f64::from(trials);
        assert!(
            share <= 0.05 + 3.0 * (0.05_f64 * 0.95 / 2_000.0).sqrt(),
            "{n} {max_loss} {p_g}: {share}"
        );
        assert!(
            share > 0.015,
            "a test that never certifies proves nothing: {share}"
        );
    }
}
