//! How often a shifter is in the gear of the load, and how soon it notices a change, on drawn arrivals:
//! `cargo bench -p kaskade-policy --bench shifting [-- RATES]`. RATES is a file of requests per second, separated by white space; it is
//! scaled to each mean load.

#![expect(clippy::print_stdout, reason = "it prints its result")]
#![expect(
    clippy::disallowed_methods,
    reason = "it measures time; the policy does not read it"
)]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "it stops at what is unexpected"
)]

use std::f64::consts::TAU;
use std::time::Instant;

use kaskade_policy::shifting::{ShiftConfig, Shifter};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Mean loads, requests/s.
const LOADS: [f64; 6] = [10.0, 20.0, 40.0, 100.0, 200.0, 1000.0];

const TICK_S: f64 = 0.1;

fn main() {
    let fixed = ShiftConfig {
        sample: 0,
        ..ShiftConfig::default()
    };
    let configs = [("0.5 s", fixed), ("default", ShiftConfig::default())];
    let trace = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let trace: Option<Vec<f64>> = trace.map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        text.split_whitespace()
            .map(|rate| rate.parse().unwrap())
            .collect()
    });
    for ranges in [4, 10] {
        let even = |range: f64| move |second: u64| (range + spread(second / 30)) / (range + 0.5);
        let middle = f64::from(ranges) / 2.0 - 1.0;
        print(
            "even, 30 s each",
            ranges,
            f64::from(ranges) / (middle + 0.5),
            1,
            &configs,
            even(middle),
        );
        print(
            "even, arrivals in fours",
            ranges,
            f64::from(ranges) / (middle + 0.5),
            4,
            &configs,
            even(middle),
        );
        for period in [20.0, 60.0, 200.0] {
            let wave = move |second: u64| 1.0 + 0.8 * (second as f64 * TAU / period).sin();
            print(
                &format!("wave of {period} s, 0.2 to 1.8"),
                ranges,
                1.8,
                1,
                &configs,
                wave,
            );
        }
        for half in [1, 5] {
            let square = move |second: u64| {
                if (second / half).is_multiple_of(2) {
                    0.4
                } else {
                    1.6
                }
            };
            print(
                &format!("0.4 and 1.6, {half} s each"),
                ranges,
                2.0,
                1,
                &configs,
                square,
            );
        }
        if let Some(rates) = &trace {
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            let peak = rates.iter().copied().fold(0.0, f64::max) / mean;
            let rate = |second: u64| rates[second as usize % rates.len()] / mean;
            print("trace", ranges, peak, 1, &configs, rate);
        }
    }
    for (factor, bound) in [(2.0, 1.5), (4.0, 2.0), (0.5, 0.75), (0.25, 0.5)] {
        for (name, config) in &configs {
            let delays = LOADS.map(|qps| delay(*config, qps, factor * qps, bound * qps));
            let delays = delays.map(|(mean, late)| format!("{mean:5.1} {late:3}"));
            println!(
                "x{factor}, ticks until noticed, mean and p95 | {name} | {}",
                delays.join(" | ")
            );
        }
    }
    for (name, config) in &configs {
        let costs = LOADS.map(|qps| format!("{:.2?}", cost(*config, qps)));
        println!("time of a tick | {name} | {}", costs.join(" | "));
    }
}

/// Golden-ratio sequence in [0, 1).
fn spread(nth: u64) -> f64 {
    (nth as f64 * 0.618_034).fract()
}

/// Prints the share of requests that are served in a higher and in a lower gear than that of the load, for an hour of a load that `rate`
/// gives as a multiple of its mean, second by second. The gears divide the loads up to `peak` evenly.
fn print(
    name: &str,
    ranges: u32,
    peak: f64,
    together: u64,
    configs: &[(&str, ShiftConfig)],
    rate: impl Fn(u64) -> f64,
) {
    for (config_name, config) in configs {
        let shares = LOADS.map(|qps| {
            let (higher, lower) = shares(*config, ranges, peak * qps, together, |second| qps * rate(second));
            format!("{:5.1} {:5.1}", 100.0 * higher, 100.0 * lower)
        });
        println!(
            "{name}, {ranges} gears, % in higher and lower | {config_name} | {}",
            shares.join(" | ")
        );
    }
}

fn shares(
    config: ShiftConfig,
    ranges: u32,
    peak_qps: f64,
    together: u64,
    rate: impl Fn(u64) -> f64,
) -> (f64, f64) {
    let bounds = (0..ranges).map(|range| f64::from(range) * peak_qps / f64::from(ranges));
    let mut shifter = Shifter::with_bounds(bounds.collect(), config);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut all, mut higher, mut lower) = (0, 0, 0);
    for tick in 1..=36_000_u64 {
        let qps = rate((tick - 1) / 10);
        let arrivals = together * poisson(qps * TICK_S / together as f64, &mut rng);
        let (own, gear) = (shifter.gear_for(qps), shifter.gear());
        all += arrivals;
        higher += if gear > own { arrivals } else { 0 };
        lower += if gear < own { arrivals } else { 0 };
        shifter.tick(tick * config.tick_us, arrivals, 0);
    }
    (higher as f64 / all as f64, lower as f64 / all as f64)
}

/// Ticks until a changed load is in the gear beyond the bound: mean and 95th percentile of 1,000 changes.
fn delay(config: ShiftConfig, before: f64, after: f64, bound: f64) -> (f64, u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut delays = Vec::new();
    while delays.len() < 1_000 {
        let mut shifter = Shifter::with_bounds(vec![0.0, bound], config);
        for tick in 1..=100 {
            shifter.tick(tick * config.tick_us, poisson(before * TICK_S, &mut rng), 0);
        }
        let to = u32::from(after > bound);
        shifter.set_gear(1 - to);
        // After the hold of any shift up so far.
        let noticed = |tick: &u64| {
            shifter.tick(
                (tick + 1_000) * config.tick_us,
                poisson(after * TICK_S, &mut rng),
                0,
            );
            shifter.gear() == to
        };
        delays.push((1..1_000_000).find(noticed).unwrap());
    }
    delays.sort_unstable();
    (delays.iter().sum::<u64>() as f64 / 1e3, delays[950])
}

fn cost(config: ShiftConfig, qps: f64) -> std::time::Duration {
    const TICKS: u64 = 100_000;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let counts: Vec<u64> = (0..1_000).map(|_| poisson(qps * TICK_S, &mut rng)).collect();
    let mut shifter = Shifter::with_bounds(vec![0.0, qps, 2.0 * qps], config);
    let start = Instant::now();
    for (tick, count) in (1..TICKS).zip(counts.iter().cycle()) {
        shifter.tick(tick * config.tick_us, *count, 0);
    }
    start.elapsed() / TICKS as u32
}

/// A Poisson count.
fn poisson(expected: f64, rng: &mut ChaCha8Rng) -> u64 {
    let mut left = expected;
    let gaps = std::iter::repeat_with(|| {
        left += (1.0 - rng.random::<f64>()).ln();
        left
    });
    gaps.take_while(|left| *left > 0.0).count() as u64
}
