//! Charts as SVG, in colours that suit light and dark pages.

pub mod deployment;
pub mod drawing;
pub mod graph;
pub mod panels;

use thiserror::Error;

/// Error of drawing a chart.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChartError {
    /// The chart has no data.
    #[error("the {what} `{title}` has no {missing} to draw")]
    Empty {
        /// Kind of chart.
        what: &'static str,
        /// Title of the chart.
        title: String,
        /// The missing data.
        missing: &'static str,
    },
    /// A graph has no point that can be drawn.
    #[error("the accuracy-energy graph has no point whose cost is known and above zero")]
    NoCost,
    /// The drawing back end failed.
    #[error("the {what} cannot be drawn: {reason}")]
    Backend {
        /// Kind of chart.
        what: &'static str,
        /// Message of the back end.
        reason: String,
    },
}

impl ChartError {
    /// Converts an error of the back end; `what` is the kind of chart.
    pub fn backend(what: &'static str) -> impl FnOnce(Box<dyn std::error::Error>) -> Self {
        move |error| Self::Backend {
            what,
            reason: error.to_string(),
        }
    }
}
