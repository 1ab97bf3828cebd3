//! Energy reports, and the token counts that they carry.

use std::collections::BTreeMap;

use kaskade_policy::remote::price::{Cost, CostSource};
use serde::{Deserialize, Serialize};

use super::Message;

/// Energy used by a process, and the work done with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyReport {
    /// Name of the process.
    pub node: String,
    /// Source of the readings.
    pub source: String,
    /// Hardware counter that was read, if it also counts the energy of other processes. Reports with the same counter
    /// report the same energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// Energy since the start, idle energy included, joules; `None` if no source could be read.
    pub joules: Option<f64>,
    /// Requests since the start that the process answered or that its replicas ran, whichever number is larger.
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
    /// Requests that the replicas of the process forwarded since the start, by stage and next stage.
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
    /// Time that the model threads were busy, seconds.
    pub busy_s: f64,
    /// The model's share of the process's energy, joules, by busy time and including idle energy
    /// ([`kaskade_policy::energy::energy_by_variant`]); `None` without a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Requests whose cost in money is known.
    #[serde(default)]
    pub priced: u64,
    /// Total cost of the `priced` requests.
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

/// An amount of money in integer billionths, so that sums do not depend on the order of the threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Billionths of the currency unit of the app's prices.
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
    /// Counts the first tokens of an answer, which came `after_us` microseconds after the request's arrival: one token,
    /// or all if the answer is not generated token by token.
    pub const fn first(count: u32, after_us: u64) -> Self {
        Self {
            count: count as u64,
            first: 1,
            to_first_us: after_us,
            between_us: 0,
        }
    }

    /// Counts further tokens of an answer, which came `after_us` microseconds after the previous ones.
    pub const fn next(count: u32, after_us: u64) -> Self {
        Self {
            count: count as u64,
            first: 0,
            to_first_us: 0,
            between_us: after_us,
        }
    }

    /// Returns the mean time to first token, seconds; `None` before the first token.
    pub fn to_first_s(&self) -> Option<f64> {
        (self.first > 0).then(|| self.to_first_us as f64 / self.first as f64 / 1e6)
    }

    /// Returns the mean time between tokens, seconds; `None` before the second token of an answer.
    pub fn between_s(&self) -> Option<f64> {
        let further = self.count - self.first.min(self.count);
        (further > 0).then(|| self.between_us as f64 / further as f64 / 1e6)
    }
}
