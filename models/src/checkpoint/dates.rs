//! Dates in chat templates: `strftime_now` of transformers.

use time::OffsetDateTime;

/// Formats a date as Python's `strftime` does in English.
///
/// # Errors
/// The directive that is not supported.
pub(super) fn format_date(format: &str, date: OffsetDateTime) -> Result<String, String> {
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let (month, weekday) = (date.month().to_string(), date.weekday().to_string());
        let short = |name: &str| name.chars().take(3).collect::<String>();
        let directive = letters.next();
        let written = match directive {
            Some('Y') => date.year().to_string(),
            Some('y') => format!("{:02}", date.year().rem_euclid(100)),
            Some('m') => format!("{:02}", u8::from(date.month())),
            Some('d') => format!("{:02}", date.day()),
            Some('j') => format!("{:03}", date.ordinal()),
            Some('B') => month,
            Some('b') => short(&month),
            Some('A') => weekday,
            Some('a') => short(&weekday),
            Some('H') => format!("{:02}", date.hour()),
            Some('M') => format!("{:02}", date.minute()),
            Some('S') => format!("{:02}", date.second()),
            Some('%') => "%".to_owned(),
            other => {
                let other = other.map(String::from).unwrap_or_default();
                return Err(format!("strftime_now does not support %{other}"));
            }
        };
        out.push_str(&written);
    }
    Ok(out)
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
