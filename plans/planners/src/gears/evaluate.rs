//! Evaluates gears: the simulator, behind a trait of one method.
//!
//! A gear is run at a constant load with Poisson arrivals, from an idle start. The results are those of a window after the warm-up, long
//! enough for some thousand requests and for many times the latency of the objective. Every gear gets the same arrivals, scaled to its
//! load, so that two gears do not differ by random arrivals.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use kaskade_policy::linear_fit::batch_latency_s;
use kaskade_policy::plan::{Plan, Slo};
use kaskade_policy::profile::Profile;
use kaskade_simulator::{Answered, LatencyHistogram, Observer, Report, SimConfig, Simulator};

use super::options::GearOptions;

/// The outcome of a gear at a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GearOutcome {
    /// 95th percentile of latency, microseconds.
    pub p95_us: u64,
    /// Whether the backlog stays level.
    pub keeps_up: bool,
    /// Utilisation of the busiest device, in [0, 1].
    pub utilisation: f64,
}

/// Evaluates a gear.
pub trait Evaluate {
    /// Runs the only gear of a plan at a constant load, requests/s. The same plan and load give the same outcome.
    ///
    /// # Errors
    /// The reason why it cannot be run, as a sentence.
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<GearOutcome, String>;

    /// Runs the only gear of a plan several times at a constant load, on arrivals that [`gear`](Self::gear) does not use, and returns the
    /// largest 95th percentile, microseconds; the largest number if the gear does not keep up. `None` without runs, and for an
    /// evaluator without chance.
    ///
    /// # Errors
    /// As [`gear`](Self::gear).
    fn largest_p95(&mut self, candidate: &Plan, qps: f64, runs: u32) -> Result<Option<u64>, String> {
        let _ = (candidate, qps, runs);
        Ok(None)
    }
}

impl<E: Evaluate + ?Sized> Evaluate for &mut E {
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<GearOutcome, String> {
        (**self).gear(candidate, qps)
    }

    fn largest_p95(&mut self, candidate: &Plan, qps: f64, runs: u32) -> Result<Option<u64>, String> {
        (**self).largest_p95(candidate, qps, runs)
    }
}

/// Requests in the window, at least.
const REQUESTS: f64 = 6_000.0;

/// Minimum length of the window, as a multiple of the relevant latency.
const HORIZONS: f64 = 10.0;

/// A first run takes this part of the window; a gear that then misses the objective by far is not run again.
const SHORT_RUN_SHARE: f64 = 0.2;

/// Factor by which the objective must be missed in the first run.
const MISS_FACTOR: f64 = 1.5;

/// How much longer requests may take in the second half of the window than in the first. A growing backlog makes it 2 or
/// more; below this it is chance.
const GROWTH: f64 = 1.5;

/// Below this utilisation no device is overloaded, whatever chance does to the halves.
const OVERLOADED: f64 = 0.95;

/// Sets the seeds of confirming runs apart from those of other runs.
const CONFIRMING_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The simulator as an evaluator.
#[derive(Debug, Clone)]
pub struct Simulated {
    profile: Profile,
    config: SimConfig,
    slo: Slo,
}

impl Simulated {
    /// Simulates variants of this profile, on devices that all have the speed of the first.
    pub fn new(profile: &Profile, options: &GearOptions) -> Self {
        let mut profile = profile.clone();
        let speed = options.devices.first().map_or(1.0, |device| device.speed);
        for variant in &mut profile.variants {
            for cost in &mut variant.costs {
                cost.latency_s /= speed;
            }
        }
        Self {
            profile,
            config: SimConfig {
                seed: options.seed,
                // One message in, one out.
                entry_hop_us: 2 * options.hop_us,
                hop_us: options.hop_us,
                hop_quantiles: options.hop_quantiles,
                hop_by_rate: options.hop_by_rate.clone(),
                turnaround_us: options.turnaround_us,
                ..SimConfig::default()
            },
            slo: options.slo,
        }
    }

    /// The relevant latency, seconds: the objective, or a full batch at every stage.
    fn horizon_s(&self, candidate: &Plan) -> f64 {
        if let Slo::Latency { p95_us } = self.slo {
            return p95_us as f64 / 1e6;
        }
        let stages = candidate.gears.iter().flat_map(|gear| &gear.wiring.stages);
        let full = stages.map(|stage| {
            let profiled = self
                .profile
                .variants
                .iter()
                .find(|profiled| profiled.name == stage.variant);
            profiled.and_then(|profiled| batch_latency_s(&profiled.costs, stage.batching.max_batch))
        });
        full.flatten().sum()
    }

    /// Length of the window, seconds.
    fn window_s(&self, candidate: &Plan, qps: f64) -> f64 {
        (REQUESTS / qps).max(HORIZONS * self.horizon_s(candidate))
    }
}

/// Simulates a load for `seconds` after a warm-up.
fn simulate(simulator: &Simulator, qps: f64, seconds: f64, seed: u64) -> GearOutcome {
    let warm_up_s = SHORT_RUN_SHARE * seconds;
    let us = |seconds: f64| (seconds * 1e6) as u64;
    let mut window = Window {
        from_us: us(warm_up_s),
        middle_us: us(warm_up_s + seconds / 2.0),
        early: LatencyHistogram::default(),
        late: LatencyHistogram::default(),
    };
    let arrivals = poisson(qps, us(warm_up_s + seconds), seed);
    let report = simulator.run(arrivals, &mut window);
    window.outcome(&report)
}

impl Evaluate for Simulated {
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<GearOutcome, String> {
        let simulator =
            Simulator::new(candidate, &self.profile, &self.config).map_err(|error| error.to_string())?;
        let (seconds, seed) = (self.window_s(candidate, qps), self.config.seed);
        if let Slo::Latency { p95_us } = self.slo {
            let glance = simulate(&simulator, qps, SHORT_RUN_SHARE * seconds, seed);
            if glance.p95_us as f64 > MISS_FACTOR * p95_us as f64 {
                return Ok(glance);
            }
        }
        Ok(simulate(&simulator, qps, seconds, seed))
    }

    fn largest_p95(&mut self, candidate: &Plan, qps: f64, runs: u32) -> Result<Option<u64>, String> {
        let seconds = self.window_s(candidate, qps);
        let mut largest = None;
        for run in 1..=u64::from(runs) {
            let seed = self.config.seed ^ run.wrapping_mul(CONFIRMING_SEED);
            let config = SimConfig {
                seed,
                ..self.config.clone()
            };
            let simulator =
                Simulator::new(candidate, &self.profile, &config).map_err(|error| error.to_string())?;
            let outcome = simulate(&simulator, qps, seconds, seed);
            let p95_us = if outcome.keeps_up {
                outcome.p95_us
            } else {
                u64::MAX
            };
            largest = largest.max(Some(p95_us));
            // One run beyond the objective decides.
            if matches!(self.slo, Slo::Latency { p95_us: slo } if p95_us > slo) {
                break;
            }
        }
        Ok(largest)
    }
}

/// Poisson arrivals at a load, requests/s, until a time, microseconds.
fn poisson(qps: f64, until_us: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut now = 0.0;
    let times = std::iter::repeat_with(move || {
        now += -(1.0 - rng.random::<f64>()).ln() * 1e6 / qps;
        now as u64
    });
    times.take_while(move |at| *at < until_us)
}

/// Latencies of the requests that came in the window, by its halves.
struct Window {
    from_us: u64,
    middle_us: u64,
    early: LatencyHistogram,
    late: LatencyHistogram,
}

impl Observer for Window {
    fn answered(&mut self, answered: &Answered) {
        let came = answered.at_us.saturating_sub(answered.latency_us);
        if came >= self.middle_us {
            self.late.record(answered.latency_us);
        } else if came >= self.from_us {
            self.early.record(answered.latency_us);
        }
    }

    fn wants_ticks(&self) -> bool {
        false
    }
}

impl Window {
    fn outcome(mut self, report: &Report) -> GearOutcome {
        let growth = match (self.early.mean(), self.late.mean()) {
            (Some(early), Some(late)) => late / early.max(1.0),
            _ => 1.0,
        };
        let utilisation = report.max_utilisation();
        self.early.merge(&self.late);
        GearOutcome {
            p95_us: self.early.p95().unwrap_or(0),
            keeps_up: growth <= GROWTH || utilisation < OVERLOADED,
            utilisation,
        }
    }
}

#[cfg(test)]
mod tests;
