use super::*;
use crate::certificate_monitor::BernoulliSampler;

/// Counts of requests that arrive in clusters of the same result, of geometric sizes with that mean, in batches of 20.
fn clustered(seed: u64, mean: f64, requests: u32, rate: f64) -> DesignEffect {
    let mut draws = BernoulliSampler::new(seed);
    let (mut effect, mut is_one) = (DesignEffect::default(), draws.draw(rate));
    for _ in 0..requests / 20 {
        let mut counts = [0, 0];
        for _ in 0..20 {
            if draws.draw(1.0 / mean) {
                is_one = draws.draw(rate);
            }
            counts[usize::from(is_one)] += 1;
        }
        effect.take(&counts);
    }
    effect
}

#[test]
fn independent_requests_have_an_effect_of_about_one() {
    let mut effects: Vec<f64> = (0..21)
        .map(|seed| clustered(seed, 1.0, 20_000, 0.2).estimate().unwrap())
        .collect();
    effects.sort_by(f64::total_cmp);
    assert!(
        effects[0] >= 1.0 && effects[10] < 2.0 && effects[20] < 6.0,
        "{effects:?}"
    );
}

/// Of clusters of geometric sizes with mean `m`, the effect on long blocks is `2 m - 1`.
#[test]
fn clusters_have_the_effect_of_their_size() {
    for (mean, least) in [(4.0, 5.0), (30.0, 30.0), (100.0, 80.0)] {
        for seed in 0..20 {
            let effect = clustered(seed, mean, 40_000, 0.3).estimate().unwrap();
            assert!(effect > least && effect < 15.0 * mean, "{mean}: {effect}");
        }
    }
}

#[test]
fn few_requests_tell_nothing() {
    assert_eq!(clustered(1, 1.0, 200, 0.5).estimate(), None);
}

/// While it was unknown, a service whose requests all gave one result never drifted.
#[test]
fn many_requests_of_one_category_are_no_cluster() {
    assert_eq!(clustered(1, 1.0, 3_000, 0.0).estimate(), None);
    assert_eq!(clustered(1, 1.0, 10_000, 0.0).estimate(), Some(1.0));
}

#[test]
fn old_requests_count_less() {
    let (mut draws, mut is_one) = (BernoulliSampler::new(4), false);
    let mut effect = clustered(4, 1.0, 100_000, 0.3);
    for _ in 0..400 {
        let mut counts = [0, 0];
        for _ in 0..20 {
            if draws.draw(1.0 / 30.0) {
                is_one = draws.draw(0.3);
            }
            counts[usize::from(is_one)] += 1;
        }
        effect.take(&counts);
    }
    assert!(effect.estimate().unwrap() > 20.0, "{:?}", effect.estimate());
}

#[test]
fn a_batch_that_differs_from_the_last_one_has_an_effect_of_its_own() {
    let is_one = |effect: f64| (effect - 1.0).abs() < 1e-12;
    let mut effect = DesignEffect::default();
    assert!(is_one(effect.of_batch(&[3, 40])), "nothing to compare it with");
    effect.take(&[30, 10]);
    effect.take(&[]);
    assert!(is_one(effect.of_batch(&[30, 10])) && is_one(effect.of_batch(&[25, 15])));
    assert!(effect.of_batch(&[0, 40]) > 40.0);
    assert!(is_one(effect.of_batch(&[])));
}

/// A step of the rate counts in one comparison per size, so that it does not hide itself.
#[test]
fn a_change_of_the_rate_hardly_changes_the_effect() {
    let mut draws = BernoulliSampler::new(3);
    let mut effect = DesignEffect::default();
    for batch in 0..4_000 {
        let rate = if batch < 2_000 { 0.2 } else { 0.5 };
        let ones = (0..20).filter(|_| draws.draw(rate)).count() as u64;
        effect.take(&[20 - ones, ones]);
    }
    assert!(effect.estimate().unwrap() < 6.0, "{:?}", effect.estimate());
}
