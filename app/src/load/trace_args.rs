//! Command line flags for a trace, with the feature `clap`.

use std::ops::Range;
use std::path::PathBuf;

use kaskade_simulator::trace::Trace;

use super::trace_file::{Format, TraceFile, TraceFileError};

/// Trace of arrivals, and how it is played.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TraceArgs {
    /// Trace file, plain or compressed by gzip: requests per second (integers separated by spaces), arrival times (in
    /// seconds, one per line), or the Azure LLM trace (CSV).
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Format of the trace file [default: detected].
    #[arg(long, value_enum, value_name = "FORMAT", requires = "trace")]
    trace_format: Option<Format>,
    /// Part of the trace to play, in seconds from its start: `START..END`.
    #[arg(long, value_name = "START..END", requires = "trace", value_parser = part)]
    excerpt: Option<Part>,
    /// Scale the trace so that its busiest second has this number of requests.
    #[arg(long, value_name = "PER_SECOND", requires = "trace", value_parser = positive)]
    peak: Option<f64>,
    /// Remove the seconds without requests.
    #[arg(long, requires = "trace")]
    skip_idle: bool,
}

impl TraceArgs {
    /// Reads the trace, if one is given.
    ///
    /// # Errors
    /// [`TraceFileError`] if the file cannot be read, is not a trace, or is shorter than the given part.
    pub fn read(&self) -> Result<Option<Trace>, TraceFileError> {
        let Some(path) = &self.trace else { return Ok(None) };
        let file = TraceFile {
            path: path.clone(),
            format: self.trace_format,
            excerpt: self.excerpt.as_ref().map(|part| part.0.clone()),
            peak: self.peak,
            skip_idle: self.skip_idle,
        };
        file.read().map(Some)
    }
}

/// Part of a trace, in seconds from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part(Range<usize>);

/// Parses a number above zero.
///
/// # Errors
/// A message if the text is not such a number.
pub fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() && number > 0.0 {
        return Ok(number);
    }
    Err(format!("{number} is not above zero"))
}

fn part(text: &str) -> Result<Part, String> {
    let ends = text.split_once("..");
    let ends = ends.and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
    match ends {
        Some((from, to)) if from < to => Ok(Part(from..to)),
        Some((from, to)) => Err(format!("{from}..{to} is empty; the end comes after the start")),
        None => Err(format!(
            "`{text}` is not START..END in whole seconds, such as 0..1200"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_seconds_from_start_to_end() {
        assert_eq!(part("5..9"), Ok(Part(5..9)));
        for (text, message) in [
            ("5..5", "is empty"),
            ("a..b", "whole seconds"),
            ("7", "START..END"),
        ] {
            assert!(part(text).unwrap_err().contains(message));
        }
    }
}
