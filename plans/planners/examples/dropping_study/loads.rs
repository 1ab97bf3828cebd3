//! Loads of the study, relative to their peaks. Levels and times are drawn from the seed, so that what was tuned on some seeds is judged on
//! others.

use kaskade_simulator::trace::{Diurnal, Trace};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The generated loads.
pub(crate) fn generated(seconds: usize, seed: u64) -> Vec<(String, Trace)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let day = Diurnal {
        low_qps: 0.1,
        high_qps: 1.0,
        period_s: seconds as f64,
        noise: 0.05,
    };
    let of = |rates: Vec<f64>| Trace::per_second(rates).unwrap();
    let named = [
        ("generated day", day.trace(seconds, seed).unwrap()),
        ("rises within 60 s", of(ramps(seconds, &mut rng))),
        ("steps", of(steps(seconds, &mut rng))),
        ("spikes", of(spikes(seconds, &mut rng))),
        ("on-off", of(on_off(seconds, &mut rng))),
    ];
    named.map(|(name, trace)| (name.to_owned(), trace)).into()
}

/// A quiet minute, a rise over 20 to 60 seconds, a short peak and a fall, again and again.
fn ramps(seconds: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let mut rates = Vec::new();
    while rates.len() < seconds {
        let (low, high) = (rng.random_range(0.1..0.3), rng.random_range(0.8..1.0));
        let (rise, fall) = (rng.random_range(20..=60), rng.random_range(15..=40));
        rates.extend(vec![low; rng.random_range(15..40)]);
        rates.extend((0..rise).map(|at| low + (high - low) * f64::from(at) / f64::from(rise)));
        rates.extend(vec![high; rng.random_range(5..20)]);
        rates.extend((0..fall).map(|at| high - (high - low) * f64::from(at) / f64::from(fall)));
    }
    rates.truncate(seconds);
    rates
}

/// Levels that are held for 15 to 45 seconds.
fn steps(seconds: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let mut rates = Vec::new();
    while rates.len() < seconds {
        let level = rng.random_range(0.15..1.0);
        rates.extend(vec![level; rng.random_range(15..45)]);
    }
    rates.truncate(seconds);
    rates
}

/// Two to six seconds at the peak every half minute or so.
fn spikes(seconds: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let mut rates = Vec::new();
    while rates.len() < seconds {
        rates.extend(vec![rng.random_range(0.2..0.4); rng.random_range(20..50)]);
        rates.extend(vec![rng.random_range(0.8..1.0); rng.random_range(2..=6)]);
    }
    rates.truncate(seconds);
    rates
}

/// Off and on for 10 to 30 seconds each.
fn on_off(seconds: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let mut rates = Vec::new();
    while rates.len() < seconds {
        rates.extend(vec![0.1; rng.random_range(10..30)]);
        rates.extend(vec![rng.random_range(0.8..1.0); rng.random_range(10..30)]);
    }
    rates.truncate(seconds);
    rates
}

/// Parts of a measured trace: one around the busiest second of a day, and one that is made bursty.
///
/// The bursty one is a part of the day chosen by the seed, with every second's distance from the mean of its neighbourhood four times as
/// large: it rises and falls within seconds, as the load of a single user of many does.
pub(crate) fn measured(text: &str, seconds: usize, seed: u64) -> Vec<(String, Trace)> {
    let whole = Trace::from_counts(text).unwrap().without_idle_seconds().unwrap();
    let days = (whole.seconds() / DAY_S).max(1);
    let day = whole
        .excerpt((seed as usize % days) * DAY_S, DAY_S.min(whole.seconds()))
        .unwrap();
    let busiest = day.around_busiest(seconds).unwrap().0;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let from = rng.random_range(0..day.seconds().saturating_sub(seconds).max(1));
    let part = day.excerpt(from, seconds).unwrap();
    vec![
        ("measured".to_owned(), busiest),
        ("measured, bursty".to_owned(), bursty(&part.rates())),
    ]
}

const DAY_S: usize = 86_400;

fn bursty(rates: &[f64]) -> Trace {
    const NEAR_S: usize = 30;
    const TIMES: f64 = 4.0;
    let at = |second: usize, rate: &f64| {
        let near = &rates[second.saturating_sub(NEAR_S)..(second + NEAR_S).min(rates.len())];
        let mean = near.iter().sum::<f64>() / near.len() as f64;
        (mean + TIMES * (rate - mean)).clamp(0.1 * mean, 4.0 * mean)
    };
    let rates = rates.iter().enumerate().map(|(second, rate)| at(second, rate));
    Trace::per_second(rates.collect()).unwrap()
}
