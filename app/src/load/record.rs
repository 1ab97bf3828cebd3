//! Outcomes and latencies of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use kaskade_actors::{Code, Fault};
use serde::Serialize;

/// Latencies are kept to three significant digits up to this; longer ones count as this long.
const MAX_LATENCY: Duration = Duration::from_mins(10);

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A result.
    Answered {
        /// The variant that answered.
        variant: String,
        /// Whether a stage answered that would have deferred, had the later one answered.
        degraded: bool,
    },
    /// A result of a language model that came in parts.
    Streamed(StreamedAnswer),
    /// A typed error of the service, or of the client before it sent the request.
    Refused {
        /// Its code.
        code: Code,
    },
    /// The client received no reply in time.
    TimedOut,
}

/// An answer of a language model that came in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedAnswer {
    /// The variant that answered.
    pub variant: String,
    /// As in [`Outcome::Answered`].
    pub degraded: bool,
    /// Time from when the request was due to its first token.
    pub first_token: Duration,
    /// Mean time between two tokens after the first; `None` for an answer of one token.
    pub per_token: Option<Duration>,
    /// Tokens of the answer.
    pub tokens: u32,
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        match fault.code {
            Code::NoReply => Self::TimedOut,
            code => Self::Refused { code },
        }
    }
}

/// Counts and latencies of one run.
#[derive(Debug)]
pub struct Record {
    slo: Option<Duration>,
    latencies: Histogram<u64>,
    sent: u64,
    in_time: u64,
    refused: u64,
    timed_out: u64,
    variants: BTreeMap<String, u64>,
    degraded: u64,
    errors: BTreeMap<&'static str, u64>,
    streamed: Streamed,
}

/// Times of the answers that came in parts.
#[derive(Debug)]
struct Streamed {
    first_token: Histogram<u64>,
    per_token: Histogram<u64>,
    tokens: u64,
}

impl Streamed {
    fn new() -> Result<Self, CreationError> {
        Ok(Self {
            first_token: histogram()?,
            per_token: histogram()?,
            tokens: 0,
        })
    }

    fn add(&mut self, answer: &StreamedAnswer) {
        let count = |times: &mut Histogram<u64>, time: Duration| times.saturating_record(micros(time).max(1));
        count(&mut self.first_token, answer.first_token);
        if let Some(time) = answer.per_token {
            count(&mut self.per_token, time);
        }
        self.tokens += u64::from(answer.tokens);
    }

    fn figures(&self, seconds: f64) -> Option<StreamFigures> {
        (!self.first_token.is_empty()).then(|| StreamFigures {
            ttft_s: quantiles(&self.first_token, 1e6),
            tpot_s: quantiles(&self.per_token, 1e6),
            tokens: self.tokens,
            tokens_per_s: if seconds > 0.0 {
                self.tokens as f64 / seconds
            } else {
                0.0
            },
        })
    }
}

/// Answers of a language model that came in parts, in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StreamFigures {
    /// Time to the first token from when the request was due, seconds.
    pub ttft_s: Latency,
    /// Mean time between two tokens of an answer after the first, seconds.
    pub tpot_s: Latency,
    /// Tokens of all answers.
    pub tokens: u64,
    /// The same per second.
    pub tokens_per_s: f64,
}

/// A run in figures. A request is counted once when it is sent and once when its outcome is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Length of the measured part, seconds.
    pub seconds: f64,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered with a result.
    pub answered: u64,
    /// Requests answered with a typed error.
    pub refused: u64,
    /// Requests to which the client received no reply in time.
    pub timed_out: u64,
    /// Requests without any of these outcomes.
    pub lost: u64,
    /// Share of the requests sent that have no result, in [0, 1].
    pub error_rate: f64,
    /// Results per second.
    pub throughput_per_s: f64,
    /// Results within the objective, per second; `None` without an objective.
    pub goodput_per_s: Option<f64>,
    /// The latency objective, milliseconds.
    pub slo_ms: Option<f64>,
    /// Latencies of the results, from when the request was due.
    pub latency_ms: Latency,
    /// Share of the results per variant.
    pub variants: BTreeMap<String, f64>,
    /// Share of the results that are degraded: a stage answered that would have deferred, had the later one answered.
    pub degraded: f64,
    /// Requests refused or timed out, by code.
    pub errors: BTreeMap<&'static str, u64>,
    /// Times of the answers that came in parts; `None` without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamFigures>,
}

/// Quantiles of a latency, in the unit of the field's name; `None` if no request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// Maximum.
    pub max: Option<f64>,
}

impl Record {
    /// Creates an empty record; goodput is counted only with a latency objective.
    ///
    /// # Errors
    /// Never for the constants used here; the histogram's own bounds check is passed on.
    pub fn new(slo: impl Into<Option<Duration>>) -> Result<Self, CreationError> {
        Ok(Self {
            slo: slo.into(),
            latencies: histogram()?,
            sent: 0,
            in_time: 0,
            refused: 0,
            timed_out: 0,
            variants: BTreeMap::new(),
            degraded: 0,
            errors: BTreeMap::new(),
            streamed: Streamed::new()?,
        })
    }

    /// Counts a request that is being sent.
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// Forgets the requests in flight, because the run ends before their outcomes are known.
    pub fn forget_in_flight(&mut self) {
        self.sent = self.latencies.len() + self.refused + self.timed_out;
    }

    /// Counts the outcome of a request that was sent; `latency` is the time since it was due.
    pub fn add(&mut self, latency: Duration, outcome: Outcome) {
        match outcome {
            Outcome::Answered { variant, degraded } => self.answered(latency, variant, degraded),
            Outcome::Streamed(answer) => {
                self.streamed.add(&answer);
                self.answered(latency, answer.variant, answer.degraded);
            }
            Outcome::Refused { code } => {
                self.refused += 1;
                *self.errors.entry(code.id()).or_default() += 1;
            }
            Outcome::TimedOut => {
                self.timed_out += 1;
                *self.errors.entry(Code::NoReply.id()).or_default() += 1;
            }
        }
    }

    fn answered(&mut self, latency: Duration, variant: String, degraded: bool) {
        self.degraded += u64::from(degraded);
        self.latencies.saturating_record(micros(latency).max(1));
        self.in_time += u64::from(self.slo.is_some_and(|slo| latency <= slo));
        *self.variants.entry(variant).or_default() += 1;
    }

    /// The run in figures.
    pub fn figures(&self, length: Duration) -> Figures {
        let seconds = length.as_secs_f64();
        let answered = self.latencies.len();
        let outcomes = answered + self.refused + self.timed_out;
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Figures {
            seconds,
            sent: self.sent,
            answered,
            refused: self.refused,
            timed_out: self.timed_out,
            lost: self.sent.saturating_sub(outcomes),
            error_rate: self.sent.saturating_sub(answered) as f64 / self.sent.max(1) as f64,
            throughput_per_s: per_second(answered),
            goodput_per_s: self.slo.map(|_| per_second(self.in_time)),
            slo_ms: self.slo.map(|slo| slo.as_secs_f64() * 1e3),
            latency_ms: quantiles(&self.latencies, 1e3),
            variants: self
                .variants
                .iter()
                .map(|(variant, count)| (variant.clone(), *count as f64 / answered as f64))
                .collect(),
            degraded: self.degraded as f64 / answered.max(1) as f64,
            errors: self.errors.clone(),
            stream: self.streamed.figures(seconds),
        }
    }
}

fn histogram() -> Result<Histogram<u64>, CreationError> {
    Histogram::new_with_bounds(1, micros(MAX_LATENCY), 3)
}

/// Returns the quantiles of times in microseconds, in a unit of so many of them.
fn quantiles(times: &Histogram<u64>, unit: f64) -> Latency {
    if times.is_empty() {
        return Latency::default();
    }
    let at = |quantile| Some(times.value_at_quantile(quantile) as f64 / unit);
    Latency {
        mean: Some(times.mean() / unit),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        max: Some(times.max() as f64 / unit),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(variant: &str) -> Outcome {
        Outcome::Answered {
            variant: variant.to_owned(),
            degraded: variant == "s",
        }
    }

    #[test]
    fn every_outcome_is_counted_apart_and_a_missing_one_is_a_loss() {
        let mut record = Record::new(Duration::from_millis(50)).unwrap();
        for _ in 0..103 {
            record.sent();
        }
        for millis in 1..=100 {
            record.add(
                Duration::from_millis(millis),
                answered(if millis <= 75 { "s" } else { "l" }),
            );
        }
        for code in [Code::Overloaded, Code::NoReply] {
            record.add(Duration::from_millis(1), Fault::new(code, "why").into());
        }
        let figures = record.figures(Duration::from_secs(2));
        assert_eq!((figures.sent, figures.answered), (103, 100));
        assert_eq!((figures.refused, figures.timed_out, figures.lost), (1, 1, 1));
        assert!((figures.error_rate - 3.0 / 103.0).abs() < 1e-9);
        assert!((figures.throughput_per_s - 50.0).abs() < 1e-9);
        assert!((figures.goodput_per_s.unwrap() - 25.0).abs() < 1e-9);
        assert!((figures.variants["s"] - 0.75).abs() < 1e-9);
        assert!((figures.degraded - 0.75).abs() < 1e-9);
        assert_eq!((figures.errors["KSK0006"], figures.errors["KSK0022"]), (1, 1));
        let p99 = figures.latency_ms.p99.unwrap();
        assert!((p99 - 99.0).abs() < 0.1, "{p99}");
        // The run is interrupted: the request in flight is no loss.
        record.forget_in_flight();
        let figures = record.figures(Duration::from_secs(2));
        assert_eq!((figures.sent, figures.answered, figures.lost), (102, 100, 0));
        assert!((figures.error_rate - 2.0 / 102.0).abs() < 1e-9);
    }

    #[test]
    fn times_of_streamed_answers_are_those_of_tokens() {
        let mut record = Record::new(None::<Duration>).unwrap();
        let streamed = |tokens, per_token: Option<u64>| {
            Outcome::Streamed(StreamedAnswer {
                variant: "l".to_owned(),
                degraded: false,
                first_token: Duration::from_millis(200),
                per_token: per_token.map(Duration::from_millis),
                tokens,
            })
        };
        for outcome in [streamed(11, Some(20)), streamed(1, None)] {
            record.sent();
            record.add(Duration::from_millis(400), outcome);
        }
        let figures = record.figures(Duration::from_secs(2));
        assert_eq!((figures.answered, figures.variants["l"]), (2, 1.0));
        let stream = figures.stream.unwrap();
        assert!((stream.ttft_s.p50.unwrap() - 0.2).abs() < 1e-3, "{stream:?}");
        assert!((stream.tpot_s.max.unwrap() - 0.02).abs() < 1e-3, "{stream:?}");
        assert_eq!((stream.tokens, stream.tokens_per_s), (12, 6.0));
    }

    #[test]
    fn a_run_without_a_result_has_no_latency() {
        let record = Record::new(None::<Duration>).unwrap();
        let figures = record.figures(Duration::ZERO);
        assert_eq!(figures.latency_ms, Latency::default());
        assert!(figures.throughput_per_s.abs() < f64::EPSILON);
        assert_eq!((figures.goodput_per_s, figures.slo_ms), (None, None));
        assert!(figures.degraded.abs() < f64::EPSILON);
    }

    #[test]
    fn a_latency_beyond_the_longest_still_counts() {
        let mut record = Record::new(Duration::from_millis(50)).unwrap();
        record.add(Duration::from_hours(24), answered("s"));
        let max = record.figures(Duration::from_secs(1)).latency_ms.max.unwrap();
        assert!(max >= 599_000.0, "{max}");
    }
}
