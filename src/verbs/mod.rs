//! What the command line does, one file per verb.

pub mod explain;
pub mod profile;
pub mod schema;
pub mod validate;
