//! Load: when requests arrive, the clients that send them, and what became of each.

pub mod arrivals;
pub mod drive;
pub mod questions;
pub mod record;
#[cfg(feature = "clap")]
pub mod trace_args;
pub mod tracefile;
