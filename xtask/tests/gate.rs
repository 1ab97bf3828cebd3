//! The gate says what it did not check.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::process::{Command, Output};

/// Runs a script after `.ci/steps.sh`.
fn gate(script: &str, strict: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    Command::new("bash")
        .args(["-c", &format!("set -euo pipefail; . .ci/steps.sh; {script}")])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("logs", folder.path())
        .env("CI_STRICT", strict)
        .output()
        .unwrap()
}

#[test]
fn a_step_that_could_not_be_run_is_named_at_the_end_and_fails_a_strict_run() {
    let skipped =
        "unavailable() { return 75; }; ( optional 'the site' unavailable ); optional 'types' true; finished";
    let run = gate(skipped, "0");
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success());
    assert_eq!(said.lines().last(), Some("!! NOT CHECKED: the site"));
    assert!(!gate(skipped, "1").status.success());
    let whole = gate("optional 'types' true; finished", "1");
    assert!(whole.status.success() && !String::from_utf8(whole.stdout).unwrap().contains("NOT CHECKED"));
}

#[test]
fn a_step_that_fails_ends_the_gate() {
    let run = gate("optional 'types' false; finished", "0");
    assert!(!run.status.success() && !String::from_utf8(run.stdout).unwrap().contains("done"));
}
