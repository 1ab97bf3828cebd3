//! Audits: a share of the requests is also answered by the largest variant, after the client has its reply.
//!
//! An audit is no request of a client: it has no entry in the ledger, holds no permit, is sent once and never again, and its answers only
//! count. Its requests to stages carry numbers of their own, so that no result of one can end a client's request. Which requests are
//! audited, and what an audit asks, are decisions of [`kaskade_policy::certificate_monitor`]. This file has their state; `auditing` sends and counts.

mod dispatch;

use std::collections::BTreeMap;
use std::sync::Arc;

use kaskade_policy::certificate_monitor::{Answer, Audit, RecentReplies, Sampler};

use super::config::IngressConfig;
use super::inputs::RetainedInputs;
use crate::{audit_counts::AuditCounts, plan::versions::PlanVersion};

/// Marks the number of an audit's request. The ledger counts from 0 and never gets there.
pub(super) const MARK: u64 = 1 << 63;

/// Time in which an audit must end, microseconds.
pub(super) const BUDGET_US: u64 = 10_000_000;

/// Returns whether that is the number of an audit's request.
pub(super) fn is_audit(id: u64) -> bool {
    id & MARK != 0
}

/// The audits of an ingress.
pub(super) struct Audits {
    pub(super) watched: Arc<AuditCounts>,
    pub(super) sampler: Sampler,
    pub(super) open: BTreeMap<u64, Open>,
    pub(super) next: u64,
    pub(super) recent: RecentReplies,
}

/// An audit that has not ended.
pub(super) struct Open {
    pub(super) audit: Audit,
    pub(super) version: Arc<PlanVersion>,
    pub(super) inputs: RetainedInputs,
    /// The id that the client gave its request.
    pub(super) client: Option<String>,
    pub(super) live: Answer,
    pub(super) deadline: u64,
    /// The largest variant's part, and that of the probe.
    pub(super) parts: [Part; 2],
}

/// A gear that an audit runs.
#[derive(Default)]
pub(super) struct Part {
    pub(super) gear: u32,
    pub(super) waits: bool,
    /// The stage that was asked last.
    pub(super) stage: String,
    pub(super) dispatches: u32,
    pub(super) answer: Option<Answer>,
}

/// An audit that begins once the client has its reply.
pub(super) struct Chosen {
    pub(super) audit: Audit,
    pub(super) version: Arc<PlanVersion>,
    pub(super) inputs: RetainedInputs,
    pub(super) client: Option<String>,
    pub(super) live: Answer,
}

pub(super) const LARGEST: usize = 0;
pub(super) const PROBE: usize = 1;

impl Audits {
    pub(super) fn new(ingress: &str, config: &IngressConfig) -> Self {
        Self {
            watched: Arc::default(),
            sampler: Sampler::new(config.audit, seed_of(ingress)),
            open: BTreeMap::new(),
            next: 0,
            recent: RecentReplies::new(config.recent_replies),
        }
    }

    /// Counts in the counts of the process.
    pub(super) fn count_in(&mut self, watched: &Arc<AuditCounts>) {
        self.watched = Arc::clone(watched);
    }
}

/// Returns the number of the audit, and the part of it that a request is.
pub(super) fn place_of(id: u64) -> (u64, usize) {
    ((id & !MARK) >> 1, (id & 1) as usize)
}

/// Returns the seed of an ingress's choices: the FNV-1a hash of its id.
fn seed_of(ingress: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    ingress.bytes().fold(0xcbf2_9ce4_8422_2325, hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_audits_are_no_numbers_of_requests() {
        assert!(!is_audit(0) && !is_audit(u64::MAX >> 1));
        let id = MARK | (7 << 1) | 1;
        assert!(is_audit(id));
        assert_eq!(place_of(id), (7, PROBE));
    }
}
