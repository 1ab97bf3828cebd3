//! The plan store, and the plans that a process knows.

mod single;
pub mod store;
pub mod versions;

pub use single::single;
