//! What operators see of a process.

pub mod discovery;
pub mod health;
pub mod meter;
pub mod permissions;
pub mod probes;
