//! Configuration of an ingress.

use std::time::Duration;

use kaskade_policy::certificate_monitor::AuditSettings;
use kaskade_policy::ledger::LedgerConfig;
use kaskade_policy::load_drift::LoadDriftConfig;
use kaskade_policy::shifting::ShiftConfig;

use super::durable::DurableConfig;

/// Configuration of an ingress.
#[derive(Debug, Clone)]
pub struct IngressConfig {
    /// Largest number of requests in flight in all ingresses of a process; above it, clients are refused immediately.
    pub max_in_flight: usize,
    /// Limit of the input data of requests in flight, bytes; above it, clients are refused immediately and durable
    /// requests wait in their stream.
    pub max_in_flight_bytes: usize,
    /// Default budget of a request.
    pub default_budget: Duration,
    /// Largest budget; longer budgets are reduced to it.
    pub max_budget: Duration,
    /// Attempts per request, including the first ([`LedgerConfig::max_attempts`]).
    pub max_attempts: u32,
    /// How durable requests are handled; `None` refuses them.
    pub durable: Option<DurableConfig>,
    /// Configuration of load counting and gear shifts.
    pub shift: ShiftConfig,
    /// Configuration of drift detection.
    pub load_drift: LoadDriftConfig,
    /// Share of the requests that is audited if the plan has a certified list.
    pub audit: AuditSettings,
    /// Number of replies that each ingress remembers for delayed labels, if the plan has a certified list.
    pub recent_replies: usize,
}

impl Default for IngressConfig {
    fn default() -> Self {
        Self {
            max_in_flight: 4096,
            max_in_flight_bytes: 1 << 30,
            default_budget: Duration::from_secs(2),
            max_budget: Duration::from_mins(2),
            max_attempts: LedgerConfig::default().max_attempts,
            durable: None,
            shift: ShiftConfig::default(),
            load_drift: LoadDriftConfig::default(),
            audit: AuditSettings::OFF,
            recent_replies: 10_000,
        }
    }
}
