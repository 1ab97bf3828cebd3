//! The plan store, and the plans that a process knows.

pub(crate) mod beats;
mod single;
pub mod store;
pub mod versions;

pub use single::single;
