//! A section of the report: it fails alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use crate::device::panic_message;

/// A part of the report.
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
    /// Whether it failed.
    pub fn failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// The result, if it ran.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(result) => Some(result),
            Self::Failed(_) | Self::Skipped(_) => None,
        }
    }
}

/// Runs a section; an error or a panic becomes its failure.
pub(super) fn guarded<T>(section: impl FnOnce() -> Result<T, String>) -> Section<T> {
    // A panic leaves only state of the back end inconsistent, which it reports at the next call.
    match catch_unwind(AssertUnwindSafe(section)) {
        Ok(Ok(result)) => Section::Done(result),
        Ok(Err(reason)) => Section::Failed(reason),
        Err(payload) => Section::Failed(format!("it panicked: {}", panic_message(payload.as_ref()))),
    }
}
