//! Trace files as the command line names them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use flate2::read::GzDecoder;
use kaskade_plans::trace::Trace;

use super::arrivals::Spacing;

/// A trace, and how it is played.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TraceArgs {
    /// A trace file, plain or compressed by gzip: requests per second (integers separated by spaces), arrival times (one in
    /// seconds per line), or the Azure LLM trace (CSV).
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What the trace file holds; by default what it looks like.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "trace")]
    trace_format: Option<Format>,
    /// The part of the trace to play, in seconds from its beginning: `START..END`.
    #[arg(long, value_name = "START..END", requires = "trace", value_parser = part)]
    excerpt: Option<(usize, usize)>,
    /// Scale the trace so that its busiest second has this many requests.
    #[arg(long, value_name = "PER_SECOND", requires = "trace", value_parser = positive)]
    peak: Option<f64>,
    /// Leave out the seconds without requests.
    #[arg(long, requires = "trace")]
    skip_idle: bool,
}

/// What a trace file may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Requests per second, as integers separated by white space.
    Counts,
    /// Arrival times in seconds, one per line.
    Times,
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm,
}

impl TraceArgs {
    /// The trace that was asked for, if one was.
    ///
    /// # Errors
    /// When the file cannot be read, is no trace, or is shorter than the part asked for.
    pub fn read(&self) -> anyhow::Result<Option<Trace>> {
        let Some(path) = &self.trace else { return Ok(None) };
        let trace = self.prepared(path).with_context(|| path.display().to_string())?;
        Ok(Some(trace))
    }

    fn prepared(&self, path: &Path) -> anyhow::Result<Trace> {
        let mut trace = parse(&text(path)?, self.trace_format)?;
        if let Some((from, to)) = self.excerpt {
            trace = trace.excerpt(from, to - from)?;
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

fn text(path: &Path) -> anyhow::Result<String> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let bytes = std::fs::read(path).context("cannot be read")?;
    if !bytes.starts_with(&GZIP) {
        return String::from_utf8(bytes).context("is no text");
    }
    let mut text = String::new();
    GzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .context("cannot be unpacked")?;
    Ok(text)
}

fn parse(text: &str, format: Option<Format>) -> anyhow::Result<Trace> {
    Ok(match format.unwrap_or_else(|| looks_like(text)) {
        Format::Counts => Trace::from_counts(text)?,
        Format::Times => Trace::from_times(text)?,
        Format::AzureLlm => Trace::from_azure_llm(text)?,
    })
}

/// Counts stand side by side, arrival times one on a line; one count per line is told from times by `--trace-format`.
fn looks_like(text: &str) -> Format {
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    match lines.find(|line| !line.trim().is_empty()) {
        Some(line) if line.contains(',') => Format::AzureLlm,
        Some(line) if line.split_whitespace().nth(1).is_some() => Format::Counts,
        _ => Format::Times,
    }
}

/// How single requests are placed within the seconds of a trace, for the simulator's and the live replay's use alike.
pub fn spacing(spacing: Spacing) -> kaskade_plans::trace::Spacing {
    match spacing {
        Spacing::Poisson => kaskade_plans::trace::Spacing::Poisson,
        Spacing::Constant => kaskade_plans::trace::Spacing::Constant,
    }
}

/// A number above zero, from the command line.
pub fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() && number > 0.0 {
        return Ok(number);
    }
    Err(format!("{number} is not above zero"))
}

fn part(text: &str) -> Result<(usize, usize), String> {
    let ends = text.split_once("..");
    let ends = ends.and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
    match ends {
        Some((from, to)) if from < to => Ok((from, to)),
        Some((from, to)) => Err(format!("{from}..{to} is empty; the end comes after the start")),
        None => Err(format!(
            "`{text}` is not START..END in whole seconds, such as 0..1200"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

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
    }

    #[test]
    fn a_part_is_cut_and_scaled() {
        let counts = file(b"1 2 0 4 5\n");
        let args = TraceArgs {
            trace: Some(counts.path().to_owned()),
            excerpt: Some((1, 4)),
            peak: Some(100.0),
            skip_idle: true,
            ..TraceArgs::default()
        };
        assert_eq!(args.read().unwrap().unwrap().rates(), [50.0, 100.0]);
        assert_eq!(TraceArgs::default().read().unwrap(), None);
    }

    #[test]
    fn errors_name_the_file_and_the_field() {
        let bad = file(b"1 2 x\n");
        let read = |path: &Path| {
            let args = TraceArgs {
                trace: Some(path.to_owned()),
                ..TraceArgs::default()
            };
            args.read()
        };
        let error = format!("{:#}", read(bad.path()).unwrap_err());
        assert!(
            error.contains(&bad.path().display().to_string()) && error.contains('x'),
            "{error}"
        );
        assert!(read(Path::new("/nowhere/trace")).is_err());
        for (text, message) in [
            ("5..5", "is empty"),
            ("a..b", "whole seconds"),
            ("7", "START..END"),
        ] {
            assert!(part(text).unwrap_err().contains(message));
        }
    }
}
