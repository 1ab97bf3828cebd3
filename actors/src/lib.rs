//! Everything that runs: the bus, the wire messages, and one file per actor.

pub mod broker;
