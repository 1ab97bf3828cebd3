//! Tests that measure, or that serve a load. They run one at a time, and after the tests of `tests/it`: a plan made for
//! all cores of a machine does not hold on half of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod demo;
mod faults;
mod traffic;
mod watch;
