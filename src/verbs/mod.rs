//! What the command line does, one file per verb.

pub mod bench;
pub mod explain;
pub mod infer;
pub mod profile;
pub mod schema;
pub mod serve;
pub mod validate;
