//! Runs the replicas of a plan.

pub mod batcher;
pub mod generator;
pub mod hosting;
pub mod lease;
pub mod worker;
