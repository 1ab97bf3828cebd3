//! `kaskade validate`: checks files.

use std::path::{Path, PathBuf};

use anyhow::bail;
use kaskade_app::config::{App, ConfigError};
use kaskade_app::planning::initial;
use kaskade_app::report::in_one_line;
use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use serde::Serialize;

use crate::output;

/// Checks app files, plans and profiles.
///
/// Every problem is printed with its field or line. The plan that an app names is checked too.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files to check: TOML of apps, JSON of plans and profiles.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of one file.
#[derive(Debug, Serialize)]
struct Finding {
    file: PathBuf,
    kind: &'static str,
    problems: Vec<String>,
}

/// Checks and prints every file, and fails if one has a problem.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let findings: Vec<Finding> = args.files.iter().map(|file| check(file)).collect();
    if args.json {
        output::print_json(&findings)?;
    } else {
        for finding in &findings {
            output::print(&as_text(finding))?;
        }
    }
    let bad = findings
        .iter()
        .filter(|finding| !finding.problems.is_empty())
        .count();
    if bad > 0 {
        bail!("{bad} of {} files cannot be used", findings.len());
    }
    Ok(())
}

fn as_text(finding: &Finding) -> String {
    let file = finding.file.display();
    if finding.problems.is_empty() {
        return format!("{file}: a valid {}", finding.kind);
    }
    let lines = finding
        .problems
        .iter()
        .map(|problem| format!("{file}: {problem}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn check(file: &Path) -> Finding {
    let (kind, problems) = if file.extension().is_some_and(|extension| extension == "toml") {
        ("app", check_app(file))
    } else {
        check_json(file)
    };
    Finding {
        file: file.to_owned(),
        kind,
        problems,
    }
}

fn check_app(file: &Path) -> Vec<String> {
    match App::load(file) {
        Ok(app) => match initial::of(&app) {
            Ok(_) => Vec::new(),
            Err(error) => vec![format!("plan: {}", in_one_line(&error))],
        },
        Err(ConfigError::Inconsistent { problems, .. }) => problems,
        // Errors of a family file name that file.
        Err(ConfigError::Malformed { path, line, reason }) if path == file => {
            vec![format!("line {line}: {reason}")]
        }
        Err(ConfigError::Unreadable { path, reason }) if path == file => {
            vec![format!("cannot be read: {reason}")]
        }
        Err(error) => vec![error.to_string()],
    }
}

fn check_json(file: &Path) -> (&'static str, Vec<String>) {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return ("file", vec![format!("cannot be read: {error}")]),
    };
    let value: serde_json::Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        Err(error) => return ("file", vec![format!("is not JSON: {error}")]),
    };
    // Only a plan has gears, only a profile has samples.
    if value.get("gears").is_some() {
        let problems = Plan::from_json(&text).err().map(|error| error.to_string());
        return ("plan", problems.into_iter().collect());
    }
    if value.get("samples").is_some() {
        let problems = Profile::from_json(&text).err().map(|error| error.to_string());
        return ("profile", problems.into_iter().collect());
    }
    let problem = "is neither a plan (`gears`) nor a profile (`samples`); an app's file ends in .toml";
    ("file", vec![problem.to_owned()])
}
