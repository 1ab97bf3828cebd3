//! Monitors the certificates of the running plan for the shifter. The policy is
//! [`kaskade_policy::certificate_monitor`].
//!
//! Every ingress process counts its audits, labels and stage results, and publishes the counts every second. The
//! shifter of every process sums what it receives, so that any of them can become the leader. The leader decides, and
//! publishes the limit with its counts.

use std::sync::Arc;

use kaskade_policy::certificate_monitor::{CertificateMonitor, Counts, Evidence, Finding, MonitorConfig};
use kaskade_policy::plan::Plan;

use crate::{
    audit_counts::AuditCounts,
    dispatch::dispatcher::Dispatcher,
    metrics::Metrics,
    metrics::certificates::FindingKind,
    plan::versions::PlanVersion,
    subjects::event::{AUDIT, CERTIFICATE, CERTIFICATE_STATUS},
    wire::{AuditReport, CertificateFinding, CertificateNotice, CertificateReport},
};

/// Certificate monitor of the running plan.
pub(super) struct Certificates {
    ingress: String,
    audit_counts: Arc<AuditCounts>,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    epoch: u64,
    monitor: Option<CertificateMonitor>,
}

impl Certificates {
    pub(super) fn new(
        ingress: &str,
        audit_counts: Arc<AuditCounts>,
        dispatcher: Dispatcher,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            ingress: ingress.to_owned(),
            audit_counts,
            dispatcher,
            metrics,
            epoch: 0,
            monitor: None,
        }
    }

    /// Starts to monitor another plan. Certificates refuted before on the same samples stay refuted.
    pub(super) fn adopt(&mut self, version: &PlanVersion) {
        self.epoch = version.epoch;
        let config = MonitorConfig::default();
        let before = self.monitor.take();
        let list = version.plan.certified.as_ref();
        self.monitor = list.map(|list| match &before {
            Some(before) => CertificateMonitor::succeeding(list, config, before),
            None => CertificateMonitor::new(list, config),
        });
        self.metrics.certificates(|metrics| metrics.reported(None));
    }

    /// Returns whether the running plan has certificates.
    pub(super) fn is_watching(&self) -> bool {
        self.monitor.is_some()
    }

    /// Returns the gear to run instead of `gear` under the monitor's limit.
    pub(super) fn clamp_gear(&self, plan: &Plan, gear: u32) -> u32 {
        match &self.monitor {
            Some(monitor) => plan.clamp_gear(gear, monitor.limit()),
            None => gear,
        }
    }

    /// Adds the counts of another process. Only a limit published by the leader is adopted, and not by the leader
    /// itself.
    pub(super) fn record(&mut self, report: &AuditReport, version: &PlanVersion, leads: bool) {
        if report.epoch != self.epoch || report.ingress == self.ingress {
            return;
        }
        self.take(&report.counts, version, leads);
        if let (Some(limit), Some(monitor), false) = (report.limit, &mut self.monitor, leads) {
            monitor.follow(limit as usize, &report.refuted_by_labels);
            self.audit_counts.set_elevated(monitor.elevates_audits());
        }
    }

    /// Adds and publishes the counts of this process; the leader also publishes the state of the certificates. Call it
    /// once per second.
    pub(super) fn tick(&mut self, version: &PlanVersion, leads: bool) {
        if self.monitor.is_none() {
            return;
        }
        let (epoch, counts) = self.audit_counts.take();
        let counts = if epoch == self.epoch {
            counts
        } else {
            Counts::default()
        };
        self.take(&counts, version, leads);
        let leading = self.monitor.as_ref().filter(|_| leads);
        let limit = leading.map(|monitor| monitor.limit() as u32);
        let refuted_by_labels = leading.map(CertificateMonitor::refuted_by_labels);
        let refuted_by_labels = refuted_by_labels.unwrap_or_default();
        if limit.is_some() || !counts.is_empty() {
            self.publish(
                AUDIT,
                &AuditReport {
                    ingress: self.ingress.clone(),
                    epoch: self.epoch,
                    counts,
                    limit,
                    refuted_by_labels,
                },
            );
        }
        let report = limit.and_then(|limit| {
            let statuses = self.monitor.as_ref()?.statuses();
            Some(CertificateReport {
                epoch: self.epoch,
                limit,
                cascades: statuses.into_iter().map(Into::into).collect(),
            })
        });
        if let Some(report) = &report {
            self.publish(CERTIFICATE_STATUS, report);
        }
        self.metrics
            .certificates(|metrics| metrics.reported(report.clone()));
    }

    fn take(&mut self, counts: &Counts, version: &PlanVersion, leads: bool) {
        let Some(monitor) = &mut self.monitor else { return };
        // Only the leader decides; the others observe, so that they can take over.
        let findings = if leads {
            monitor.take(counts)
        } else {
            monitor.observe(counts);
            Vec::new()
        };
        self.audit_counts.set_elevated(monitor.elevates_audits());
        for finding in findings {
            self.publish_finding(&finding, version);
        }
    }

    fn publish_finding(&self, finding: &Finding, version: &PlanVersion) {
        let epoch = self.epoch;
        let (kind, found) = match *finding {
            Finding::Safer { from, to, evidence } => {
                let by = match evidence {
                    Evidence::Audits => "audits",
                    Evidence::Labels => "labels",
                };
                tracing::warn!(
                    epoch,
                    from,
                    to,
                    by,
                    "a certificate no longer holds; a safer cascade runs"
                );
                let found = CertificateFinding::Refuted {
                    from: from as u32,
                    to: to as u32,
                    by: by.to_owned(),
                };
                (Some(FindingKind::Refuted), found)
            }
            Finding::Cheaper { from, to } => {
                tracing::info!(
                    epoch,
                    from,
                    to,
                    "a certificate holds again; a cheaper cascade runs"
                );
                let found = CertificateFinding::Restored {
                    from: from as u32,
                    to: to as u32,
                };
                (Some(FindingKind::Restored), found)
            }
            Finding::InputsDrifted { cascade, stage } => {
                let stage = stage_name(&version.plan, cascade, stage);
                tracing::warn!(
                    epoch,
                    cascade,
                    stage,
                    "the inputs have drifted: a stage defers or is confident otherwise than on the certification samples"
                );
                let found = CertificateFinding::InputsDrifted {
                    cascade: cascade as u32,
                    stage,
                };
                (Some(FindingKind::InputsDrifted), found)
            }
            Finding::Settled { cascade } => {
                tracing::info!(epoch, cascade, "no further drift of the inputs was found");
                let cascade = cascade as u32;
                (None, CertificateFinding::Settled { cascade })
            }
        };
        if let Some(kind) = kind {
            self.metrics.certificates(|metrics| metrics.found(kind));
        }
        self.publish(CERTIFICATE, &CertificateNotice { epoch, found });
    }

    fn publish(&self, name: &str, event: &impl crate::wire::Message) {
        if let (Ok(subject), Ok(payload)) = (self.dispatcher.app().event(name), event.encode()) {
            self.dispatcher.publish_control(subject, payload);
        }
    }
}

fn stage_name(plan: &Plan, cascade: usize, stage: usize) -> String {
    let list = plan.certified.as_ref();
    let cascade = list.and_then(|list| list.cascades.get(cascade));
    let stage = cascade.and_then(|cascade| cascade.stages.get(stage));
    stage.map_or_else(String::new, |stage| stage.stage.clone())
}
