//! Turns counts per second into single arrivals.
//!
//! A renewal process of mean gap 1 runs in a time that passes as fast as the load is high. With exponential gaps that is
//! exactly the Poisson process of this load; with even gaps every second gets its count; and there is nothing to keep but
//! the current position.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Microseconds per second.
pub(super) const SECOND: u64 = 1_000_000;

/// Arrival process: the distribution of the gaps between arrivals, whose mean the trace gives.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ArrivalProcess {
    /// Equal gaps while the load is constant.
    Constant,
    /// Exponential gaps: arrivals know nothing of each other. Counts per second scatter around the trace's.
    #[default]
    Poisson,
    /// Gamma gaps of this coefficient of variation: below 1 more even than Poisson, above 1 in bursts.
    Gamma {
        /// Standard deviation of a gap over its mean. Taken for at least 0.01.
        cv: f64,
    },
}

/// Arrival times, microseconds, ascending.
#[derive(Debug, Clone)]
pub struct Arrivals<'a>(Source<'a>);

#[derive(Debug, Clone)]
enum Source<'a> {
    Known(std::slice::Iter<'a, u64>),
    Spaced(Box<Spaced<'a>>),
}

#[derive(Debug, Clone)]
struct Spaced<'a> {
    rates: &'a [f64],
    gaps: Gaps,
    /// The current second, and the position in it, in [0, 1).
    second: usize,
    into: f64,
    /// Gap to the next arrival, in mean gaps.
    left: f64,
}

impl<'a> Arrivals<'a> {
    pub(super) fn at(times: &'a [u64]) -> Self {
        Self(Source::Known(times.iter()))
    }

    pub(super) fn spaced(rates: &'a [f64], process: ArrivalProcess, seed: u64) -> Self {
        let mut gaps = Gaps {
            process,
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        let left = match process {
            // Half a gap at either end, so that a second of n requests/s holds n.
            ArrivalProcess::Constant => 0.5,
            _ => gaps.draw(),
        };
        Self(Source::Spaced(Box::new(Spaced {
            rates,
            gaps,
            second: 0,
            into: 0.0,
            left,
        })))
    }
}

impl Iterator for Arrivals<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match &mut self.0 {
            Source::Known(times) => times.next().copied(),
            Source::Spaced(spaced) => spaced.next(),
        }
    }
}

impl Spaced<'_> {
    fn next(&mut self) -> Option<u64> {
        loop {
            let rate = *self.rates.get(self.second)?;
            let rest = (1.0 - self.into) * rate;
            if self.left < rest {
                self.into += self.left / rate;
                self.left = self.gaps.draw();
                // Rounding must not carry an arrival into the next second.
                let within = ((self.into * SECOND as f64) as u64).min(SECOND - 1);
                return Some(self.second as u64 * SECOND + within);
            }
            self.left -= rest;
            self.second += 1;
            self.into = 0.0;
        }
    }
}

/// Draws gaps of mean 1.
#[derive(Debug, Clone)]
struct Gaps {
    process: ArrivalProcess,
    rng: ChaCha8Rng,
}

impl Gaps {
    fn draw(&mut self) -> f64 {
        match self.process {
            ArrivalProcess::Constant => 1.0,
            // 1 - u is in (0, 1], where the logarithm is finite.
            ArrivalProcess::Poisson => -(1.0 - self.rng.random::<f64>()).ln(),
            ArrivalProcess::Gamma { cv } => {
                let shape = 1.0 / cv.max(0.01).powi(2);
                gamma(shape, &mut self.rng) / shape
            }
        }
    }
}

/// A gamma variate of this shape and scale 1 (Marsaglia and Tsang, 2000).
fn gamma(shape: f64, rng: &mut ChaCha8Rng) -> f64 {
    if shape < 1.0 {
        let lift = (1.0 - rng.random::<f64>()).powf(1.0 / shape);
        return gamma(shape + 1.0, rng) * lift;
    }
    let centre = shape - 1.0 / 3.0;
    let width = 1.0 / (9.0 * centre).sqrt();
    loop {
        let x = normal(rng);
        let cubed = (1.0 + width * x).powi(3);
        if cubed > 0.0 {
            let accepted = 0.5 * x * x + centre - centre * cubed + centre * cubed.ln();
            if (1.0 - rng.random::<f64>()).ln() < accepted {
                return centre * cubed;
            }
        }
    }
}

/// A standard normal variate (Box and Muller, 1958).
pub fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}
