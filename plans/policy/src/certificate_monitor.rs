//! Whether live inputs still are what a plan's certificates were proven on, and which cascade to run if not.
//!
//! A certificate holds for inputs like those that it was proven on. Three streams say whether live ones are alike:
//!
//! - **Stages.** How often each stage defers, and how confident its answers are, against the counts in the plan. Every request counts,
//!   so a change is found soon. It shows a change of the inputs, not a loss of accuracy: it raises the share of audits and is reported.
//! - **Audits.** A random share of requests is also answered by the largest variant. How often the cascade's answer differs bounds its
//!   loss of accuracy from above; the plan states how often it differed on the certification samples.
//! - **Labels** that arrive later. For an audited request they give the exact paired loss, for any other whether the answer was right.
//!
//! If audits or labels refute the certificate of a cascade, the monitor moves to the next safer one of the certified list. There, a share
//! of requests also runs the next cheaper cascade as a *probe*; when probes show that its certificate holds again, the monitor moves
//! back. Probes have no labels. A cascade that labels refuted is therefore restored only if probes show that it differs no more often
//! than it may lose, which bounds its loss; if that bounds none (a least accuracy, texts compared by a metric), probes do not restore
//! it. Each test is valid at every moment ([`MeanTest`]), and the level of each repetition falls. For requests that are independent of
//! each other, all false alarms by audits and labels over the life of a plan together have probability at most `alpha`, the error of the
//! profiled share of differing answers included, and so have all false returns. For drifts that holds if the profiled rates lie in their
//! ranges, each end of which misses a rate with probability at most 0.001. Requests that resemble each other (of one user, frames of a
//! video) are no independent evidence: the monitor divides it by the design effect that it measures, for which no bound is proven.
//!
//! | module | holds |
//! |---|---|
//! | `mean_test` | tests and confidence sequences by betting |
//! | `design_effect` | how much requests that follow each other resemble each other |
//! | `sample_test` | tests on audits, probes and labels, of requests that resemble each other |
//! | `profiled_rate` | the range of a rate that a profile leaves open |
//! | `counts` | what ingresses count and report |
//! | `cascade` | the tests of one cascade of the list |
//! | `finding` | what a monitor reports |
//! | `comparison` | answers as audits and labels compare them |
//! | `audit_sampler` | the choice of the requests to audit |
//! | `sampling` | which requests are audited, and what an audit asks |
//! | `labels` | recent replies, to which labels that arrive later belong |

mod audit_sampler;
mod cascade;
mod comparison;
mod counts;
mod design_effect;
mod finding;
mod labels;
mod mean_test;
mod profiled_rate;
mod sample_test;
mod sampling;

use crate::plan::CertifiedList;
use cascade::CascadeMonitor;
use sample_test::Traffic;

pub use audit_sampler::BernoulliSampler;
pub use comparison::{Class, ComparedAnswer};
pub use counts::{AuditCounts, CascadeCounts, Counts, LabelCounts, MAX_CATEGORIES, MAX_STAGES};
pub use finding::{CascadeStatus, Evidence, Finding};
pub use labels::{RecentReplies, RecentReply};
pub use mean_test::{MeanTest, WeightedValue, mean_interval};
pub use sampling::{Audit, AuditCapacity, AuditSettings, Sampler};

/// Error probabilities of a monitor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MonitorConfig {
    /// Probability of any false alarm of one kind over the life of a plan, and of any false return.
    pub alpha: f64,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self { alpha: 0.05 }
    }
}

/// Watches the cascades of a certified list.
#[derive(Debug, Clone)]
pub struct CertificateMonitor {
    cascades: Vec<CascadeMonitor>,
    /// Fingerprint of the certification samples, if the list has one.
    samples: Option<String>,
    /// The last index of the list that may run.
    limit: usize,
}

impl CertificateMonitor {
    /// Creates the monitor of a list, which was validated with its plan. Every cascade may run.
    pub fn new(list: &CertifiedList, config: MonitorConfig) -> Self {
        // Every cascade gets its part of the probability.
        let alpha = config.alpha / list.cascades.len().max(1) as f64;
        let cascades = list.cascades.iter().enumerate();
        // Texts that a metric accepts for each other may differ in whether they are right.
        let bounds_loss = list.texts.is_none();
        let cascades =
            cascades.map(|(index, cascade)| CascadeMonitor::new(cascade, index == 0, bounds_loss, alpha));
        Self {
            cascades: cascades.collect(),
            samples: list.samples.clone(),
            limit: list.cascades.len().saturating_sub(1),
        }
    }

    /// Creates the monitor of a list that replaces the one of `before`.
    ///
    /// If both lists are certified on the same samples, tests of the same cascades continue, and what was refuted stays refuted: only
    /// cascades that might run before may run now, at least the largest variant alone, until probes restore the next one.
    pub fn succeeding(list: &CertifiedList, config: MonitorConfig, before: &Self) -> Self {
        let mut monitor = Self::new(list, config);
        let is_on_same_samples = monitor.is_on_samples_of(before);
        if is_on_same_samples {
            for new in &mut monitor.cascades {
                if let Some(old) = before.cascades.iter().find(|old| new.is_alike(old)) {
                    new.continue_tests_of(old);
                }
            }
        }
        let mut pairs = monitor.cascades.iter().zip(&before.cascades);
        if before.limit < before.cheapest() && is_on_same_samples {
            let alike = pairs.position(|(new, old)| !new.is_alike(old));
            let alike = alike.unwrap_or_else(|| monitor.cascades.len().min(before.cascades.len()));
            monitor.limit = before.limit.min(alike.saturating_sub(1));
            let old = before.cascades.iter().skip(before.limit + 1);
            let by_labels = old.clone().any(|old| old.refuted_by() == Some(Evidence::Labels));
            for new in monitor.cascades.iter_mut().skip(monitor.limit + 1) {
                let same = old.clone().find(|old| new.is_alike(old));
                // What labels refuted may be as bad in another wiring.
                let unknown = by_labels.then_some(Evidence::Labels);
                new.set_refuted_by(same.map_or(unknown, CascadeMonitor::refuted_by));
            }
        }
        for may_run in monitor.cascades.iter_mut().take(monitor.limit + 1) {
            may_run.set_refuted_by(None);
        }
        monitor
    }

    /// Returns whether both lists are proven on the same samples: by their fingerprints, or by their counts if one has no fingerprint.
    fn is_on_samples_of(&self, other: &Self) -> bool {
        if let (Some(samples), Some(others)) = (&self.samples, &other.samples) {
            return samples == others;
        }
        let mut pairs = self.cascades.iter().zip(&other.cascades);
        pairs
            .next()
            .is_some_and(|(first, others)| first.has_sample_counts_of(others))
    }

    /// Returns the last index of the list that may run.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the index of the cheapest cascade.
    pub fn cheapest(&self) -> usize {
        self.cascades.len().saturating_sub(1)
    }

    /// Follows a limit that another process decided on, and which of the indices beyond it labels refuted.
    pub fn follow(&mut self, limit: usize, by_labels: &[u32]) {
        let limit = limit.min(self.cheapest());
        if limit != self.limit {
            self.limit = limit;
            self.restart_from(limit);
        }
        for (index, cascade) in (0_u32..).zip(&mut self.cascades) {
            let evidence = if by_labels.contains(&index) {
                Evidence::Labels
            } else {
                Evidence::Audits
            };
            cascade.set_refuted_by((index as usize > limit).then_some(evidence));
        }
    }

    /// Returns the indices beyond the limit that labels refuted.
    pub fn refuted_by_labels(&self) -> Vec<u32> {
        let indices = (0_u32..).zip(&self.cascades);
        let by_labels = indices.filter(|(_, cascade)| cascade.refuted_by() == Some(Evidence::Labels));
        by_labels.map(|(index, _)| index).collect()
    }

    /// Returns whether some certificate does not hold, or the inputs of a cascade have changed: audits are then more frequent.
    pub fn elevates_audits(&self) -> bool {
        self.limit < self.cheapest() || self.cascades.iter().any(CascadeMonitor::inputs_drifted)
    }

    /// Takes what was counted since the last call, and decides. The moment of the call must not depend on the counts.
    pub fn take(&mut self, counts: &Counts) -> Vec<Finding> {
        let mut findings = self.observe(counts);
        findings.extend(self.decide());
        findings
    }

    /// Takes what was counted, and leaves the decision to another process, or to a later call. Returns drifts of the inputs.
    pub fn observe(&mut self, counts: &Counts) -> Vec<Finding> {
        // Before the stages take the batch: a design effect must not depend on what it divides.
        let pairs = self.cascades.iter().zip(&counts.cascades);
        let traffic: Vec<Traffic> = pairs.map(|(cascade, counts)| cascade.traffic(counts)).collect();
        let running = traffic.get(self.limit).copied();
        let mut findings = Vec::new();
        let taken = self.cascades.iter_mut().zip(&counts.cascades).zip(traffic);
        for (index, ((cascade, counts), own)) in taken.enumerate() {
            cascade.audits(counts, own, running.unwrap_or(own));
            findings.extend(cascade.stages(counts).map(|change| change.finding(index)));
        }
        findings
    }

    /// Moves along the list if a certificate is refuted or holds again.
    fn decide(&mut self) -> Option<Finding> {
        if let Some((from, evidence)) = self.refuted() {
            for cascade in self.cascades.iter_mut().take(self.limit + 1).skip(from) {
                cascade.set_refuted_by(Some(evidence));
            }
            self.limit = from.saturating_sub(1);
            self.restart_from(self.limit);
            let to = self.limit;
            return Some(Finding::Safer { from, to, evidence });
        }
        if let Some(next) = self.cascades.get_mut(self.limit + 1)
            && next.is_restored()
        {
            next.set_refuted_by(None);
            let from = self.limit;
            self.limit += 1;
            self.restart_from(self.limit);
            return Some(Finding::Cheaper { from, to: self.limit });
        }
        None
    }

    /// Returns the safest cascade that may run and whose certificate is refuted.
    fn refuted(&self) -> Option<(usize, Evidence)> {
        let mut running = self.cascades.iter().enumerate().take(self.limit + 1).skip(1);
        running.find_map(|(index, cascade)| Some((index, cascade.is_refuted()?)))
    }

    /// Restarts the tests of the cascade at that index, which begins to run, and of those after it, which no longer do.
    fn restart_from(&mut self, index: usize) {
        for cascade in self.cascades.iter_mut().skip(index) {
            cascade.restart();
        }
    }

    /// Returns what is known of each cascade of the list.
    pub fn statuses(&self) -> Vec<CascadeStatus> {
        self.cascades.iter().map(CascadeMonitor::status).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
