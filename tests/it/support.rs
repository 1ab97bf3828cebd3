//! What several of these tests need.

use std::path::Path;
use std::process::Output;

use kaskade_testkit::ROOT;

/// The app of a text family.
pub(crate) const SENTIMENT: &str = "examples/sentiment/app.toml";

/// Returns the root of the repository.
pub(crate) fn here() -> &'static Path {
    Path::new(ROOT)
}

/// The message of a run that refused its input: exit code 1, nothing on standard output, one line on standard error.
pub(crate) fn refusal(output: &Output) -> String {
    let message = kaskade_testkit::refusal(output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("kaskade: "), "{message}");
    message
}
