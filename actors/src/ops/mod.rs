//! Observability and access control: health, probes, energy, discovery, permissions.

pub mod discovery;
pub mod health;
pub mod meter;
pub mod permissions;
pub mod probes;
