//! The worker and the actors that run a replica: batcher, generator, device lease.

pub(crate) mod batcher;
mod ending;
pub(crate) mod generator;
pub(crate) mod hosting;
pub(crate) mod lease;
mod placement;
pub mod worker;
