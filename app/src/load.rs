//! Load generation: arrivals, clients, and the outcomes of requests.

pub mod arrivals;
pub mod error;
pub mod generator;
pub mod record;
pub mod requests;
pub mod samples;
#[cfg(feature = "clap")]
pub mod trace_args;
pub mod trace_file;
