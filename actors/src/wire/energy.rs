//! Energy reports, and the token counts that they carry.

use std::collections::BTreeMap;

use kaskade_policy::remote::price::{Cost, CostSource};
use serde::{Deserialize, Serialize};

use super::Message;

/// Energy used by a process, and the work done with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyReport {
    /// The process.
    pub node: String,
    /// Source of the readings.
    pub source: String,
    /// The counter that was read, if it counts the energy of other processes too: reports that name the same counter tell the same energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// Energy since the start, idle included, joules; `None` if no source could be read.
    pub joules: Option<f64>,
    /// Requests that its replicas ran or its ingress answered since the start, whichever applies.
    pub requests: u64,
    /// Joules per such request; `None` without a source, and before the first request.
    pub joules_per_request: Option<f64>,
    /// Processor time of the process since the start, seconds over all cores.
    pub busy_core_s: f64,
    /// Time since the start, seconds.
    pub wall_s: f64,
    /// Work and energy of each model of the process.
    #[serde(default)]
    pub models: BTreeMap<String, ModelEnergy>,
    /// Requests that its replicas sent on since the start, by stage and next stage.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forwarded: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Work of a model in a process since its start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelEnergy {
    /// Requests run.
    pub requests: u64,
    /// Batches run; 0 for language models and remote variants, which run in steps.
    pub batches: u64,
    /// Time its threads were busy, seconds.
    pub busy_s: f64,
    /// Its share of the process's joules, by busy time, idle included ([`kaskade_policy::energy::attributed`]); `None`
    /// without a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Requests whose cost in money is known.
    #[serde(default)]
    pub priced: u64,
    /// What those cost in money.
    #[serde(default)]
    pub spent: Spent,
    /// Token counts, for language models.
    #[serde(default)]
    pub tokens: Tokens,
    /// Joules per token; `None` without a source, and before the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_token: Option<f64>,
}

impl Message for EnergyReport {
    const NAME: &'static str = "EnergyReport";
}

/// Money, as whole billionths, so that sums over threads do not depend on their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Billionths of the currency of the app's prices.
    pub billionths: u64,
    /// The least certain source of any part; `None` if nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CostSource>,
}

impl Spent {
    /// Adds a cost.
    pub fn add(&mut self, cost: Cost) {
        let billionths = (cost.amount.max(0.0) * 1e9).round() as u64;
        self.billionths = self.billionths.saturating_add(billionths);
        self.source = self.source.max(Some(cost.source));
    }

    /// Returns the amount in the currency of the app's prices; `None` if nothing is known.
    pub fn amount(&self) -> Option<f64> {
        self.source.map(|_| self.billionths as f64 / 1e9)
    }
}

/// Token counts and times of a language model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Tokens generated.
    pub count: u64,
    /// First tokens of answers.
    pub first: u64,
    /// Time to first token, summed, microseconds.
    pub to_first_us: u64,
    /// Time between successive tokens of an answer, summed, microseconds.
    pub between_us: u64,
}

impl Tokens {
    /// Counts the first tokens of an answer, which came `after_us` after its arrival: one, or all of an answer that is not
    /// generated token by token.
    pub const fn first(count: u32, after_us: u64) -> Self {
        Self {
            count: count as u64,
            first: 1,
            to_first_us: after_us,
            between_us: 0,
        }
    }

    /// Counts further tokens of an answer, which came `after_us` after the previous ones.
    pub const fn next(count: u32, after_us: u64) -> Self {
        Self {
            count: count as u64,
            first: 0,
            to_first_us: 0,
            between_us: after_us,
        }
    }

    /// Mean time to first token, seconds; `None` before the first.
    pub fn to_first_s(&self) -> Option<f64> {
        (self.first > 0).then(|| self.to_first_us as f64 / self.first as f64 / 1e6)
    }

    /// Mean time between tokens, seconds; `None` before the second token of an answer.
    pub fn between_s(&self) -> Option<f64> {
        let further = self.count - self.first.min(self.count);
        (further > 0).then(|| self.between_us as f64 / further as f64 / 1e6)
    }
}
