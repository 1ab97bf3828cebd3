//! Traces: the load of a service over time, read from text, synthetic, scaled and cut.
//!
//! A trace contains the number of requests per second, or the time of each. [`Trace::arrivals`] makes single arrivals
//! of either, one at a time: twenty minutes at 80,000 requests/s are never in memory.

mod arrivals;
mod generate;
mod parse;
mod statistics;

pub use arrivals::{ArrivalProcess, Arrivals, normal};
pub use generate::{Diurnal, Spike, TwitterLike, Zipf};
pub use parse::TraceError;
pub use statistics::TraceStatistics;

use arrivals::SECOND;

/// Longest trace of arrival times, seconds: four months. It is kept second by second where it is scaled, so that a single line that
/// of `1700000000` would otherwise cost as much memory as half a century of load.
pub const MAX_SECONDS: u64 = 10_000_000;

/// The load of a service over time, from second 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    load: Load,
}

#[derive(Debug, Clone, PartialEq)]
enum Load {
    /// Requests per second, second by second. Finite and not negative.
    Rates(Vec<f64>),
    /// Arrival times, microseconds, ascending; with the sizes of the requests, or none of them.
    Times { times: Vec<u64>, tokens: Vec<Tokens> },
}

/// Size of a request to a language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    /// Tokens of its prompt.
    pub context: u32,
    /// Tokens of its answer.
    pub generated: u32,
}

impl Trace {
    /// A trace of this many requests per second, second by second.
    ///
    /// # Errors
    /// [`TraceError::Rate`] with the first second whose rate is negative or no number, [`TraceError::Empty`] without any.
    pub fn per_second(rates: Vec<f64>) -> Result<Self, TraceError> {
        let bad = |rate: &f64| !rate.is_finite() || *rate < 0.0;
        if let Some(second) = rates.iter().position(bad) {
            let rate = rates.get(second).copied().unwrap_or_default();
            return Err(TraceError::Rate { second, rate });
        }
        if rates.is_empty() {
            return Err(TraceError::Empty);
        }
        Ok(Self {
            load: Load::Rates(rates),
        })
    }

    /// Requests that came in each second.
    pub fn rates(&self) -> Vec<f64> {
        match &self.load {
            Load::Rates(rates) => rates.clone(),
            Load::Times { times, .. } => {
                let seconds = times.last().map_or(0, |last| last / SECOND + 1);
                let mut rates = vec![0.0; seconds as usize];
                for time in times {
                    if let Some(rate) = rates.get_mut((time / SECOND) as usize) {
                        *rate += 1.0;
                    }
                }
                rates
            }
        }
    }

    /// The arrival times, microseconds, where the trace holds them.
    pub fn times(&self) -> Option<&[u64]> {
        match &self.load {
            Load::Rates(_) => None,
            Load::Times { times, .. } => Some(times),
        }
    }

    /// The sizes of the requests, in the order of the arrival times; empty where the trace does not hold them.
    pub fn tokens(&self) -> &[Tokens] {
        match &self.load {
            Load::Rates(_) => &[],
            Load::Times { tokens, .. } => tokens,
        }
    }

    /// Length in whole seconds.
    pub fn seconds(&self) -> usize {
        match &self.load {
            Load::Rates(rates) => rates.len(),
            Load::Times { times, .. } => times.last().map_or(0, |last| (last / SECOND + 1) as usize),
        }
    }

    /// Returns the trace with `factor` times the load. Arrival times become counts per second, since the times of the additional requests
    /// are unknown.
    ///
    /// # Errors
    /// [`TraceError::Factor`] unless the factor is finite and not negative.
    pub fn scale(&self, factor: f64) -> Result<Self, TraceError> {
        if !factor.is_finite() || factor < 0.0 {
            return Err(TraceError::Factor { factor });
        }
        Self::per_second(self.rates().into_iter().map(|rate| rate * factor).collect())
    }

    /// Returns the trace scaled to this load, requests/s, in its busiest second (CascadeServe §6.1).
    ///
    /// # Errors
    /// [`TraceError::Factor`] if the peak is not finite or negative, or no request comes at all.
    pub fn scale_to_peak(&self, qps: f64) -> Result<Self, TraceError> {
        self.scale(qps / self.statistics().peak_qps)
    }

    /// The part of this length around the busiest second, and the second it begins at: all of a trace that is no longer. An even
    /// load has no busiest part.
    ///
    /// # Errors
    /// [`TraceError::Excerpt`] for no length at all.
    pub fn around_busiest(&self, length_s: usize) -> Result<(Self, usize), TraceError> {
        let rates = self.rates();
        let busiest = rates.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let length = length_s.min(rates.len());
        let from = busiest
            .map_or(0, |(second, _)| second)
            .saturating_sub(length / 2)
            .min(rates.len() - length);
        Ok((self.excerpt(from, length)?, from))
    }

    /// The part from second `from_s` on that is `length_s` long.
    ///
    /// # Errors
    /// [`TraceError::Excerpt`] if the trace is not that long.
    pub fn excerpt(&self, from_s: usize, length_s: usize) -> Result<Self, TraceError> {
        let outside = TraceError::Excerpt {
            from_s,
            length_s,
            seconds: self.seconds(),
        };
        let to_s = from_s.checked_add(length_s).filter(|_| length_s > 0);
        let Some(to_s) = to_s.filter(|to| *to <= self.seconds()) else {
            return Err(outside);
        };
        match &self.load {
            Load::Rates(rates) => Self::per_second(rates.get(from_s..to_s).unwrap_or_default().to_vec()),
            Load::Times { times, tokens } => {
                let (from, to) = (from_s as u64 * SECOND, to_s as u64 * SECOND);
                let first = times.partition_point(|time| *time < from);
                let end = times.partition_point(|time| *time < to);
                let times = times.get(first..end).unwrap_or_default();
                if times.is_empty() {
                    return Err(TraceError::Empty);
                }
                Ok(Self {
                    load: Load::Times {
                        times: times.iter().map(|time| time - from).collect(),
                        tokens: tokens.get(first..end).unwrap_or_default().to_vec(),
                    },
                })
            }
        }
    }

    /// The trace without the seconds in which no request came; later ones move up (CascadeServe §6.1).
    ///
    /// # Errors
    /// [`TraceError::Empty`] if no request comes at all.
    pub fn without_idle_seconds(&self) -> Result<Self, TraceError> {
        match &self.load {
            Load::Rates(rates) => {
                Self::per_second(rates.iter().copied().filter(|rate| *rate > 0.0).collect())
            }
            Load::Times { times, tokens } => {
                let (mut second, mut place) = (None, 0);
                let mut moved = Vec::with_capacity(times.len());
                for time in times {
                    if second.is_some_and(|second| second != time / SECOND) {
                        place += 1;
                    }
                    second = Some(time / SECOND);
                    moved.push(place * SECOND + time % SECOND);
                }
                Ok(Self {
                    load: Load::Times {
                        times: moved,
                        tokens: tokens.clone(),
                    },
                })
            }
        }
    }

    /// The arrivals, microseconds, ascending. Arrival times that the trace holds are given as they are; others are placed as
    /// `process` defines, the same for the same seed.
    pub fn arrivals(&self, process: ArrivalProcess, seed: u64) -> Arrivals<'_> {
        match &self.load {
            Load::Rates(rates) => Arrivals::spaced(rates, process, seed),
            Load::Times { times, .. } => Arrivals::at(times),
        }
    }
}

#[cfg(test)]
mod tests;
