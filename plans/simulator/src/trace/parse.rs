//! Traces from text. An error names the line and what is wrong with it.

use thiserror::Error;

use super::arrivals::SECOND;
use super::{Load, MAX_SECONDS, Tokens, Trace};

/// Why there is no trace.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TraceError {
    /// Not a count of requests.
    #[error("line {line}, field {field}: `{text}` is not a count of requests")]
    Count {
        /// Line number, from 1.
        line: usize,
        /// Field number, from 1.
        field: usize,
        /// Text of the field.
        text: String,
    },
    /// Not a time.
    #[error("line {line}: `{text}` is not a time in seconds")]
    Time {
        /// Line number, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// Goes back in time.
    #[error("line {line}: {text} comes before the arrival above it; sort the trace")]
    Order {
        /// Line number, from 1.
        line: usize,
        /// The time.
        text: String,
    },
    /// Later than a trace lasts.
    #[error(
        "line {line}: {text} is more than {MAX_SECONDS} s from the beginning, and no trace is that long; begin it at 0"
    )]
    TooLong {
        /// Line number, from 1.
        line: usize,
        /// The time.
        text: String,
    },
    /// The first line is not the one of this format.
    #[error("line 1: `{text}` is not `{expected}`; is this another format?")]
    Header {
        /// Text of the line.
        text: String,
        /// First line of this format.
        expected: &'static str,
    },
    /// A field is missing or malformed.
    #[error("line {line}, field `{field}`: `{text}` is not {expected}")]
    Field {
        /// Line number, from 1.
        line: usize,
        /// The column.
        field: &'static str,
        /// Text of the field; empty if it is missing.
        text: String,
        /// Allowed values.
        expected: &'static str,
    },
    /// No request.
    #[error("holds no arrival")]
    Empty,
    /// A rate that cannot be.
    #[error("second {second}: {rate} requests/s is not a load; it must be finite and not negative")]
    Rate {
        /// The second, from 0.
        second: usize,
        /// The rate.
        rate: f64,
    },
    /// A factor that cannot be.
    #[error("the load cannot be multiplied by {factor}; the factor must be finite and not negative")]
    Factor {
        /// The factor.
        factor: f64,
    },
    /// The excerpt exceeds the trace.
    #[error("{length_s} s from second {from_s} on do not lie in a trace of {seconds} s")]
    Excerpt {
        /// Start of the excerpt, seconds.
        from_s: usize,
        /// Length of the excerpt, seconds.
        length_s: usize,
        /// Length of the trace.
        seconds: usize,
    },
    /// A generator was given a figure that makes no sense.
    #[error("{field}: {found} is not {expected}")]
    Parameter {
        /// The field.
        field: &'static str,
        /// Value of the field.
        found: f64,
        /// Allowed values.
        expected: &'static str,
    },
}

const AZURE_LLM: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

impl Trace {
    /// Counts per second, as integers separated by white space: the Twitter trace.
    ///
    /// # Errors
    /// [`TraceError::Count`] at the first field that is no count, [`TraceError::Empty`] without any.
    pub fn from_counts(text: &str) -> Result<Self, TraceError> {
        let mut rates = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            for (field, text) in (1..).zip(content.split_whitespace()) {
                let count: u32 = text.parse().map_err(|_| TraceError::Count {
                    line,
                    field,
                    text: shown(text),
                })?;
                rates.push(f64::from(count));
            }
        }
        Self::per_second(rates)
    }

    /// The requests of an Azure LLM inference trace (CSV with time stamp, context tokens, generated tokens). Time begins with
    /// the first.
    ///
    /// # Errors
    /// A [`TraceError`] with the first line, and its field, that is not of the format or goes back in time.
    pub fn from_azure_llm(text: &str) -> Result<Self, TraceError> {
        let mut lines = (1..).zip(text.lines().map(str::trim_end));
        let header = lines.next().map_or("", |(_, header)| header);
        if header.trim_start_matches('\u{feff}') != AZURE_LLM {
            return Err(TraceError::Header {
                text: shown(header),
                expected: AZURE_LLM,
            });
        }
        let (mut times, mut tokens): (Vec<u64>, _) = (Vec::new(), Vec::new());
        let mut first = None;
        for (line, content) in lines.filter(|(_, content)| !content.is_empty()) {
            let (time, sizes) = azure_line(line, content)?;
            let since_first = time.checked_sub(*first.get_or_insert(time));
            let text = || shown(content);
            match since_first.filter(|time| times.last().is_none_or(|last| time >= last)) {
                None => return Err(TraceError::Order { line, text: text() }),
                Some(time) if time > MAX_SECONDS * SECOND => {
                    return Err(TraceError::TooLong { line, text: text() });
                }
                Some(time) => times.push(time),
            }
            tokens.push(sizes);
        }
        if times.is_empty() {
            return Err(TraceError::Empty);
        }
        Ok(Self {
            load: Load::Times { times, tokens },
        })
    }

    /// Arrival times, one in seconds per line, ascending. Blank lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// A [`TraceError`] with the first line that is no time or goes back in time, [`TraceError::Empty`] without any.
    pub fn from_times(text: &str) -> Result<Self, TraceError> {
        let mut times = Vec::new();
        let mut last = 0.0;
        for (line, content) in (1..).zip(text.lines().map(str::trim)) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let time = content.parse().ok();
            let time = time.filter(|time: &f64| time.is_finite() && *time >= 0.0);
            let time = time.ok_or_else(|| TraceError::Time {
                line,
                text: shown(content),
            })?;
            if time < last {
                return Err(TraceError::Order {
                    line,
                    text: format!("{time} s"),
                });
            }
            if time > MAX_SECONDS as f64 {
                return Err(TraceError::TooLong {
                    line,
                    text: format!("{time} s"),
                });
            }
            last = time;
            times.push((time * SECOND as f64).round() as u64);
        }
        if times.is_empty() {
            return Err(TraceError::Empty);
        }
        Ok(Self {
            load: Load::Times {
                times,
                tokens: Vec::new(),
            },
        })
    }
}

/// Time in microseconds since the year 0, and sizes.
fn azure_line(line: usize, text: &str) -> Result<(u64, Tokens), TraceError> {
    let mut fields = text.split(',');
    let stamp = fields.next().unwrap_or_default();
    let time = time_stamp(stamp).ok_or_else(|| TraceError::Field {
        line,
        field: "TIMESTAMP",
        text: shown(stamp),
        expected: "a time as `2023-11-16 18:15:46.6805900`",
    })?;
    let mut count = |field| {
        let text = fields.next().unwrap_or_default();
        text.parse().map_err(|_| TraceError::Field {
            line,
            field,
            text: shown(text),
            expected: "a number of tokens",
        })
    };
    let (context, generated) = (count("ContextTokens")?, count("GeneratedTokens")?);
    if let Some(text) = fields.next() {
        return Err(TraceError::Field {
            line,
            field: "GeneratedTokens",
            text: shown(text),
            expected: "the last one of the line",
        });
    }
    Ok((time, Tokens { context, generated }))
}

/// Microseconds of `YYYY-MM-DD hh:mm:ss[.fraction]` since the beginning of the year 0.
pub(super) fn time_stamp(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(' ')?;
    let numbers = |text: &str, by: char| -> Option<[u64; 3]> {
        let parts: Option<Vec<u64>> = text.split(by).map(digits).collect();
        parts?.try_into().ok()
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let sound = (1..=12).contains(&month)
        && (1..=month_length(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61
        && year < 10_000;
    if !sound {
        return None;
    }
    digits(fraction)?;
    let micros = digits(&format!("{fraction:0<6}").chars().take(6).collect::<String>())?;
    // Years that had a leap day before this one, by the Gregorian rule; the year 0 had one.
    let leap_days = year.div_ceil(4) - year.div_ceil(100) + year.div_ceil(400);
    let days =
        365 * year + leap_days + (1..month).map(|month| month_length(year, month)).sum::<u64>() + day - 1;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND + micros)
}

fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_length(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Shortens a text for an error.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}
