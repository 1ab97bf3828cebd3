//! The suite from the outside. That this is a test of the program also has `cargo test` build it, with the features that everything else is
//! built with; `.ci/run` goes on with it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::process::{Command, Output};

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_faults_are_named_and_one_that_is_none_is_refused() {
    let listed = xtask(&["faults", "--list", "nats"]);
    let names = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.status.success());
    assert!(names.contains("nats-restarted") && names.contains("nats-partitioned"));
    assert!(!names.contains("replica-killed"), "only what was asked for");
    let refused = xtask(&["faults", "no-such-fault"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8(refused.stderr).unwrap().contains("--list"));
}
