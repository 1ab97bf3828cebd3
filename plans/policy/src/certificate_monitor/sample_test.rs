//! Tests on a sample of the requests: audits, probes or labels.

use super::design_effect::DesignEffect;
use super::mean_test::{DesignEffects, MeanTest, WeightedValue};

/// The design effect of requests by their values in the sample, while it is unknown. It hardly matters for a small share of them, and a large
/// share is soon enough to measure it.
const UNKNOWN: f64 = 200.0;

/// The requests that a sample is drawn from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    /// Design effect of their results before the batch; `None` while it is unknown.
    pub(super) design_effect: Option<f64>,
    /// How many there were since the tests began, this batch included.
    pub(super) requests: u64,
}

/// How a sample is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drawn {
    /// Each request with the same probability.
    AtRandom,
    /// As someone chose: possibly requests that follow each other.
    Somehow,
}

/// A test on a sample of the requests, which counts requests that resemble each other as fewer.
#[derive(Debug, Clone)]
pub(super) struct SampleTest {
    test: MeanTest,
    drawn: Drawn,
    /// Of the values themselves. Whether answers differ may come in clusters although the results of the stages do not.
    own: DesignEffect,
    sampled: u64,
}

impl SampleTest {
    /// Creates a test of "the mean is at most `null`".
    pub(super) fn at_most(null: f64, drawn: Drawn) -> Self {
        Self {
            test: MeanTest::at_most(null),
            drawn,
            own: DesignEffect::default(),
            sampled: 0,
        }
    }

    /// Restarts it with another null hypothesis. How much the values resemble each other stays known.
    pub(super) fn restart(&mut self, null: f64) {
        self.test = MeanTest::at_most(null);
        self.sampled = 0;
    }

    /// Takes a batch. While no design effect is known, the values that someone chose only serve to measure one.
    pub(super) fn take(&mut self, values: &[WeightedValue], traffic: Traffic) {
        let counts: Vec<u64> = values.iter().map(|(_, count)| *count).collect();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return;
        }
        self.sampled = self.sampled.saturating_add(count);
        if let Some(before) = self.design_effect(traffic) {
            let of_batch = self.own.of_batch(&counts);
            self.test
                .take_clustered(values, DesignEffects { before, of_batch });
        }
        self.own.take(&counts);
    }

    /// Returns the design effect of the sample: the larger one of its own and that of the requests, of a random share `s` of which with the
    /// effect `d` it is `1 + s (d - 1)`.
    fn design_effect(&self, traffic: Traffic) -> Option<f64> {
        let own = self.own.estimate();
        match self.drawn {
            Drawn::AtRandom => {
                let share = self.sampled as f64 / traffic.requests.max(self.sampled).max(1) as f64;
                let of_share = |effect: f64| 1.0 + share * (effect - 1.0);
                let of_traffic = traffic.design_effect.map_or(1.0, of_share);
                Some(own.unwrap_or(of_share(UNKNOWN)).max(of_traffic))
            }
            Drawn::Somehow => own.into_iter().chain(traffic.design_effect).reduce(f64::max),
        }
    }

    /// Returns the natural logarithm of the wealth of the test.
    pub(super) fn log_wealth(&self) -> f64 {
        self.test.log_wealth()
    }
}
