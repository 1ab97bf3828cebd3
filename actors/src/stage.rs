//! The worker and the actors that run a replica: batcher, generator, device lease.

mod adoption;
mod announcement;
pub(crate) mod batcher;
pub(crate) mod beat_sequence;
pub(crate) mod device_lease;
pub(crate) mod generator;
pub(crate) mod replica;
pub mod worker;
