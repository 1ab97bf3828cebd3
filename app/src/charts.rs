//! Pictures as SVG, in colours that suit light and dark pages.

pub mod deployment;
pub mod drawing;
pub mod graph;
pub mod panels;

use thiserror::Error;

/// A picture cannot be drawn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChartError {
    /// It has no data.
    #[error("the {what} `{title}` has no {missing} to draw")]
    Empty {
        /// What kind of picture it is.
        what: &'static str,
        /// Its title.
        title: String,
        /// The missing data.
        missing: &'static str,
    },
    /// A graph has no point that can be drawn.
    #[error("the accuracy-energy graph has no point whose cost is known and above zero")]
    NoCost,
    /// The back end refuses.
    #[error("the {what} cannot be drawn: {reason}")]
    Backend {
        /// What kind of picture it is.
        what: &'static str,
        /// The back end's message.
        reason: String,
    },
}

impl ChartError {
    /// Wraps an error of the back end; `what` names the kind of picture.
    pub fn backend(what: &'static str) -> impl FnOnce(Box<dyn std::error::Error>) -> Self {
        move |error| Self::Backend {
            what,
            reason: error.to_string(),
        }
    }
}
