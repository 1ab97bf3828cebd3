//! Date formatting for chat templates: `strftime_now` of transformers.

use time::OffsetDateTime;
use time::format_description::parse_strftime_owned;

/// Formats a date like Python's `strftime` in English.
///
/// # Errors
/// The format, and its unsupported part.
pub(super) fn format_date(format: &str, date: OffsetDateTime) -> Result<String, String> {
    let items = parse_strftime_owned(format)
        .map_err(|error| format!("strftime_now does not support `{format}`: {error}"))?;
    date.format(&items)
        .map_err(|error| format!("strftime_now does not support `{format}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_python_does() {
        // 2025-03-09 17:04:05, a Sunday.
        let date = OffsetDateTime::from_unix_timestamp(1_741_539_845).unwrap();
        let written = format_date("%Y-%m-%d, %d %b %y, %A %a %B %j %H:%M:%S %%", date);
        assert_eq!(
            written.unwrap(),
            "2025-03-09, 09 Mar 25, Sunday Sun March 068 17:04:05 %"
        );
        for format in ["%Q", "%"] {
            assert!(format_date(format, date).unwrap_err().contains(format));
        }
    }
}
