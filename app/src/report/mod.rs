//! What people read of results: tables, units, progress, files.

pub mod progress;
pub mod table;
pub mod units;

use std::path::Path;

use anyhow::Context as _;

/// Writes a file whole: a reader sees the old one or the new one, never half of it.
///
/// # Errors
/// When the folder cannot be made or the file not written, naming it.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("{} cannot be written", path.display());
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(failed)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    std::fs::write(&beside, text).with_context(failed)?;
    std::fs::rename(&beside, path).with_context(failed)
}

/// An error and its causes on one line, each reason once: many errors say in their own words what their cause says again.
pub fn in_one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let reason = cause.to_string();
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        if said.ends_with(&reason) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&reason);
    }
    said
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use kaskade_plans::plan::Plan;

    use super::*;

    #[test]
    fn a_reason_is_said_once() {
        let error = Plan::from_json("{\n").context("plan.json").unwrap_err();
        let said = in_one_line(error.as_ref());
        assert_eq!(said.matches("EOF while parsing").count(), 1, "{said}");
        assert!(said.starts_with("plan.json: not a valid file: EOF"), "{said}");
        let error = anyhow::anyhow!("low").context("middle\n line").context("high");
        assert_eq!(in_one_line(error.as_ref()), "high: middle line: low");
    }
}
