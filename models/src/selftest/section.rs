//! Sections of the report, which fail independently.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use crate::device::panic_message;

/// Outcome of a section of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section<T> {
    /// The section ran.
    Done(T),
    /// The section failed with this error or panic.
    Failed(String),
    /// The section does not apply, for this reason.
    Skipped(String),
}

impl<T> Section<T> {
    /// Returns whether the section failed.
    pub fn failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// Returns the result, if the section ran.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(result) => Some(result),
            Self::Failed(_) | Self::Skipped(_) => None,
        }
    }
}

/// Runs a section; converts an error or a panic to [`Section::Failed`].
pub(super) fn guarded<T>(section: impl FnOnce() -> Result<T, String>) -> Section<T> {
    // A panic can leave only the back end's state inconsistent, which the back end reports at the next call.
    match catch_unwind(AssertUnwindSafe(section)) {
        Ok(Ok(result)) => Section::Done(result),
        Ok(Err(reason)) => Section::Failed(reason),
        Err(payload) => Section::Failed(format!("it panicked: {}", panic_message(payload.as_ref()))),
    }
}
