//! Load generation: arrivals, clients, and the outcomes of requests.

pub mod arrivals;
pub mod drive;
pub mod questions;
pub mod record;
#[cfg(feature = "clap")]
pub mod trace_args;
pub mod tracefile;
