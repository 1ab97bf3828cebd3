//! Audits: a share of the requests is also answered by the largest variant, after the client has received its reply.
//!
//! An audit is not a client's request: it has no ledger entry, holds no permit, is sent once without retries, and its
//! answers are only counted. Its stage requests have separate numbers, so that none of their results can end a client's
//! request. The policy [`kaskade_policy::certificate_monitor`] selects the requests to audit and the variants to ask.
//! This file holds the state; `dispatch` sends and counts.

mod dispatch;

use std::collections::BTreeMap;
use std::sync::Arc;

use kaskade_policy::certificate_monitor::{Audit, ComparedAnswer, RecentReplies, RecentReply, Sampler};
use kaskade_policy::fnv::fnv1a;

use super::class_names::ClassNames;
use super::config::IngressConfig;
use super::inputs::RetainedInputs;
use super::label_comparison::parse_label;
use crate::{
    audit_counts::AuditCounts,
    plan::versions::PlanVersion,
    wire::{Feedback, FeedbackLabel, FeedbackReply},
};

/// Bit that marks the number of an audit's request. The ledger counts from 1 and never reaches it.
pub(super) const MARK: u64 = 1 << 63;

/// Returns whether the number is that of an audit's request.
pub(super) fn is_audit(id: u64) -> bool {
    id & MARK != 0
}

/// The audits of an ingress.
pub(super) struct Audits {
    pub(super) audit_counts: Arc<AuditCounts>,
    pub(super) sampler: Sampler,
    pub(super) open: BTreeMap<u64, Open>,
    next: u64,
    pub(super) recent: RecentReplies,
    /// Labels that arrived before their audit ended, with the replies they refer to, by audit number.
    labelled: BTreeMap<u64, (RecentReply, FeedbackLabel)>,
    class_names: ClassNames,
}

/// An audit in progress.
pub(super) struct Open {
    pub(super) audit: Audit,
    pub(super) version: Arc<PlanVersion>,
    pub(super) inputs: RetainedInputs,
    /// The request id that the client gave.
    pub(super) client: Option<String>,
    pub(super) live: ComparedAnswer,
    pub(super) deadline: u64,
    /// Runs of the audit: the largest variant's and the probe's.
    pub(super) parts: [Part; 2],
}

/// The run of one gear in an audit.
#[derive(Default)]
pub(super) struct Part {
    pub(super) gear: u32,
    pub(super) waits: bool,
    /// The stage asked last.
    pub(super) stage: String,
    pub(super) dispatches: u32,
    pub(super) answer: Option<ComparedAnswer>,
}

/// An audit that begins once the client has its reply.
pub(super) struct Chosen {
    pub(super) number: u64,
    pub(super) audit: Audit,
    pub(super) version: Arc<PlanVersion>,
    pub(super) inputs: RetainedInputs,
    pub(super) client: Option<String>,
    pub(super) live: ComparedAnswer,
}

pub(super) const LARGEST: usize = 0;
pub(super) const PROBE: usize = 1;

impl Audits {
    pub(super) fn new(ingress: &str, config: &IngressConfig) -> Self {
        Self {
            audit_counts: Arc::default(),
            sampler: Sampler::new(config.audit, fnv1a(ingress.bytes())),
            open: BTreeMap::new(),
            next: 0,
            recent: RecentReplies::new(config.recent_replies),
            labelled: BTreeMap::new(),
            class_names: ClassNames::default(),
        }
    }

    /// Returns the number of the next audit.
    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Counts a label and returns the reply to its sender; `None` if no reply with that id is remembered. While the
    /// audit of the request is open, the label waits: counted immediately, it could not show a loss against the largest
    /// variant, and the counts would be biased.
    pub(super) fn label(&mut self, feedback: Feedback) -> Option<FeedbackReply> {
        let Feedback { id, label } = feedback;
        let recent = self.recent.get(&id)?;
        let mut feedback_reply = FeedbackReply {
            variant: recent.variant.clone(),
            audited: recent.largest.is_some() || recent.audit.is_some(),
            ..FeedbackReply::default()
        };
        match parse_label(&label, recent, &self.class_names) {
            Ok(right) => {
                feedback_reply.right = right.answer.accepts(&recent.answer);
                feedback_reply.unchecked = right.is_unchecked;
                if let Some(reply) = self.recent.take(&id) {
                    match reply.audit {
                        Some(audit) => {
                            self.labelled.insert(audit, (reply, label));
                        }
                        None => self.count_label(&reply, &right.answer),
                    }
                }
            }
            Err(reason) => feedback_reply.refused = Some(reason),
        }
        feedback_reply.id = id;
        Some(feedback_reply)
    }

    /// Adds the largest variant's answer to the reply whose audit has ended, and counts a label that waited for it. If
    /// the audit failed, the label only tells whether the answer was right.
    fn labels_of(&mut self, id: &str, audit: u64, largest: Option<ComparedAnswer>) {
        match self.labelled.remove(&audit) {
            Some((mut reply, label)) => {
                reply.audited(largest);
                // The label was comparable when it arrived.
                if let Ok(right) = parse_label(&label, &reply, &self.class_names) {
                    self.count_label(&reply, &right.answer);
                }
            }
            None => self.recent.audited(id, audit, largest),
        }
    }

    fn count_label(&self, reply: &RecentReply, right: &ComparedAnswer) {
        self.audit_counts.count(reply.epoch, |counts| {
            if let Some(counts) = counts.at(reply.index) {
                counts.labels.add(&reply.label_counts(right));
            }
        });
    }

    /// Sets the class names used to compare labels.
    pub(super) fn name_by(&mut self, names: &ClassNames) {
        self.class_names = names.clone();
    }

    /// Sets the counts to add to.
    pub(super) fn count_in(&mut self, audit_counts: &Arc<AuditCounts>) {
        self.audit_counts = Arc::clone(audit_counts);
    }
}

/// Returns the number of the audit and the index of its run, from the number of a request.
pub(super) fn audit_part(id: u64) -> (u64, usize) {
    ((id & !MARK) >> 1, (id & 1) as usize)
}

#[cfg(test)]
mod tests {
    use kaskade_policy::certificate_monitor::LabelCounts;

    use super::*;

    /// Counts a label that arrives while the audit of its reply is open; `large` is the largest variant's answer.
    fn labelled_early(largest: Option<ComparedAnswer>) -> LabelCounts {
        let class = |number, name| ComparedAnswer::class(number, 3, Some(name));
        let mut audits = Audits::new("a", &IngressConfig::default());
        let audit = audits.number();
        let reply = RecentReply {
            epoch: 1,
            index: 1,
            variant: "small".to_owned(),
            answer: class(1, "small"),
            largest: None,
            audit: Some(audit),
        };
        audits.recent.keep("r1", reply);
        let feedback = || Feedback {
            id: "r1".to_owned(),
            label: FeedbackLabel::Text("large".to_owned()),
        };
        let feedback_reply = audits.label(feedback()).unwrap();
        assert!(
            !feedback_reply.right && feedback_reply.audited && feedback_reply.refused.is_none(),
            "{feedback_reply:?}"
        );
        assert!(audits.audit_counts.take().1.is_empty(), "it waits for the audit");
        assert_eq!(audits.label(feedback()), None, "a label counts once");
        audits.labels_of("r1", audit, largest);
        let (_, counts) = audits.audit_counts.take();
        audits.labels_of("r1", audit, None);
        assert!(audits.audit_counts.take().1.is_empty() && audits.labelled.is_empty());
        counts.cascades[1].labels
    }

    /// Regression: labels of audited requests were paired only if the largest variant itself had answered, so no loss
    /// was counted.
    #[test]
    fn a_label_that_arrives_before_its_audit_has_ended_tells_the_loss() {
        let unpaired = LabelCounts {
            wrong: 1,
            ..LabelCounts::default()
        };
        let lost = LabelCounts { lost: 1, ..unpaired };
        assert_eq!(
            labelled_early(Some(ComparedAnswer::class(2, 3, Some("large")))),
            lost
        );
        assert_eq!(labelled_early(None), unpaired, "the audit failed");
    }

    #[test]
    fn numbers_of_audits_are_no_numbers_of_requests() {
        assert!(!is_audit(0) && !is_audit(u64::MAX >> 1));
        let id = MARK | (7 << 1) | 1;
        assert!(is_audit(id));
        assert_eq!(audit_part(id), (7, PROBE));
    }
}
