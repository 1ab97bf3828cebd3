//! The program from the outside. Cargo builds the binaries of a package only for its own integration tests: without this one,
//! `cargo test --workspace` would not build `kaskade`, which the tests of the package in `tests/` run.

#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use std::process::Command;

#[test]
fn the_program_states_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_kaskade"))
        .arg("--version")
        .output()
        .unwrap();
    assert!(output.status.success());
    let stated = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stated.trim(), concat!("kaskade ", env!("CARGO_PKG_VERSION")));
}
