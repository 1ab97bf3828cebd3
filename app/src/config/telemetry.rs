//! Export of traces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::Finite;

/// Export of traces over OTLP. Without an address nothing is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TelemetryConfig {
    /// Address of a collector for OTLP over HTTP, such as `http://127.0.0.1:4318`; `OTEL_EXPORTER_OTLP_ENDPOINT` overrides it
    /// [default: nothing is exported].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<String>,
    /// Share of the traces that begin here and are exported, 0 to 1. A request with a `traceparent` keeps its own flag.
    pub sample: Finite,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp: None,
            sample: Finite::ONE,
        }
    }
}

impl TelemetryConfig {
    /// Returns the settings that are out of range.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(0.0..=1.0).contains(&self.sample.get()) {
            problems.push(format!(
                "telemetry.sample: `{}` is not a valid share; use a number from 0 to 1",
                self.sample.get()
            ));
        }
        if let Some(otlp) = &self.otlp
            && !otlp.starts_with("http://")
            && !otlp.starts_with("https://")
        {
            problems.push(format!("telemetry.otlp: `{otlp}` is not an http or https URL"));
        }
        problems
    }
}
