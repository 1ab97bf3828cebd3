//! Sources of energy readings.

use kaskade_models::power::{self, SourceKind, Wattage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{IdleWatts, Watts};

/// Sources of energy readings, and the power to assume if no source can be read. Energy from assumed power is reported as
/// modelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PowerConfig {
    /// Allowed sources, best first.
    #[schemars(with = "Vec<String>")]
    pub sources: Vec<SourceKind>,
    /// Assumed power of the CPU; the active power is that of one busy core.
    pub processor: StatedPower,
    /// Assumed power of a GPU [default: none; without NVML its energy is unknown].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<StatedPower>,
}

/// Assumed power of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StatedPower {
    /// Power while idle, watts. It is that of the whole host, and each process adds it: of several processes of a host, state it for one and
    /// 0 for the others.
    pub idle_watts: IdleWatts,
    /// Additional power while it computes, watts.
    pub active_watts: Watts,
}

impl Default for PowerConfig {
    fn default() -> Self {
        let power::PowerConfig {
            sources, processor, ..
        } = power::PowerConfig::default();
        let watts = |watts| Watts::try_from(watts).unwrap_or(Watts::TEN);
        Self {
            sources,
            processor: StatedPower {
                idle_watts: watts(processor.idle_watts).into(),
                active_watts: watts(processor.active_watts),
            },
            gpu: None,
        }
    }
}

impl From<&PowerConfig> for power::PowerConfig {
    fn from(config: &PowerConfig) -> Self {
        let wattage = |power: StatedPower| Wattage {
            idle_watts: power.idle_watts.get(),
            active_watts: power.active_watts.get(),
        };
        Self {
            sources: config.sources.clone(),
            processor: wattage(config.processor),
            gpu: config.gpu.map(wattage),
            ..Self::default()
        }
    }
}
