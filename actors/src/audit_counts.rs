//! Per-process counters of audits and exits, read by the shifter.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use kaskade_policy::certificate_monitor::Counts;

/// Counts of one epoch, shared by the ingresses and the shifter of a process.
#[derive(Debug, Default)]
pub(crate) struct AuditCounts {
    counts: Mutex<(u64, Counts)>,
    elevated: AtomicBool,
}

impl AuditCounts {
    /// Adds to the counts of an epoch. The first count of a newer epoch discards those of the older one.
    pub(crate) fn count(&self, epoch: u64, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.0 < epoch {
            *counts = (epoch, Counts::default());
        }
        if counts.0 == epoch {
            add(&mut counts.1);
        }
    }

    /// Returns the epoch and its counts since the last call, and resets the counts.
    pub(crate) fn take(&self) -> (u64, Counts) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = counts.0;
        (epoch, std::mem::take(&mut counts.1))
    }

    /// Returns whether the audit rate is raised.
    pub(crate) fn is_elevated(&self) -> bool {
        self.elevated.load(Relaxed)
    }

    /// Sets whether the audit rate is raised.
    pub(crate) fn set_elevated(&self, elevated: bool) {
        self.elevated.store(elevated, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_belong_to_one_epoch() {
        let audit_counts = AuditCounts::default();
        let audit = |counts: &mut Counts| counts.at(0).unwrap().audits.agree += 1;
        audit_counts.count(2, audit);
        audit_counts.count(1, audit);
        audit_counts.count(2, audit);
        let (epoch, counts) = audit_counts.take();
        assert_eq!((epoch, counts.cascades[0].audits.agree), (2, 2));
        assert!(audit_counts.take().1.is_empty());
        audit_counts.count(2, audit);
        audit_counts.count(3, audit);
        let (epoch, counts) = audit_counts.take();
        assert_eq!((epoch, counts.cascades[0].audits.agree), (3, 1));
    }
}
