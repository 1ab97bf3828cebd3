//! Moves requests between ingresses and replicas.

pub mod delivery;
pub mod dispatcher;
pub mod exits;
pub(crate) mod fan_out;
pub mod local;
pub mod subscribe;
