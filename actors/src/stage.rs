//! The worker and the actors that run a replica: batcher, generator, device lease.

mod adoption;
mod announcement;
pub(crate) mod batcher;
pub(crate) mod device_lease;
pub(crate) mod generator;
pub(crate) mod heartbeat_sequence;
mod model_thread;
pub(crate) mod replica;
pub mod worker;
