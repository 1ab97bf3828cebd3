//! Observability and access control: health, probes, energy, discovery, permissions.

pub(crate) mod discovery;
pub mod health;
pub(crate) mod meter;
pub mod permissions;
pub mod probes;
