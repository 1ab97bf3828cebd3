//! The commands, one file each.

pub(crate) mod auth;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod explain;
pub(crate) mod feedback;
pub(crate) mod generate;
pub(crate) mod infer;
pub(crate) mod init;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod quantise;
pub(crate) mod result;
pub(crate) mod schema;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod top;
pub(crate) mod validate;
