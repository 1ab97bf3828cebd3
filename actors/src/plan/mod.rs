//! The plans that a process knows, and the store they come from.

mod single;
pub mod store;
pub mod versions;

pub use single::single;
