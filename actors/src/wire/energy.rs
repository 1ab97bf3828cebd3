//! Energy reports, and the token counts that they carry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Message;

/// What a process has spent, and on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyReport {
    /// Who measured.
    pub node: String,
    /// What the joules were read from.
    pub source: String,
    /// Energy since the start, idle included, joules; unknown where no source could be read.
    pub joules: Option<f64>,
    /// Requests that its replicas ran or its ingress answered since the start, whichever it has.
    pub requests: u64,
    /// Joules per such request; unknown where the joules are, and before the first request.
    pub joules_per_request: Option<f64>,
    /// Processor time of the process since the start, seconds over all cores.
    pub busy_core_s: f64,
    /// Time since the start, seconds.
    pub wall_s: f64,
    /// What each model of the process has done, and its part of the joules.
    #[serde(default)]
    pub models: BTreeMap<String, ModelEnergy>,
}

/// What a model has done in a process since its start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelEnergy {
    /// Requests run.
    pub requests: u64,
    /// Batches run.
    pub batches: u64,
    /// Time its threads were busy, seconds.
    pub busy_s: f64,
    /// Its part of the process's joules, by busy time, idle included ([`kaskade_plans::energy::attributed`]); unknown where
    /// those are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// What it made, if it is a language model.
    #[serde(default)]
    pub tokens: Tokens,
    /// Joules per token; unknown where the joules are, and before the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_token: Option<f64>,
}

impl Message for EnergyReport {
    const NAME: &'static str = "EnergyReport";
}

/// What a language model has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Tokens made.
    pub count: u64,
    /// Of them, first ones of an answer.
    pub first: u64,
    /// Time until the first ones, in sum, microseconds.
    pub to_first_us: u64,
    /// Time from one to the next within an answer, in sum, microseconds.
    pub between_us: u64,
}

impl Tokens {
    /// The first token of an answer, so long after its arrival.
    pub const fn first(after_us: u64) -> Self {
        Self {
            count: 1,
            first: 1,
            to_first_us: after_us,
            between_us: 0,
        }
    }

    /// Another token of an answer, so long after the one before.
    pub const fn next(after_us: u64) -> Self {
        Self {
            count: 1,
            first: 0,
            to_first_us: 0,
            between_us: after_us,
        }
    }

    /// Mean time to the first token, seconds; none before there is one.
    pub fn to_first_s(&self) -> Option<f64> {
        (self.first > 0).then(|| self.to_first_us as f64 / self.first as f64 / 1e6)
    }

    /// Mean time between two tokens, seconds; none before there are two of one answer.
    pub fn between_s(&self) -> Option<f64> {
        let further = self.count - self.first.min(self.count);
        (further > 0).then(|| self.between_us as f64 / further as f64 / 1e6)
    }
}
