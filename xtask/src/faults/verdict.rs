//! The demands on a run, and its figures.

use std::time::Duration;

use super::oracle::Tally;

/// The result of a run.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) figures: Option<Figures>,
    /// Further observations.
    pub(super) notes: Vec<String>,
    /// Broken promises.
    pub(super) broken: Vec<String>,
    /// Why the fault was not run, if something that it needs cannot be had.
    pub(super) skipped: Option<String>,
}

/// The figures of a run.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub(super) requests: usize,
    pub(super) answered: usize,
    /// Typed errors by code.
    pub(super) faults: String,
    pub(super) lost: usize,
    pub(super) doubled: usize,
    pub(super) late: usize,
    pub(super) recovery: Option<Duration>,
}

impl Verdict {
    /// A run in which every request must have exactly one reply within its budget.
    pub(super) fn from_tally(tally: &Tally) -> Self {
        Self::seen(tally)
            .demand(tally.lost() == 0, "every request gets a reply")
            .demand(tally.doubled() == 0, "no request gets two")
            .demand(tally.late() == 0, "every reply comes within its budget")
    }

    /// A run without demands.
    pub(super) fn seen(tally: &Tally) -> Self {
        let faults: Vec<String> = tally
            .faults()
            .iter()
            .map(|(code, count)| format!("{count} {code}"))
            .collect();
        let figures = Figures {
            requests: tally.requests(),
            answered: tally.answered(),
            faults: faults.join(", "),
            lost: tally.lost(),
            doubled: tally.doubled(),
            late: tally.late(),
            recovery: tally.recovery(),
        };
        Self {
            figures: Some(figures),
            ..Self::default()
        }
    }

    /// A run that failed before it had figures.
    pub(super) fn broken(why: String) -> Self {
        Self {
            broken: vec![why],
            ..Self::default()
        }
    }

    /// A fault that could not be run, because something that it needs cannot be had.
    pub(super) fn skipped(why: String) -> Self {
        Self {
            skipped: Some(why),
            ..Self::default()
        }
    }

    pub(super) fn demand(mut self, holds: bool, promise: &str) -> Self {
        if !holds {
            self.broken.push(promise.to_owned());
        }
        self
    }

    /// Demands that no request fails.
    pub(super) fn without_faults(self) -> Self {
        let none = self
            .figures
            .as_ref()
            .is_some_and(|figures| figures.faults.is_empty());
        self.demand(none, "no request fails")
    }

    /// Demands that no other errors than these occur.
    pub(super) fn only(self, tally: &Tally, codes: &[&str]) -> Self {
        let only = tally.faults().keys().all(|code| codes.contains(code));
        self.demand(only, &format!("no errors except {}", codes.join(", ")))
    }

    pub(super) fn recovers_within(self, limit: Duration) -> Self {
        let recovery = self.figures.as_ref().and_then(|figures| figures.recovery);
        self.demand(
            recovery.is_some_and(|recovery| recovery <= limit),
            &format!("recovery within {limit:?}"),
        )
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}
