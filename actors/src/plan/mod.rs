//! The plans that a process knows, and the store they come from.

pub mod store;
pub mod versions;
