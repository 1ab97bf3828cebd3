//! Runs the replicas of a plan.

pub mod batcher;
pub mod generator;
pub mod lease;
pub mod worker;
