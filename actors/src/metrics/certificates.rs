//! Metrics of audits, labels and certificates.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::wire::CertificateReport;

/// Audits, by outcome: the cascade's answer agreed with the largest variant's, differed, or the audit failed.
pub const AUDITS: &str = "kaskade_audits_total";
/// Delayed labels, by whether the answer was right.
pub const LABELS: &str = "kaskade_labels_total";
/// Findings of the certificate monitor, by kind.
pub const CERTIFICATE_FINDINGS: &str = "kaskade_certificate_findings_total";
/// Last index of the certified list that may run; 0 is the largest variant alone. Exported by the leader.
pub const CERTIFIED_INDEX: &str = "kaskade_certified_index";
/// Bounds of the interval for the share of live answers that differ from the largest variant's, for the cascade at that
/// index.
pub const LIVE_DIFFERENCE: &str = "kaskade_live_difference_ratio";
/// Bounds of the interval for the live loss of accuracy by labels, for the cascade at that index.
pub const LIVE_LOSS: &str = "kaskade_live_loss_ratio";

/// Counters of audits, labels and findings.
#[derive(Debug, Default)]
pub(crate) struct CertificateMetrics {
    agree: AtomicU64,
    differ: AtomicU64,
    failed: AtomicU64,
    right: AtomicU64,
    wrong: AtomicU64,
    refuted: AtomicU64,
    restored: AtomicU64,
    inputs_drifted: AtomicU64,
    report: Mutex<Option<CertificateReport>>,
}

/// A kind of finding.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FindingKind {
    Refuted,
    Restored,
    InputsDrifted,
}

impl CertificateMetrics {
    /// Counts an audit by whether the two answers agree; `None` if one is missing.
    pub(crate) fn audited(&self, agrees: Option<bool>) {
        let counter = match agrees {
            Some(true) => &self.agree,
            Some(false) => &self.differ,
            None => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn labelled(&self, right: bool) {
        let counter = if right { &self.right } else { &self.wrong };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn found(&self, kind: FindingKind) {
        let counter = match kind {
            FindingKind::Refuted => &self.refuted,
            FindingKind::Restored => &self.restored,
            FindingKind::InputsDrifted => &self.inputs_drifted,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Sets the state of the certificates; `None` in a process that does not lead.
    pub(crate) fn reported(&self, report: Option<CertificateReport>) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Returns the metrics with their samples; unknown values have none.
    pub(super) fn families(&self) -> Vec<Family> {
        let count = |counter: &AtomicU64| counter.load(Relaxed).to_string();
        let by = |label: &'static str, values: &[(&str, &AtomicU64)]| {
            let values = values.iter();
            let sample = values.map(|(value, counter)| (vec![(label, (*value).to_owned())], count(counter)));
            sample.collect::<Vec<_>>()
        };
        let mut families = vec![
            Family {
                name: AUDITS,
                is_counter: true,
                help: "Requests of clients that the largest variant answered too, after the reply, by whether the answers agree.",
                samples: by(
                    "outcome",
                    &[
                        ("agree", &self.agree),
                        ("differ", &self.differ),
                        ("failed", &self.failed),
                    ],
                ),
            },
            Family {
                name: LABELS,
                is_counter: true,
                help: "Labels that arrived after the reply, by whether the answer was right.",
                samples: by("answer", &[("right", &self.right), ("wrong", &self.wrong)]),
            },
            Family {
                name: CERTIFICATE_FINDINGS,
                is_counter: true,
                help: "Certificates that no longer hold or hold again, and drifts of inputs, found by this process while it led.",
                samples: by(
                    "finding",
                    &[
                        ("refuted", &self.refuted),
                        ("restored", &self.restored),
                        ("inputs_drifted", &self.inputs_drifted),
                    ],
                ),
            },
        ];
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = report.as_ref().map(|report| report.limit);
        families.push(Family {
            name: CERTIFIED_INDEX,
            is_counter: false,
            help: "Last place of the certified list that may run; 0 is the largest variant alone.",
            samples: limit.map_or_else(Vec::new, |limit| vec![(Vec::new(), limit.to_string())]),
        });
        let running = report.as_ref();
        let running = running.and_then(|report| report.cascades.get(report.limit as usize));
        let bounds = |interval: [f64; 2]| {
            let bounds = ["lower", "upper"].into_iter().zip(interval);
            bounds
                .map(|(bound, value)| (vec![("bound", bound.to_owned())], value.to_string()))
                .collect::<Vec<_>>()
        };
        families.push(Family {
            name: LIVE_DIFFERENCE,
            is_counter: false,
            help: "Interval, with 95 % confidence at every moment, of the share of live answers that differ from the largest variant's.",
            samples: running
                .filter(|running| running.audited > 0)
                .map_or_else(Vec::new, |running| bounds(running.differs)),
        });
        families.push(Family {
            name: LIVE_LOSS,
            is_counter: false,
            help: "Interval, with 95 % confidence at every moment, of the live loss of accuracy by labels.",
            samples: running
                .filter(|running| running.labelled > 0)
                .map_or_else(Vec::new, |running| bounds(running.loss)),
        });
        families
    }
}

/// A metric with its samples.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) is_counter: bool,
    pub(super) help: &'static str,
    pub(super) samples: Vec<(Vec<(&'static str, String)>, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::CascadeStatus;

    #[test]
    fn unknown_values_are_left_out() {
        let metrics = CertificateMetrics::default();
        metrics.audited(Some(true));
        metrics.audited(Some(false));
        metrics.audited(None);
        let unknown = metrics.families();
        assert_eq!(
            unknown.iter().filter(|family| family.samples.is_empty()).count(),
            3
        );
        let status = CascadeStatus {
            audited: 5,
            differs: [0.1, 0.4],
            ..CascadeStatus::default()
        };
        metrics.reported(Some(CertificateReport {
            epoch: 1,
            limit: 0,
            cascades: vec![status],
        }));
        let families = metrics.families();
        let samples = |name: &str| {
            let family = families.iter().find(|family| family.name == name);
            family.map_or(0, |family| family.samples.len())
        };
        assert_eq!((samples(LIVE_DIFFERENCE), samples(LIVE_LOSS)), (2, 0));
        assert_eq!(families[0].samples[0].1, "1");
    }
}
