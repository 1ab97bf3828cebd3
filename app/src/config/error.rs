//! Errors of a configuration, and functions that read its files.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Former names of settings and values, with the current ones.
const FORMER: [(&str, &str); 19] = [
    ("completions", "records"),
    ("hop", "hop_latency"),
    ("limit", "timeout"),
    ("every", "interval"),
    ("on_drift", "replan_on_load_drift"),
    ("replan_on_drift", "replan_on_load_drift"),
    ("rise", "surge_factor"),
    ("give_up", "max_accuracy_loss"),
    ("give_up", "retry_timeout"),
    ("silence", "ack_wait"),
    ("results", "result_retention"),
    ("dead", "dead_letter_retention"),
    ("least_batches", "min_batches"),
    ("memory", "decay"),
    ("requests", "max_num_seqs"),
    ("in_flight", "max_in_flight"),
    ("drain", "drain_timeout"),
    ("max_bodies", "max_in_flight_bytes"),
    ("right_from", "min_score"),
];

/// Task names on the Hugging Face Hub, with the names used in this file.
const HUB_TASKS: [(&str, &str); 9] = [
    ("text-classification", "classification"),
    ("sentiment-analysis", "classification"),
    ("image-classification", "classification"),
    ("text-generation", "generation"),
    ("question-answering", "question_answering"),
    ("token-classification", "token_classification"),
    ("feature-extraction", "embedding"),
    ("sentence-similarity", "embedding"),
    ("text-ranking", "reranking"),
];

/// File extensions of record files, which are not names of formats.
const RECORD_FILES: [&str; 7] = ["jsonl", "ndjson", "json", "csv", "tsv", "parquet", "gz"];

/// Error of reading an app's configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {reason}; name an app's TOML file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Message of the operating system.
        reason: String,
    },
    /// A value is malformed.
    #[error("{}:{line}: {reason}; `kaskade schema app` prints what this file may hold", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line of the offending value, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// Values contradict each other, or files are missing or unusable.
    #[error("{}: {}", path.display(), problems.join("; "))]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// All problems, each with the path of its value.
        problems: Vec<String>,
    },
}

/// Reads a configuration file.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Returns line and reason of a parser's error.
pub(super) fn malformed(text: &str, error: &toml::de::Error) -> (usize, String) {
    if let Some(list) = single_table(text, error.message()) {
        return list;
    }
    let start = error.span().map_or(0, |span| span.start);
    // Some messages of the parser have several lines; they are printed as one.
    let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    (line_of(text, start), plain(text, reason))
}

/// Settings of an app that are arrays of tables.
const LISTS: [&str; 2] = ["variants", "workers"];

/// Returns line and reason if an array of tables is written as a single table, `[variants]`. The parser reports it as a
/// duplicate, or as not a sequence.
fn single_table(text: &str, message: &str) -> Option<(usize, String)> {
    let is_meant = message.contains("duplicate key") || message.contains("expected a sequence");
    let mut lines = text.lines().zip(1..).filter(|_| is_meant);
    lines.find_map(|(line, number)| {
        let name = line.trim().strip_prefix('[')?.split_once(']')?.0.trim();
        let list = LISTS.iter().find(|list| **list == name)?;
        let reason =
            format!("`{list}` is a list: write `[[{list}]]`, in double brackets, above each of its entries");
        Some((number, reason))
    })
}

/// Rewrites the parser's reason in terms of the file instead of Rust types.
fn plain(text: &str, reason: String) -> String {
    if let Some((value, _)) = reason.split_once(", expected a nonzero ") {
        return format!("{value}; use a whole number of at least 1");
    }
    if let Some(plain) = unknown_name(&reason) {
        return plain;
    }
    if !reason.contains("wanted exactly 1 element") {
        return reason;
    }
    several_formats(text).unwrap_or_else(|| {
        if reason.contains("found 0 elements") {
            "the table is empty; it must name one of its alternatives".to_owned()
        } else {
            "the table names several alternatives; only one is allowed".to_owned()
        }
    })
}

/// Returns the reason for an unknown name, with its current or most similar name. The parser calls a value of an
/// enumeration a variant, which is a model in this file.
fn unknown_name(reason: &str) -> Option<String> {
    let (kind, rest) = ["field", "variant"].into_iter().find_map(|kind| {
        let rest = reason.strip_prefix("unknown ")?.strip_prefix(kind)?;
        Some((kind, rest))
    })?;
    let mut names = rest.split('`').skip(1).step_by(2);
    let (found, known) = (names.next()?, names.collect::<Vec<_>>());
    let mut former = FORMER.iter();
    if let Some((_, new)) = former.find(|(old, new)| *old == found && known.contains(new)) {
        return Some(format!("`{found}` was renamed; write `{new}`"));
    }
    let mut hub = HUB_TASKS.iter();
    if let Some((_, task)) = hub.find(|(hub, task)| *hub == found && known.contains(task)) {
        return Some(format!("unknown value `{found}`; write `{task}`"));
    }
    let ending = found.rsplit('.').next().unwrap_or_default();
    if known.contains(&"records") && RECORD_FILES.contains(&ending) {
        let file = if ending == found { "FILE" } else { found };
        return Some(format!(
            "unknown value `{found}`; write `records = {{ file = \"{file}\" }}`, which reads files of JSON lines, CSV, TSV and Parquet"
        ));
    }
    let alike = known.iter().map(|name| (strsim::jaro_winkler(found, name), name));
    let nearest = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let hint = match nearest.filter(|(alike, _)| *alike > 0.8) {
        Some((_, name)) => format!(" (`{name}`?)"),
        None => String::new(),
    };
    let what = if kind == "field" { "field" } else { "value" };
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    let known = known.join(", ");
    Some(format!("unknown {what} `{found}`{hint}; known are {known}"))
}

/// Returns the reason for a data set with several formats, if there is one.
fn several_formats(text: &str) -> Option<String> {
    let file: toml::Table = text.parse().ok()?;
    let sets = file.get("data")?.as_table()?;
    let several = |set: &str| {
        let mut formats: Vec<String> = sets
            .get(set)?
            .as_table()?
            .keys()
            .map(|name| format!("`{name}`"))
            .collect();
        formats.sort_unstable();
        (formats.len() > 1).then(|| {
            format!(
                "`data.{set}` has the formats {}; only one is allowed",
                formats.join(" and ")
            )
        })
    };
    ["validation", "test"].into_iter().find_map(several)
}

/// Returns the line of a byte position, from 1.
pub(super) fn line_of(text: &str, position: usize) -> usize {
    1 + text.bytes().take(position).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_comes_with_the_nearest_one() {
        let said = |reason: &str| unknown_name(reason).unwrap();
        assert_eq!(
            said("unknown field `taks`, expected one of `name`, `task`, `plan`"),
            "unknown field `taks` (`task`?); known are `name`, `task`, `plan`"
        );
        assert_eq!(
            said("unknown variant `x`, expected `all` or `none`"),
            "unknown value `x`; known are `all`, `none`"
        );
        assert_eq!(unknown_name("invalid type: `unknown field`"), None);
    }

    #[test]
    fn a_name_of_the_hub_and_a_file_come_with_what_to_write() {
        let app = "name = \"a\"\n";
        let refused = |text: &str| crate::config::App::parse(&format!("{app}{text}")).unwrap_err();
        assert_eq!(
            refused("task = \"text-classification\""),
            (
                2,
                "unknown value `text-classification`; write `classification`".to_owned()
            )
        );
        for (_, task) in HUB_TASKS {
            let text = format!("{app}task = \"{task}\"\n[[variants]]\nname = \"v\"\ndir = \"v\"");
            assert!(crate::config::App::parse(&text).is_ok(), "{task}");
        }
        let (line, reason) = refused("[data]\nvalidation = \"x.csv\"");
        assert!(
            line == 3 && reason.contains("`records = { file = \"x.csv\" }`"),
            "{line} {reason}"
        );
        let (_, reason) = refused("[data.validation.csv]\nfile = \"x.csv\"");
        assert!(reason.contains("`records = { file = \"FILE\" }`"), "{reason}");
    }

    #[test]
    fn a_former_name_comes_with_the_present_one() {
        let refused = |text: &str| crate::config::App::parse(text).unwrap_err();
        let set = "[data.test.completions]\nfile = \"test.jsonl\"";
        let app = "name = \"a\"\n";
        assert_eq!(
            refused(&format!("{app}{set}")),
            (2, "`completions` was renamed; write `records`".to_owned())
        );
        let planner = "[planner]\nprofile = \"p\"\nhop = \"1ms\"";
        assert_eq!(
            refused(&format!("{app}{planner}")),
            (4, "`hop` was renamed; write `hop_latency`".to_owned())
        );
    }

    /// Regression: a second such table was a "duplicate key", and a single one "invalid type: map".
    #[test]
    fn a_list_in_single_brackets_is_shown_in_double_brackets() {
        let variant = |name: &str| format!("[variants] # smallest\nname = \"{name}\"\ndir = \"d\"\n");
        for variants in [variant("a"), variant("a") + &variant("b")] {
            let text = format!("name = \"x\"\n{variants}");
            let (line, reason) = crate::config::App::parse(&text).unwrap_err();
            assert!(
                line == 2 && reason.contains("write `[[variants]]`"),
                "{line}: {reason}"
            );
        }
        let (_, other) = crate::config::App::parse("name = \"x\"\nname = \"y\"\n").unwrap_err();
        assert!(other.contains("duplicate key"), "{other}");
    }

    /// Regression: the message listed all names of the table, and the most similar one was another setting.
    #[test]
    fn a_setting_that_was_renamed_comes_with_its_new_name() {
        let app = |extra: &str| format!("name = \"a\"\n[[variants]]\nname = \"v\"\ndir = \"v\"\n{extra}");
        for (table, old, value, new) in [
            ("durable", "silence", "\"5s\"", "ack_wait"),
            ("durable", "give_up", "\"5s\"", "retry_timeout"),
            ("durable", "results", "\"5s\"", "result_retention"),
            ("durable", "dead", "\"5s\"", "dead_letter_retention"),
            ("durable", "in_flight", "5", "max_in_flight"),
            ("ingress", "drain", "\"5s\"", "drain_timeout"),
            ("gateway", "max_bodies", "\"5MB\"", "max_in_flight_bytes"),
            ("generation", "requests", "5", "max_num_seqs"),
            ("planner", "on_drift", "true", "replan_on_load_drift"),
            ("planner", "replan_on_drift", "true", "replan_on_load_drift"),
            ("planner", "limit", "\"5s\"", "timeout"),
            ("planner", "every", "\"5s\"", "interval"),
            ("planner.run_times", "memory", "0.5", "decay"),
            ("planner.run_times", "least_batches", "5", "min_batches"),
        ] {
            let text = app(&format!("[{table}]\n{old} = {value}\n"));
            let error = toml::from_str::<crate::config::App>(&text).unwrap_err();
            let (line, reason) = malformed(&text, &error);
            assert_eq!(
                (line, reason.as_str()),
                (6, &*format!("`{old}` was renamed; write `{new}`"))
            );
        }
    }
}
