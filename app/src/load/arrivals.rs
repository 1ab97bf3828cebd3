//! When requests arrive. Pure: the same seed gives the same arrivals.

use std::time::Duration;

use kaskade_simulator::trace;
use kaskade_simulator::trace::Trace;
use rand::Rng as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::config::scalar::HumanDuration;

/// Arrivals that would come later than this come at this time.
const MAX_LENGTH: Duration = HumanDuration::MAX.duration();

/// Arrival process of an open loop: the distribution of the gaps between its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ArrivalProcess {
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// One request every `1 / rate` seconds.
    Constant,
}

impl From<ArrivalProcess> for trace::ArrivalProcess {
    fn from(process: ArrivalProcess) -> Self {
        match process {
            ArrivalProcess::Poisson => Self::Poisson,
            ArrivalProcess::Constant => Self::Constant,
        }
    }
}

/// Arrival times since the start, ascending.
#[derive(Debug)]
pub enum Arrivals {
    /// Generated until the end.
    Generated {
        /// How the gaps are drawn.
        process: ArrivalProcess,
        /// Mean rate, requests per second.
        rate: f64,
        /// When to stop, seconds.
        until: f64,
        /// The last arrival, seconds.
        last: f64,
        /// Where the gaps are drawn from.
        rng: Box<ChaCha8Rng>,
    },
    /// Read from a trace.
    Trace {
        /// Times of the arrivals, seconds.
        times: std::vec::IntoIter<f64>,
        /// Length of the trace.
        length: Duration,
    },
}

impl Arrivals {
    /// Arrivals of a mean rate (requests per second, finite and above zero) for a length of time.
    pub fn generated(process: ArrivalProcess, rate: f64, length: Duration, seed: u64) -> Self {
        Self::Generated {
            process,
            rate,
            until: length.as_secs_f64(),
            last: 0.0,
            rng: Box::new(ChaCha8Rng::seed_from_u64(seed)),
        }
    }

    /// Arrivals of a trace, played so many times as fast as it was recorded. Times that the trace holds are counted from its
    /// first; counts per second are spaced out as asked.
    pub fn from_trace(trace: &Trace, process: ArrivalProcess, times_as_fast: f64, seed: u64) -> Self {
        let first = trace
            .times()
            .and_then(|times| times.first())
            .copied()
            .unwrap_or(0);
        let arrivals = trace.arrivals(process.into(), seed);
        // A small factor makes any trace longer than a duration can be.
        let played = |seconds: f64| (seconds / times_as_fast).min(MAX_LENGTH.as_secs_f64());
        let times: Vec<f64> = arrivals.map(|time| played((time - first) as f64 / 1e6)).collect();
        let seconds = match trace.times() {
            Some(_) => times.last().copied().unwrap_or(0.0),
            None => played(trace.seconds() as f64),
        };
        Self::Trace {
            times: times.into_iter(),
            length: Duration::from_secs_f64(seconds),
        }
    }

    /// Returns the planned length of the load: of arrival times, until the last.
    pub fn length(&self) -> Duration {
        match self {
            Self::Generated { until, .. } => Duration::from_secs_f64(*until),
            Self::Trace { length, .. } => *length,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        match self {
            Self::Generated {
                process,
                rate,
                until,
                last,
                rng,
            } => {
                let gap = match process {
                    // 1 - u lies in (0, 1], where the logarithm is finite.
                    ArrivalProcess::Poisson => -(1.0 - rng.random::<f64>()).ln() / *rate,
                    ArrivalProcess::Constant => 1.0 / *rate,
                };
                *last += gap;
                (*last < *until).then(|| Duration::from_secs_f64(*last))
            }
            Self::Trace { times, .. } => times.next().map(Duration::from_secs_f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn poisson_arrivals_keep_their_rate_and_their_variance() {
        let times: Vec<f64> = Arrivals::generated(ArrivalProcess::Poisson, 500.0, MINUTE, 7)
            .map(|time| time.as_secs_f64())
            .collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 500.0 - 1.0).abs() < 0.03, "{mean}");
        // An exponential's standard deviation is its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{variance}");
        assert!(times.is_sorted() && times.last().is_some_and(|last| *last < 60.0));
    }

    #[test]
    fn constant_arrivals_are_even_and_end_in_time() {
        let times: Vec<Duration> = Arrivals::generated(ArrivalProcess::Constant, 10.0, MINUTE, 0).collect();
        assert!((598..=600).contains(&times.len()), "{}", times.len());
        assert_eq!(times[0], Duration::from_millis(100));
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals() {
        let draw =
            |seed| Arrivals::generated(ArrivalProcess::Poisson, 50.0, MINUTE, seed).collect::<Vec<_>>();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_trace_is_played_from_its_first_arrival_on_at_the_speed_asked_for() {
        let play =
            |trace: &Trace| Arrivals::from_trace(trace, ArrivalProcess::Constant, 2.0, 0).collect::<Vec<_>>();
        let times = Trace::from_times("0.5\n1\n").unwrap();
        assert_eq!(play(&times), [Duration::ZERO, Duration::from_millis(250)]);
        let counts = Trace::from_counts("0 2").unwrap();
        assert_eq!(play(&counts), [625, 875].map(Duration::from_millis));
        let length = |trace| Arrivals::from_trace(trace, ArrivalProcess::Constant, 2.0, 0).length();
        assert_eq!(
            (length(&times), length(&counts)),
            (Duration::from_millis(250), Duration::from_secs(1))
        );
        // A time that no duration holds was a panic.
        for slow in [1e-12, 1e-300] {
            let last = Arrivals::from_trace(&counts, ArrivalProcess::Constant, slow, 0).last();
            assert_eq!(last, Some(MAX_LENGTH));
        }
    }
}
