//! Moves requests between ingresses and replicas.

pub mod answer;
pub mod cost;
pub(crate) mod deferral;
pub mod delivery;
pub mod dispatcher;
pub(crate) mod epoch_check;
pub(crate) mod exits;
pub(crate) mod fan_out;
pub(crate) mod local;
pub mod spans;
pub mod subscribe;
