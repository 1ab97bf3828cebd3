//! What is demanded of a run, and what it showed.

use std::time::Duration;

use super::oracle::Tally;

/// A run, judged.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) figures: Option<Figures>,
    /// What else was seen.
    pub(super) notes: Vec<String>,
    /// Promises that did not hold.
    pub(super) broken: Vec<String>,
}

/// The figures of a run.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    pub(super) requests: usize,
    pub(super) answered: usize,
    /// Typed errors, by code.
    pub(super) faults: String,
    pub(super) lost: usize,
    pub(super) doubled: usize,
    pub(super) late: usize,
    pub(super) recovery: Option<Duration>,
}

impl Verdict {
    /// A run that must not have lost, doubled or delayed anything.
    pub(super) fn of(tally: &Tally) -> Self {
        Self::seen(tally)
            .demand(tally.lost() == 0, "every request gets a reply")
            .demand(tally.doubled() == 0, "no request gets two")
            .demand(tally.late() == 0, "every reply comes within its budget")
    }

    /// A run of which nothing is demanded yet.
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

    /// A run that never came to figures.
    pub(super) fn broken(why: String) -> Self {
        Self {
            broken: vec![why],
            ..Self::default()
        }
    }

    pub(super) fn demand(mut self, holds: bool, promise: &str) -> Self {
        if !holds {
            self.broken.push(promise.to_owned());
        }
        self
    }

    /// Nobody may have got an error.
    pub(super) fn without_faults(self) -> Self {
        let none = self
            .figures
            .as_ref()
            .is_some_and(|figures| figures.faults.is_empty());
        self.demand(none, "no request fails")
    }

    /// Only these errors may have been given.
    pub(super) fn only(self, tally: &Tally, codes: &[&str]) -> Self {
        let only = tally.faults().keys().all(|code| codes.contains(code));
        self.demand(only, &format!("no errors but {}", codes.join(", ")))
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
