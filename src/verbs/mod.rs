//! What the command line does, one file per verb.

pub(crate) mod auth;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod channels;
pub(crate) mod demo;
pub(crate) mod explain;
pub(crate) mod gears;
pub(crate) mod generate;
pub(crate) mod infer;
pub(crate) mod pipeline;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod replan;
pub(crate) mod result;
pub(crate) mod schema;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod target;
pub(crate) mod top;
pub(crate) mod validate;
pub(crate) mod weigh;
