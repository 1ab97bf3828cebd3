//! Synthetic traces. The same seed gives the same trace.

use std::f64::consts::TAU;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::arrivals::normal;
use super::{Trace, TraceError};

/// A load that rises and falls like the day, between two loads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Diurnal {
    /// Load at the quietest time, where the trace begins, requests/s.
    pub low_qps: f64,
    /// Load at the busiest time, requests/s.
    pub high_qps: f64,
    /// Time from one quietest time to the next, seconds.
    pub period_s: f64,
    /// Standard deviation of the noise of each second, as a share of the load.
    pub noise: f64,
}

/// A load that jumps and comes back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spike {
    /// Load before and after the spike, requests/s.
    pub base_qps: f64,
    /// Load of the spike, requests/s.
    pub peak_qps: f64,
    /// Second in which the spike begins.
    pub start_s: usize,
    /// Duration of the spike, seconds.
    pub length_s: usize,
}

/// Levels of load that are held for a while each; low ones are common, by Zipf's law (CascadeServe appendix C.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Zipf {
    /// The highest level, requests/s. The levels divide the way to it into equal parts.
    pub peak_qps: f64,
    /// Number of levels.
    pub levels: usize,
    /// Level `k` from below is as common as `k` to the power of minus this.
    pub exponent: f64,
    /// Duration of a level, seconds.
    pub hold_s: usize,
}

/// A load similar to the Twitter trace that the paper replays: a day's rise and fall, stretches of minutes that
/// are alike, and bursts without a typical height. Second by second the trace has a coefficient of variation of 0.66, an
/// autocorrelation of 0.96 after one second and 0.88 after a minute, and a daily peak of five times the mean; this generator
/// 0.6, 0.96, 0.85, and six to nine times the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TwitterLike {
    /// Mean load, requests/s.
    pub mean_qps: f64,
}

impl Trace {
    /// An even load.
    ///
    /// # Errors
    /// [`TraceError::Rate`] or [`TraceError::Empty`] if that is no load.
    pub fn constant(qps: f64, seconds: usize) -> Result<Self, TraceError> {
        Self::per_second(vec![qps; seconds])
    }
}

impl Diurnal {
    /// The trace of this many seconds.
    ///
    /// # Errors
    /// A [`TraceError`] if a figure is negative or no number.
    pub fn trace(&self, seconds: usize, seed: u64) -> Result<Trace, TraceError> {
        not_negative("low_qps", self.low_qps)?;
        not_negative("high_qps", self.high_qps)?;
        not_negative("noise", self.noise)?;
        positive("period_s", self.period_s)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rate = |second: usize| {
            let way = (1.0 - (TAU * second as f64 / self.period_s).cos()) / 2.0;
            let base = self.low_qps + (self.high_qps - self.low_qps) * way;
            (base * (1.0 + self.noise * normal(&mut rng))).max(0.0)
        };
        Trace::per_second((0..seconds).map(rate).collect())
    }
}

impl Spike {
    /// The trace of this many seconds.
    ///
    /// # Errors
    /// A [`TraceError`] if a load is negative or no number.
    pub fn trace(&self, seconds: usize) -> Result<Trace, TraceError> {
        not_negative("base_qps", self.base_qps)?;
        not_negative("peak_qps", self.peak_qps)?;
        let lasts = self.start_s..self.start_s.saturating_add(self.length_s);
        let rate = |second| {
            if lasts.contains(&second) {
                self.peak_qps
            } else {
                self.base_qps
            }
        };
        Trace::per_second((0..seconds).map(rate).collect())
    }
}

impl Zipf {
    /// The trace of this many seconds.
    ///
    /// # Errors
    /// A [`TraceError`] if a figure is negative or no number, or there is no level or nothing to hold it for.
    pub fn trace(&self, seconds: usize, seed: u64) -> Result<Trace, TraceError> {
        not_negative("peak_qps", self.peak_qps)?;
        not_negative("exponent", self.exponent)?;
        positive("levels", self.levels as f64)?;
        positive("hold_s", self.hold_s as f64)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let common = |level: usize| (level as f64).powf(-self.exponent);
        let total: f64 = (1..=self.levels).map(common).sum();
        let mut rates = Vec::with_capacity(seconds);
        while rates.len() < seconds {
            let mut left = rng.random::<f64>() * total;
            let drawn = (1..self.levels).find(|level| {
                left -= common(*level);
                left < 0.0
            });
            let level = drawn.unwrap_or(self.levels);
            let held = self.hold_s.min(seconds - rates.len());
            let rate = self.peak_qps * level as f64 / self.levels as f64;
            rates.resize(rates.len() + held, rate);
        }
        Trace::per_second(rates)
    }
}

/// Amplitude of the daily variation of [`TwitterLike`], as a share of the mean.
const DAY: f64 = 0.45;
/// Seconds in a day.
const DAY_S: f64 = 86_400.0;
/// Share of the drift that remains after a second, and the drift's standard deviation in the long run.
const DRIFT_KEEPS: f64 = 0.999;
const DRIFT: f64 = 0.45;
/// Chance of a burst in a second: one in a quarter of an hour.
const BURST_CHANCE: f64 = 1.0 / 900.0;
/// Pareto's exponent of a burst's height, and the height that none exceeds, as multiples of the mean.
const BURST_TAIL: f64 = 1.5;
const MAX_BURST: f64 = 1.5;
/// Share of a burst that remains after a second: half of it after 40 s.
const BURST_KEEPS: f64 = 0.983;

impl TwitterLike {
    /// The trace of this many seconds, beginning at the day's mean on the rise. Its mean is exactly the requested one.
    ///
    /// # Errors
    /// A [`TraceError`] if the mean is negative or no number.
    pub fn trace(&self, seconds: usize, seed: u64) -> Result<Trace, TraceError> {
        not_negative("mean_qps", self.mean_qps)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut drift = DRIFT * normal(&mut rng);
        let mut burst = 0.0;
        let step = DRIFT * (1.0 - DRIFT_KEEPS * DRIFT_KEEPS).sqrt();
        let course = |second: usize| {
            drift = DRIFT_KEEPS * drift + step * normal(&mut rng);
            burst *= BURST_KEEPS;
            if rng.random::<f64>() < BURST_CHANCE {
                let height = (1.0 - rng.random::<f64>()).powf(-1.0 / BURST_TAIL) - 1.0;
                burst += height.min(MAX_BURST);
            }
            let day = 1.0 + DAY * (TAU * second as f64 / DAY_S).sin();
            let load = day * drift.exp() * (1.0 + burst);
            // The scatter of a count of independent people.
            let scatter = (load / self.mean_qps.max(1.0)).sqrt() * normal(&mut rng);
            (load + scatter).max(0.0)
        };
        let course: Vec<f64> = (0..seconds).map(course).collect();
        let mean = course.iter().sum::<f64>() / seconds.max(1) as f64;
        Trace::per_second(course)?.scale(if mean > 0.0 { self.mean_qps / mean } else { 0.0 })
    }
}

fn not_negative(field: &'static str, found: f64) -> Result<(), TraceError> {
    let expected = "a finite number from 0 on";
    let sound = found.is_finite() && found >= 0.0;
    sound.then_some(()).ok_or(TraceError::Parameter {
        field,
        found,
        expected,
    })
}

fn positive(field: &'static str, found: f64) -> Result<(), TraceError> {
    let expected = "a finite number above 0";
    let sound = found.is_finite() && found > 0.0;
    sound.then_some(()).ok_or(TraceError::Parameter {
        field,
        found,
        expected,
    })
}
