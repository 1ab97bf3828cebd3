//! Reads trace files of arrivals.

use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use flate2::read::MultiGzDecoder;
use kaskade_simulator::trace::{Trace, TraceError};
use thiserror::Error;

/// Error of reading a trace file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceFileError {
    /// A file cannot be used.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<TraceFileError>,
    },
    /// A file cannot be read.
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    /// A compressed file cannot be decompressed.
    #[error("is not valid gzip; unpack it, or save it again")]
    Packed(#[source] io::Error),
    /// A file is not UTF-8 text.
    #[error("is not UTF-8 text; a trace is text or CSV (docs/how-to/simulate.md)")]
    NoText(#[from] FromUtf8Error),
    /// A file has one integer per line, which may be counts or arrival times.
    #[error(
        "has one whole number per line, which may be the requests of each second or the seconds at which they arrive; give \
         `--trace-format counts` or `--trace-format times`"
    )]
    Ambiguous,
    /// A text is not a trace, or is shorter than the requested part.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A trace file, with options for its use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TraceFile {
    /// The file, plain or compressed by gzip.
    pub path: PathBuf,
    /// Format of the file [default: detected].
    pub format: Option<Format>,
    /// Part to use, seconds from the beginning.
    pub excerpt: Option<Range<usize>>,
    /// Rate to which the trace is scaled: requests in its busiest second.
    pub peak: Option<f64>,
    /// Whether seconds without requests are left out.
    pub skip_idle: bool,
}

/// Format of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Format {
    /// Requests per second, as integers separated by white space.
    Counts,
    /// Arrival times in seconds, one per line.
    Times,
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm,
}

impl TraceFile {
    /// Reads the trace.
    ///
    /// # Errors
    /// [`TraceFileError`] if the file cannot be read, is not a trace, or is shorter than the requested part.
    pub fn read(&self) -> Result<Trace, TraceFileError> {
        self.prepared().map_err(|source| TraceFileError::File {
            path: self.path.clone(),
            source: Box::new(source),
        })
    }

    fn prepared(&self) -> Result<Trace, TraceFileError> {
        let mut trace = parse(&text(&self.path)?, self.format)?;
        if let Some(Range { start, end }) = self.excerpt {
            trace = trace.excerpt(start, end.saturating_sub(start))?;
        }
        if self.skip_idle {
            trace = trace.without_idle_seconds()?;
        }
        match self.peak {
            Some(peak) => Ok(trace.scale_to_peak(peak)?),
            None => Ok(trace),
        }
    }
}

/// Reads a text file, decompressing it if necessary, and removes a byte order mark.
fn text(path: &Path) -> Result<String, TraceFileError> {
    let text = unpacked(path)?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(unmarked) => unmarked.to_owned(),
        None => text,
    })
}

fn unpacked(path: &Path) -> Result<String, TraceFileError> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let bytes = std::fs::read(path).map_err(TraceFileError::Unreadable)?;
    if !bytes.starts_with(&GZIP) {
        return Ok(String::from_utf8(bytes)?);
    }
    let mut text = String::new();
    MultiGzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .map_err(TraceFileError::Packed)?;
    Ok(text)
}

fn parse(text: &str, format: Option<Format>) -> Result<Trace, TraceFileError> {
    let format = match format {
        Some(format) => format,
        None => looks_like(text)?,
    };
    Ok(match format {
        Format::Counts => Trace::from_counts(text)?,
        Format::Times => Trace::from_times(text)?,
        Format::AzureLlm => Trace::from_azure_llm(text)?,
    })
}

/// Detects the format: counts are on one line, arrival times on a line each.
///
/// # Errors
/// [`TraceFileError::Ambiguous`] for one integer per line.
fn looks_like(text: &str) -> Result<Format, TraceFileError> {
    let lines = text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_whole = |line: &str| line.parse::<u64>().is_ok();
    match lines.next() {
        Some(line) if line.contains(',') => Ok(Format::AzureLlm),
        Some(line) if line.split_whitespace().nth(1).is_some() => Ok(Format::Counts),
        Some(line) if is_whole(line) && lines.all(is_whole) => Err(TraceFileError::Ambiguous),
        _ => Ok(Format::Times),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::report::in_one_line;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn formats_are_told_by_their_looks_also_when_packed() {
        let counts = file(b"10 20 30\n");
        let read = |path: &Path| parse(&text(path).unwrap(), None);
        assert_eq!(read(counts.path()).unwrap().rates(), [10.0, 20.0, 30.0]);
        let times = file(b"# seconds\n0.5\n0.75\n1.5\n");
        assert_eq!(read(times.path()).unwrap().times().unwrap().len(), 3);
        let azure = file(b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n");
        assert_eq!(read(azure.path()).unwrap().tokens().len(), 1);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(b"4 4 4 8").unwrap();
        let packed = file(&packed.finish().unwrap());
        assert_eq!(read(packed.path()).unwrap().rates().len(), 4);
        // The output of `cat a.gz b.gz` is a valid file.
        let members = [b"4 4 \n", b"8 8 8"].map(|part| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            packed.write_all(part).unwrap();
            packed.finish().unwrap()
        });
        let joined = file(&members.concat());
        assert_eq!(read(joined.path()).unwrap().rates(), [4.0, 4.0, 8.0, 8.0, 8.0]);
    }

    /// Regression: counts and times in a file written by Excel or Notepad were refused.
    #[test]
    fn a_byte_order_mark_is_no_part_of_a_trace() {
        let read = |content: &str| parse(&text(file(content.as_bytes()).path()).unwrap(), None).unwrap();
        assert_eq!(read("\u{feff}10 20 30\n").rates(), [10.0, 20.0, 30.0]);
        assert_eq!(read("\u{feff}0.5\n0.75\n").times().unwrap().len(), 2);
        let azure = "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n";
        assert_eq!(read(azure).tokens().len(), 1);
    }

    /// Regression: 10, 20 and 30 requests per second were read as three requests.
    #[test]
    fn one_whole_number_per_line_needs_a_format() {
        let numbers = "10\n20\n\n30\n";
        let error = parse(numbers, None).unwrap_err().to_string();
        assert!(error.contains("--trace-format counts"), "{error}");
        let rates = parse(numbers, Some(Format::Counts)).unwrap();
        assert_eq!(rates.rates(), [10.0, 20.0, 30.0]);
        let times = parse(numbers, Some(Format::Times)).unwrap();
        assert_eq!(times.times().unwrap().len(), 3);
        let times = parse("10\n20.5\n", None).unwrap();
        assert_eq!(times.times().unwrap().len(), 2);
    }

    #[test]
    fn a_part_is_cut_and_scaled() {
        let counts = file(b"1 2 0 4 5\n");
        let file = TraceFile {
            path: counts.path().to_owned(),
            excerpt: Some(1..4),
            peak: Some(100.0),
            skip_idle: true,
            ..TraceFile::default()
        };
        assert_eq!(file.read().unwrap().rates(), [50.0, 100.0]);
    }

    #[test]
    fn errors_name_the_file_and_the_field() {
        let bad = file(b"1 2 x\n");
        let read = |path: &Path| {
            let file = TraceFile {
                path: path.to_owned(),
                ..TraceFile::default()
            };
            file.read()
        };
        let error = in_one_line(&read(bad.path()).unwrap_err());
        assert!(
            error.contains(&bad.path().display().to_string()) && error.contains('x'),
            "{error}"
        );
        assert!(read(Path::new("/nowhere/trace")).is_err());
    }
}
