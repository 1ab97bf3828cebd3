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
fn few_requests_tell_nothing_and_one_category_neither() {
    assert_eq!(clustered(1, 1.0, 200, 0.5).estimate(), None);
    assert_eq!(clustered(1, 1.0, 10_000, 0.0).estimate(), None);
}

/// A step of the rate counts in one comparison per size, so that it does not hide itself.
#[test]
fn a_change_of_the_rate_hardly_changes_the_effect() {
    let mut draws = BernoulliSampler::new(3);
    let mut effect = DesignEffect::default();
    for batch in 0..2_000 {
        let rate = if batch < 1_000 { 0.2 } else { 0.5 };
        let ones = (0..20).filter(|_| draws.draw(rate)).count() as u64;
        effect.take(&[20 - ones, ones]);
    }
    assert!(effect.estimate().unwrap() < 100.0, "{:?}", effect.estimate());
}
