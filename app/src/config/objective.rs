//! The latency objective: a limit for a named quantile.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::scalar::HumanDuration;

/// Latency objective: the limit for one quantile, as in `{ p95 = "100ms" }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LatencyObjective {
    /// Limit for the median.
    P50(HumanDuration),
    /// Limit for the 90th percentile.
    P90(HumanDuration),
    /// Limit for the 95th percentile.
    P95(HumanDuration),
    /// Limit for the 99th percentile.
    P99(HumanDuration),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Quantile {
    P50,
    P90,
    P95,
    P99,
}

impl LatencyObjective {
    /// Returns the quantile's name in app.toml: `p50`, `p90`, `p95` or `p99`.
    pub const fn quantile(self) -> &'static str {
        match self {
            Self::P50(_) => "p50",
            Self::P90(_) => "p90",
            Self::P95(_) => "p95",
            Self::P99(_) => "p99",
        }
    }

    /// Returns the limit of the quantile.
    pub const fn limit(self) -> HumanDuration {
        match self {
            Self::P50(limit) | Self::P90(limit) | Self::P95(limit) | Self::P99(limit) => limit,
        }
    }

    /// Returns the limit as a duration.
    pub const fn duration(self) -> Duration {
        self.limit().duration()
    }

    /// Returns the limit in microseconds.
    pub fn as_micros(self) -> u64 {
        self.limit().as_micros()
    }

    /// Returns a limit for the 95th percentile that implies this objective; `None` if the objective is a higher
    /// quantile.
    pub(crate) const fn implied_by_p95(self) -> Option<HumanDuration> {
        match self {
            Self::P50(limit) | Self::P90(limit) | Self::P95(limit) => Some(limit),
            Self::P99(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for LatencyObjective {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Table)
    }
}

struct Table;

impl<'de> Visitor<'de> for Table {
    type Value = LatencyObjective;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table with one of p50, p90, p95 and p99, such as `{ p95 = \"100ms\" }`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<LatencyObjective, E> {
        // The former format was a duration without a quantile.
        let limit = text.parse::<HumanDuration>().map_or("100ms", |_| text);
        Err(E::custom(format_args!(
            "`{text}` names no quantile; write `slo = {{ p95 = \"{limit}\" }}`, or p50, p90 or p99"
        )))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<LatencyObjective, A::Error> {
        let Some(quantile) = table.next_key()? else {
            return Err(de::Error::custom(
                "the table names no quantile; write `slo = { p95 = \"100ms\" }`, or p50, p90 or p99",
            ));
        };
        let limit = table.next_value()?;
        if table.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            return Err(de::Error::custom(
                "the table names several quantiles; keep one of p50, p90, p95 and p99",
            ));
        }
        Ok(match quantile {
            Quantile::P50 => LatencyObjective::P50(limit),
            Quantile::P90 => LatencyObjective::P90(limit),
            Quantile::P95 => LatencyObjective::P95(limit),
            Quantile::P99 => LatencyObjective::P99(limit),
        })
    }
}
