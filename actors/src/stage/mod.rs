//! The worker and the actors that run a replica: batcher, generator, device lease.

pub mod batcher;
pub mod generator;
pub mod hosting;
pub mod lease;
pub mod worker;
